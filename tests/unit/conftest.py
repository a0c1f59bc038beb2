"""Shared settings and fixtures of the unit tests."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# the duration of an example depends on the machine, not on the code
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")


@pytest.fixture
def own_logging() -> Iterator[logging.Logger]:
    """Yield Holdfast's logger; let the test set up logging, and restore it afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("holdfast")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    root.handlers = []  # basicConfig(force=True) closes what it finds
    yield ours
    root.handlers = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
