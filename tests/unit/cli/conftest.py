"""A served cluster for each test of a command."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fakes import FakeApi
from tests.support.served import ServedApi, served


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ServedApi]:
    """Yield an empty API server that is served, and can run commands against it."""
    with served(FakeApi(), tmp_path) as api_server:
        yield api_server
