from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication

import pytest

from webhook.asgi import REVIEW, Answer, Bridge
from webhook.bodies import BODIES_AT_ONCE, Message
from webhook.errors import ConfigurationError, ReviewError

Environ = dict[str, Any]


class App:
    """A WSGI application that remembers what it was called with."""

    def __init__(self, answer: Callable[[Environ], Iterable[bytes]] | None = None) -> None:
        self.calls: list[Environ] = []
        self.threads: list[str] = []
        self._answer = answer or (lambda _environ: [b"fi", b"ne"])

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        self.calls.append(environ)
        self.threads.append(threading.current_thread().name)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return self._answer(environ)


def inline(body: bytes) -> tuple[object, bool]:
    return {"size": len(body)}, False


def blocking(body: bytes) -> tuple[object, bool]:
    return {"size": len(body)}, True


def scope(method: str = "POST", path: str = "/mutate", **headers: str) -> dict[str, Any]:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "https",
        "path": path,
        "query_string": b"timeout=3s",
        "headers": [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ],
        "server": ("127.0.0.1", 8443),
        "client": ("127.0.0.2", 50000),
    }


def request(*chunks: bytes) -> list[Message]:
    return [
        {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}
        for number, chunk in enumerate(chunks, 1)
    ]


async def talk(bridge: Bridge, of: dict[str, Any], messages: list[Message]) -> list[Message]:
    incoming = iter(messages)
    sent: list[Message] = []

    async def receive() -> Message:
        return next(incoming)

    async def send(message: Message) -> None:
        sent.append(message)

    await bridge(of, receive, send)
    return sent


def answer(sent: list[Message]) -> tuple[int, bytes]:
    start, body = sent
    return start["status"], body["body"]


def call(bridge: Bridge, of: dict[str, Any], *chunks: bytes) -> tuple[int, bytes]:
    return answer(asyncio.run(talk(bridge, of, request(*chunks))))


@pytest.fixture
def make() -> Iterator[Callable[..., Bridge]]:
    made: list[Bridge] = []

    def begin(app: WSGIApplication, **settings: Any) -> Bridge:
        settings.setdefault("prepare", inline)
        made.append(Bridge(app, **settings))
        return made[-1]

    yield begin
    for bridge in made:
        bridge.close()


Make = Callable[..., Bridge]


def test_environ_is_what_wsgi_asks_for(make: Make) -> None:
    app = App()
    of = scope(path="/ä", host="h", content_type="application/json", x_two="1")
    of["headers"].append((b"x-two", b"2"))
    assert call(make(app), of, b"{}") == (200, b"fine")
    (environ,) = app.calls
    assert environ["wsgi.input"].read() == b"{}"
    assert environ[REVIEW] == {"size": 2}
    expected = {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/Ã¤",  # WSGI: UTF-8 bytes, read as Latin-1
        "QUERY_STRING": "timeout=3s",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8443",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.2",
        "CONTENT_TYPE": "application/json",
        "HTTP_HOST": "h",
        "HTTP_X_TWO": "1,2",
        "wsgi.url_scheme": "https",
        "wsgi.input_terminated": True,
    }
    assert {key: environ[key] for key in expected} == expected


def at_once(bridge: Bridge, body: bytes) -> Answer:
    answer = bridge.begin(scope(), body)
    assert isinstance(answer, tuple)
    return answer


def test_review_that_cannot_block_is_answered_at_once(make: Make) -> None:
    app = App()
    status, headers, body = at_once(make(app), b"{}")

    assert (status, body) == (200, b"fine")
    assert (b"content-length", b"4") in headers
    assert app.calls[0]["wsgi.input"].read() == b"{}"


def test_review_that_may_block_is_to_be_awaited(make: Make) -> None:
    app = App()
    coming = make(app, prepare=blocking).begin(scope(), b"{}")
    assert not isinstance(coming, tuple)
    assert app.calls == []
    assert asyncio.run(coming)[0] == 200
    assert len(app.calls) == 1


def test_body_that_is_too_long_is_refused_at_once(make: Make) -> None:
    app = App()
    status, headers, _ = at_once(make(app, body_limit=10), b"x" * 11)
    assert status == 413
    assert (b"connection", b"close") in headers
    assert app.calls == []


def test_what_is_no_review_is_answered_at_once_as_well(make: Make) -> None:
    def refuse(_body: bytes) -> tuple[object, bool]:
        raise ReviewError("no review")

    app = App()
    assert at_once(make(app, prepare=refuse), b"{}")[0] == 200
    assert isinstance(app.calls[0][REVIEW], ReviewError)


def test_answer_has_its_length(make: Make) -> None:
    start, _ = asyncio.run(talk(make(App()), scope(), request(b"{}")))
    assert start["headers"] == [(b"content-type", b"text/plain"), (b"content-length", b"4")]


def test_requests_share_no_environ(make: Make) -> None:
    app = App()
    bridge = make(app)
    call(bridge, scope(x_once="1"), b"{}")
    call(bridge, scope(), b"{}")
    assert "HTTP_X_ONCE" not in app.calls[1]


def test_many_header_names_are_not_remembered_for_ever(make: Make) -> None:
    bridge = make(App())
    for number in range(1000):
        call(bridge, scope(**{f"x_{number}": "1"}), b"{}")
    assert len(bridge._keys) <= 256


def test_get_has_no_review_and_no_body(make: Make) -> None:
    app = App()
    status, _ = answer(asyncio.run(talk(make(app), scope("GET", "/healthz"), [])))
    assert status == 200
    assert REVIEW not in app.calls[0]
    assert app.calls[0]["wsgi.input"].read() == b""


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([b""], id="empty"),
        pytest.param([b"{}"], id="whole"),
        pytest.param([b"{", b"", b"}"], id="pieces"),
        pytest.param([b"{}", b""], id="empty end"),
    ],
)
def test_body_is_joined(make: Make, chunks: list[bytes]) -> None:
    app = App()
    assert call(make(app), scope(), *chunks)[0] == 200
    assert app.calls[0]["wsgi.input"].read() == b"".join(chunks)


@pytest.mark.parametrize(
    ("headers", "chunks", "status"),
    [
        pytest.param({"content_length": "11"}, [], 413, id="announced"),
        pytest.param({"content_length": "10"}, [b"x" * 10], 200, id="exactly"),
        pytest.param({}, [b"x" * 11], 413, id="in one"),
        pytest.param({}, [b"x" * 6, b"x" * 5, b""], 413, id="in pieces"),
        pytest.param({"content_length": "1"}, [b"x" * 6, b"x" * 5], 413, id="understated"),
        pytest.param({"content_length": "junk"}, [b"x" * 11], 413, id="unreadable"),
    ],
)
def test_body_over_the_limit(
    make: Make, headers: dict[str, str], chunks: list[bytes], status: int
) -> None:
    app = App()
    bridge = make(app, body_limit=10)
    sent = asyncio.run(talk(bridge, scope(**headers), request(*chunks)))
    assert sent[0]["status"] == status
    assert ((b"connection", b"close") in sent[0]["headers"]) == (status == 413)
    assert len(app.calls) == (status == 200)


def test_reading_stops_where_the_limit_is_passed(make: Make) -> None:
    messages = request(b"x" * 6, b"x" * 6, b"never asked for")
    incoming = iter(messages)

    async def receive() -> Message:
        return next(incoming)

    async def send(_message: Message) -> None:
        """Take it."""

    asyncio.run(make(App(), body_limit=10)(scope(), receive, send))
    assert next(incoming)["body"] == b"never asked for"


def test_of_many_large_bodies_at_once_the_oldest_make_room(make: Make) -> None:
    app = App()
    bridge = make(app, body_limit=10)

    async def crowd() -> list[int]:
        begun, rest = asyncio.Semaphore(0), asyncio.Event()

        async def one() -> int:
            parts = iter(request(b"x" * 9, b"x"))
            seen: list[int] = []

            async def receive() -> Message:
                part = next(parts)
                if not part["more_body"]:
                    begun.release()
                    await rest.wait()
                return part

            async def send(message: Message) -> None:
                if "status" in message:
                    seen.append(message["status"])

            await bridge(scope(), receive, send)
            return seen[0]

        stalled = [asyncio.create_task(one()) for _ in range(BODIES_AT_ONCE + 2)]
        for _ in stalled:
            await begun.acquire()
        assert await status_of_a_whole_body() == 200, "who does not stall is not kept out"
        rest.set()
        return [await each for each in stalled]

    async def status_of_a_whole_body() -> int:
        sent = await talk(bridge, scope(), request(b"x" * 9, b"x"))
        return int(sent[0]["status"])

    statuses = asyncio.run(crowd())
    assert statuses == [429] * 3 + [200] * (BODIES_AT_ONCE - 1)
    assert call(bridge, scope(), b"x" * 9, b"x") == (200, b"fine"), "nothing stays counted"


@pytest.mark.parametrize(
    "before", [pytest.param([], id="at once"), pytest.param([b"{"], id="later")]
)
def test_client_that_leaves_gets_nothing(make: Make, before: list[bytes]) -> None:
    app = App()
    messages = [*request(*before, b"")[:-1], {"type": "http.disconnect"}]
    assert asyncio.run(talk(make(app), scope(), messages)) == []
    assert app.calls == []


def test_review_error_reaches_the_app(make: Make) -> None:
    error = ReviewError("unreadable")

    def prepare(_body: bytes) -> tuple[object, bool]:
        raise error

    app = App()
    assert call(make(app, prepare=prepare), scope(), b"junk") == (200, b"fine")
    assert app.calls[0][REVIEW] is error
    assert app.threads == ["MainThread"]


def test_broken_prepare_is_500(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def prepare(_body: bytes) -> tuple[object, bool]:
        raise KeyError("oh")

    app = App()
    assert call(make(app, prepare=prepare), scope(), b"{}")[0] == 500
    assert app.calls == []
    assert [record.name for record in caplog.records] == ["holdfast.server"]


@pytest.mark.parametrize("prepare", [inline, blocking])
def test_broken_app_is_500_and_logged_once(
    make: Make, caplog: pytest.LogCaptureFixture, prepare: Callable[[bytes], tuple[object, bool]]
) -> None:
    def broken(_environ: Environ) -> Iterable[bytes]:
        raise RuntimeError("broken")

    status, body = call(make(App(broken), prepare=prepare), scope(), b"{}")
    assert (status, body) == (500, b"internal error; see the server's log\n")
    assert [record.name for record in caplog.records] == ["holdfast.server"]


def test_iterable_of_the_app_is_closed(make: Make) -> None:
    closed: list[bool] = []

    class Chunks(list[bytes]):
        def close(self) -> None:
            closed.append(True)

    assert call(make(App(lambda _environ: Chunks([b"x"]))), scope(), b"{}") == (200, b"x")
    assert closed == [True]


def test_app_that_writes(make: Make) -> None:
    def app(_environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        start_response("201 Created", [])(b"written ")
        return [b"returned"]

    assert call(make(app), scope(), b"{}") == (201, b"written returned")


def test_review_that_may_block_runs_in_the_pool(make: Make) -> None:
    app = App()
    assert call(make(app, prepare=blocking), scope(), b"{}") == (200, b"fine")
    assert app.threads[0].startswith("holdfast-review")


def test_stuck_reviews_fail_at_the_deadline_then_at_once(make: Make) -> None:
    release = threading.Event()

    def stuck(_environ: Environ) -> Iterable[bytes]:
        release.wait()
        return [b"late"]

    app = App(stuck)
    bridge = make(app, prepare=blocking, pool_size=1, deadline=0.05)

    async def ask() -> tuple[int, bytes]:
        return answer(await talk(bridge, scope(), request(b"{}")))

    async def scenario() -> list[tuple[int, bytes]]:
        together = await asyncio.gather(ask(), ask(), ask())
        release.set()
        return list(together)

    late, waiting, refused = asyncio.run(scenario())
    assert late == (429, b"a plugin did not finish the review within 0.05 s; try again\n")
    assert waiting == late
    assert refused == (429, b"too many reviews are waiting on plugins that block; try again\n")
    assert len(app.calls) == 1, "what waited past its deadline is never begun"


def test_review_that_is_turned_away_is_answered_as_the_app_wants(make: Make) -> None:
    release = threading.Event()
    full: list[object] = []

    def stuck(_environ: Environ) -> Iterable[bytes]:
        release.wait()
        return [b"late"]

    def refuse(environ: Environ, why: str) -> bytes | None:
        return f"{environ[REVIEW]} {why}".encode() if "HTTP_POD" in environ else None

    bridge = make(
        App(stuck),
        prepare=blocking,
        pool_size=1,
        deadline=0.05,
        on_full=full.append,
        refuse=refuse,
    )

    async def ask(**headers: str) -> list[Message]:
        return await talk(bridge, scope(**headers), request(b"{}"))

    async def scenario() -> list[list[Message]]:
        together = await asyncio.gather(*(ask(pod="yes") for _ in range(3)), ask())
        release.set()
        return list(together)

    late, _waiting, refused, other = asyncio.run(scenario())
    assert answer(late) == (
        200,
        b"{'size': 2} a plugin did not finish the review within 0.05 s; try again",
    )
    assert answer(refused)[1].startswith(b"{'size': 2} too many reviews")
    assert (b"content-type", b"application/json") in refused[0]["headers"]
    assert answer(other)[0] == 429
    assert (b"retry-after", b"1") in other[0]["headers"]
    assert full == [{"size": 2}] * 2


def test_review_that_is_given_up_is_told_while_its_thread_still_runs(make: Make) -> None:
    release, running = threading.Event(), threading.Event()
    told: list[tuple[object, bool]] = []

    def stuck(_environ: Environ) -> Iterable[bytes]:
        running.set()
        release.wait()
        return [b"late"]

    bridge = make(
        App(stuck),
        prepare=blocking,
        deadline=0.05,
        on_deadline=lambda review: told.append((review, running.wait(5))),
    )
    status, _ = call(bridge, scope(), b"{}")
    release.set()

    assert status == 429
    assert told == [({"size": 2}, True)]


def test_place_is_free_again_when_the_stuck_review_has_ended(make: Make) -> None:
    release = threading.Event()

    def stuck(environ: Environ) -> Iterable[bytes]:
        if "HTTP_STUCK" in environ:
            release.wait()
        return [b"done"]

    bridge = make(App(stuck), prepare=blocking, pool_size=1, deadline=0.05)
    for _ in range(3):
        release.clear()
        assert call(bridge, scope(stuck="yes"), b"{}")[0] == 429
        release.set()
    while call(bridge, scope(), b"{}") != (200, b"done"):
        pass


def test_large_reviews_do_not_gather_in_the_pool(make: Make) -> None:
    """What they are parsed to is many times as large: there is room for one of the largest."""
    release, app = threading.Event(), App(lambda _: [b"late"] if release.wait() else [])
    bridge = make(app, prepare=blocking, pool_size=4, body_limit=10)

    async def ask(body: bytes) -> tuple[int, bytes]:
        return answer(await talk(bridge, scope(), request(body)))

    async def scenario() -> list[tuple[int, bytes]]:
        inside = [asyncio.create_task(ask(b"x" * size)) for size in (6, 4)]
        await asyncio.sleep(0)
        refused = await ask(b"x")
        release.set()
        together = [await one for one in inside]
        return [refused, *together, await ask(b"x" * 10)]

    refused, *answered = asyncio.run(scenario())
    assert refused == (429, b"too many reviews are waiting on plugins that block; try again\n")
    assert answered == [(200, b"late")] * 3


def test_closed_pool_is_500(make: Make) -> None:
    bridge = make(App(), prepare=blocking)
    bridge.close()
    assert call(bridge, scope(), b"{}") == (500, b"the server is shutting down; try again\n")


LIFE: list[Message] = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]


def test_lifespan_runs_the_hooks(make: Make) -> None:
    hooks: list[str] = []
    bridge = make(
        App(), on_startup=lambda: hooks.append("start"), on_shutdown=lambda: hooks.append("stop")
    )
    sent = asyncio.run(talk(bridge, {"type": "lifespan"}, LIFE))
    assert [one["type"] for one in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert hooks == ["start", "stop"]


def test_failing_hook_is_told_to_the_server(make: Make) -> None:
    def fail() -> None:
        raise ConfigurationError("no such file; make one")

    sent = asyncio.run(talk(make(App(), on_startup=fail), {"type": "lifespan"}, LIFE))
    assert sent == [{"type": "lifespan.startup.failed", "message": "no such file; make one"}]


def test_websocket_is_closed(make: Make) -> None:
    sent = asyncio.run(talk(make(App()), {"type": "websocket"}, []))
    assert sent == [{"type": "websocket.close"}]


def test_json_review_of_the_app(make: Make) -> None:
    app = App()
    call(make(app, prepare=lambda body: (json.loads(body), False)), scope(), b'{"kind": "x"}')
    assert app.calls[0][REVIEW] == {"kind": "x"}
