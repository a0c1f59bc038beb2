"""Replaces a function of the product, to break it on purpose."""

from collections.abc import Callable
from typing import Any


def put(owner: Any, function: Callable[..., Any]) -> None:
    """Replace the function of the same name. Raises AttributeError if there is none."""
    getattr(owner, function.__name__)  # otherwise nothing would be broken
    setattr(owner, function.__name__, function)
