"""How something is broken: its function is replaced by another one."""

from collections.abc import Callable
from typing import Any


def put(owner: Any, function: Callable[..., Any]) -> None:
    """Put a function in the place of the one of that name. Raises AttributeError without one."""
    getattr(owner, function.__name__)  # otherwise it would silently break nothing
    setattr(owner, function.__name__, function)
