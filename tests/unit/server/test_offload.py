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
    """Answers with the name of the thread; a body that begins with "block" may block."""

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
    made: list[AsyncHandler] = []

    def begin(handler: Handler, **settings: Any) -> AsyncHandler:
        made.append(AsyncHandler(cast("Any", handler), **settings))
        return made[-1]

    yield begin
    for each in made:
        each.stop()


async def ask(server: AsyncHandler, body: bytes = b"block", path: str = "/mutate") -> str:
    response = server.post(path, "", body, "")
    if not isinstance(response, HttpResponse):
        response = await response
    return response.body.decode().rstrip()


def test_review_that_cannot_block_is_answered_at_once(make: Make) -> None:
    assert make(Handler()).post("/mutate", "", b"{}", "") == text("MainThread")


def test_review_that_may_block_is_decided_in_the_pool(make: Make) -> None:
    assert asyncio.run(ask(make(Handler()))) == "holdfast-review_0"


def test_response_of_prepare_is_used(make: Make) -> None:
    assert make(Handler()).post("/x", "", b"", "") == text("not found", 404)
    assert make(Handler()).page("GET", "/x") == text("GET /x")


def broken() -> None:
    raise RuntimeError("broken")


@pytest.mark.parametrize("body", [b"{}", b"block"])
def test_broken_handler_is_500_and_logged_once(
    make: Make, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    assert asyncio.run(ask(make(Handler(broken)), body)) == "internal error; see the server's log"
    assert [record.name for record in caplog.records] == ["holdfast.server"]


def test_broken_prepare_and_page_are_500(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    server = make(Handler())
    assert server.page("GET", "/broken").status == 500
    response = server.post("/broken", "", b"", "")
    assert isinstance(response, HttpResponse)
    assert response.status == 500
    assert len(caplog.records) == 2


def test_plugin_that_ends_its_thread_is_500(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def end() -> None:
        raise SystemExit

    server = make(Handler(end))
    assert asyncio.run(ask(server)) == "internal error; see the server's log"
    assert len(caplog.records) == 1


def test_stuck_reviews_fail_at_the_deadline_then_at_once(make: Make) -> None:
    release = threading.Event()
    handler = Handler(release.wait)
    server = make(handler, pool_size=1, deadline=0.05)

    async def scenario() -> list[str]:
        together = await asyncio.gather(ask(server), ask(server), ask(server))
        release.set()
        return list(together)

    assert asyncio.run(scenario()) == [LATE, LATE, FULL]
    assert handler.decided == 1, "what waited past its deadline is never begun"


def test_place_is_free_again_when_the_stuck_review_has_ended(make: Make) -> None:
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


def test_review_whose_client_has_gone_is_not_decided(make: Make) -> None:
    release = threading.Event()
    handler = Handler(release.wait)
    server = make(handler, pool_size=1)

    async def scenario() -> None:
        stuck, gone = (asyncio.create_task(ask(server)) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        release.set()
        await stuck
        await ask(server)

    asyncio.run(scenario())
    assert handler.decided == 2


def test_loop_may_end_before_a_review_does(make: Make) -> None:
    release = threading.Event()
    server = make(Handler(release.wait), pool_size=1, deadline=0.05)
    assert asyncio.run(ask(server)) == LATE
    release.set()

    async def served() -> None:  # its thread goes on
        while await ask(server) == LATE:
            pass

    asyncio.run(served())


def test_large_reviews_do_not_gather_in_the_pool(make: Make) -> None:
    """Parsed reviews are many times as large: there is room for one of the largest."""
    release = threading.Event()
    server = make(Handler(release.wait), pool_size=4, body_limit=20)

    async def scenario() -> list[str]:
        inside = [asyncio.create_task(ask(server, b"block".ljust(size))) for size in (12, 8)]
        await asyncio.sleep(0)
        rejected = await ask(server)
        release.set()
        together = [await each for each in inside]
        return [rejected, *together, await ask(server, b"block".ljust(20))]

    rejected, *decided = asyncio.run(scenario())
    assert rejected == FULL
    assert all(name.startswith("holdfast-review") for name in decided)


def test_review_is_500_when_the_pool_is_closed(make: Make) -> None:
    server = make(Handler())
    server.stop()
    assert asyncio.run(ask(server)) == CLOSED
