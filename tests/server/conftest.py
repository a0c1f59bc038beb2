from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.certs import authority
from tests.server.harness import Pair, Server, write_pair
from tests.server.serving import Serving, serve_holdfast

Serve = Callable[..., Server]


@pytest.fixture(scope="session")
def issued() -> list[authority.KeyPair]:
    """Two server certificates of one CA."""
    now = datetime.now(UTC)
    ca = authority.new_ca("test CA", now=now)
    return [
        authority.issue(ca, common_name=name, now=now, ip_addresses=["127.0.0.1"])
        for name in ("first", "second")
    ]


@pytest.fixture
def pair(tmp_path: Path, issued: list[authority.KeyPair]) -> Pair:
    return write_pair(tmp_path, "first", issued[0])


@pytest.fixture
def other_pair(tmp_path: Path, issued: list[authority.KeyPair]) -> Pair:
    return write_pair(tmp_path, "second", issued[1])


@pytest.fixture
def start(tmp_path: Path, pair: Pair) -> Iterator[Serve]:
    with ExitStack() as stack:

        def begin(**settings: Any) -> Server:
            settings.setdefault("pair", pair)
            return stack.enter_context(Server(tmp_path, **settings))

        yield begin


@pytest.fixture
def serve(start: Serve) -> Serve:
    return lambda **settings: start(**settings).wait_ready()


@pytest.fixture(scope="module", params=["json", "text"])
def serving(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    issued: list[authority.KeyPair],
) -> Iterator[Serving]:
    """`holdfast serve` with all log lines, in each format."""
    folder, log_format = tmp_path_factory.mktemp("serve"), str(request.param)
    with serve_holdfast(
        folder, issued[0], "--log-level", "debug", log_format=log_format
    ) as running:
        yield running
