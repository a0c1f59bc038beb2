"""Shared settings and fixtures of the unit tests."""

import logging
import ssl
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings

from tests.support.byte_server import Serve, Server

# the duration of an example depends on the machine, not on the code
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")


@pytest.fixture
def own_logging() -> Iterator[logging.Logger]:
    """Yield Holdfast's logger; let the test set up logging, and restore it afterwards."""
    root, logger = logging.getLogger(), logging.getLogger("holdfast")
    handlers, levels = root.handlers[:], (root.level, logger.level)
    root.handlers = []  # basicConfig(force=True) closes what it finds
    yield logger
    root.handlers = handlers
    root.setLevel(levels[0])
    logger.setLevel(levels[1])


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(*scripts: list[bytes], context: ssl.SSLContext | None = None) -> Server:
            server = Server(*scripts, context=context)
            stack.callback(server.close)
            return server

        yield start
