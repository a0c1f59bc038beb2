"""Settings of the pure tests."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# how long an example takes says something about the machine, not about the code
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")


@pytest.fixture
def own_logging() -> Iterator[logging.Logger]:
    """Let the test set up logging for itself, and restore it behind it. Gives Holdfast's logger."""
    root, ours = logging.getLogger(), logging.getLogger("holdfast")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    root.handlers = []  # basicConfig(force=True) closes what it finds
    yield ours
    root.handlers = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
