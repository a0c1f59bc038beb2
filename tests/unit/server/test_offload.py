import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from holdfast.webhook.server.handler import HttpResponse, text
from holdfast.webhook.server.offload import AsyncHandler

LATE, FULL, CLOSED = "late", "full", "the server is shutting down; try again"


class Prepared:
    def __init__(self, body: bytes) -> None:
        self.body = body
        self.may_block = body.startswith(b"block")


class Handler:
    """Responds with the name of its thread; a body that begins with "block" may block."""

    def __init__(self, decide: Callable[[], Any] = lambda: None) -> None:
        self.decided = 0
        self._decide = decide

    def prepare(self, path: str, _kind: str, body: bytes, *_more: str) -> Prepared | HttpResponse:
        if path == "/broken":
            raise KeyError("oh")
        return Prepared(body) if path == "/mutate" else text("not found", 404)

    def decide(self, _prepared: Prepared) -> HttpResponse:
        self.decided += 1
        self._decide()
        return text(threading.current_thread().name)

    def reject_late(self, _prepared: Prepared, _seconds: float) -> HttpResponse:
        return text(LATE, 429)

    def reject_full(self, _prepared: Prepared) -> HttpResponse:
        return text(FULL, 429)

    def page(self, method: str, path: str) -> HttpResponse:
        if path == "/broken":
            raise KeyError("oh")
        return text(f"{method} {path}")


Make = Callable[..., AsyncHandler]


@pytest.fixture
def make() -> Iterator[Make]:
    servers: list[AsyncHandler] = []

    def begin(handler: Handler, **settings: Any) -> AsyncHandler:
        servers.append(AsyncHandler(cast("Any", handler), **settings))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


async def ask(server: AsyncHandler, body: bytes = b"block", path: str = "/mutate") -> str:
    response = server.post(path, "", body, "")
    if not isinstance(response, HttpResponse):
        response = await response
    return response.body.decode().rstrip()


def test_non_blocking_review_is_answered_in_the_calling_thread(make: Make) -> None:
    assert make(Handler()).post("/mutate", "", b"{}", "") == text("MainThread")


def test_blocking_review_is_decided_in_the_pool(make: Make) -> None:
    assert asyncio.run(ask(make(Handler()))) == "holdfast-review_0"


def test_response_from_prepare_is_returned(make: Make) -> None:
    assert make(Handler()).post("/x", "", b"", "") == text("not found", 404)
    assert make(Handler()).page("GET", "/x") == text("GET /x")


@pytest.mark.parametrize(
    ("body", "error"),
    [(b"{}", RuntimeError()), (b"block", RuntimeError()), (b"block", SystemExit())],
)
def test_broken_handler_returns_internal_error_and_logs_once(
    make: Make, caplog: pytest.LogCaptureFixture, body: bytes, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    assert asyncio.run(ask(make(Handler(fail)), body)) == "internal error; see the server's log"
    assert [record.name for record in caplog.records] == ["holdfast.server"]


def test_broken_prepare_and_page_return_500(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    server = make(Handler())
    assert server.page("GET", "/broken").status == 500
    response = server.post("/broken", "", b"", "")
    assert isinstance(response, HttpResponse)
    assert response.status == 500
    assert len(caplog.records) == 2


def test_stuck_reviews_time_out_and_excess_is_rejected(make: Make) -> None:
    release = threading.Event()
    handler = Handler(release.wait)
    server = make(handler, pool_size=1, deadline=0.05)

    async def scenario() -> list[str]:
        responses = await asyncio.gather(ask(server), ask(server), ask(server))
        release.set()
        return list(responses)

    assert asyncio.run(scenario()) == [LATE, LATE, FULL]
    assert handler.decided == 1, "a review that waited past its deadline is never started"


def test_capacity_is_freed_when_a_stuck_review_ends(make: Make) -> None:
    release = threading.Event()
    server = make(Handler(release.wait), pool_size=1, deadline=0.05)

    async def scenario() -> None:
        for _ in range(3):
            release.clear()
            assert await ask(server) == LATE
            release.set()
            while await ask(server) != "holdfast-review_0":
                pass

    asyncio.run(scenario())


def test_cancelled_queued_review_is_not_decided(make: Make) -> None:
    release = threading.Event()
    handler = Handler(release.wait)
    server = make(handler, pool_size=1)

    async def scenario() -> None:
        stuck, cancelled = (asyncio.create_task(ask(server)) for _ in range(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        release.set()
        await stuck
        await ask(server)

    asyncio.run(scenario())
    assert handler.decided == 2


def test_event_loop_can_end_before_a_review(make: Make) -> None:
    release = threading.Event()
    server = make(Handler(release.wait), pool_size=1, deadline=0.05)
    assert asyncio.run(ask(server)) == LATE
    release.set()

    async def served() -> None:  # the pool's thread still runs
        while await ask(server) == LATE:
            pass

    asyncio.run(served())


def test_large_reviews_in_the_pool_are_limited(make: Make) -> None:
    """Parsed reviews are many times as large as bodies: there is room for one of maximum size."""
    release = threading.Event()
    server = make(Handler(release.wait), pool_size=4, body_limit=20)

    async def scenario() -> list[str]:
        tasks = [asyncio.create_task(ask(server, b"block".ljust(size))) for size in (12, 8)]
        await asyncio.sleep(0)
        rejected = await ask(server)
        release.set()
        names = [await task for task in tasks]
        return [rejected, *names, await ask(server, b"block".ljust(20))]

    rejected, *decided = asyncio.run(scenario())
    assert rejected == FULL
    assert all(name.startswith("holdfast-review") for name in decided)


def test_review_is_rejected_after_shutdown(make: Make) -> None:
    server = make(Handler())
    server.stop()
    assert asyncio.run(ask(server)) == CLOSED
