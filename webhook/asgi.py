"""The bridge between gunicorn's event loop and Flask.

A review that cannot block is answered right where it arrives, in the event loop: handing it to a
thread costs three times the CPU of answering it. Only a review that concerns a plugin which may
wait (a lookup in the cluster, a third party's code) goes to a bounded pool of threads, and is
given up at a deadline.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from io import BytesIO
from typing import Any
from wsgiref.types import WSGIApplication

from webhook.bodies import BODY_LIMIT, Bodies, BodyRefusedError, Message, Receive
from webhook.errand import Errand
from webhook.errors import HoldfastError, ReviewError
from webhook.pool import Pool
from webhook.room import Room

POOL_SIZE = 16
"""Threads for reviews that may block; as many more may wait for one of them. The bodies of all of
them together have no more bytes than the longest body may have: launcher pods have 20 KB."""
DEADLINE = 2.5
"""Seconds for a review that may block: less than the 3 s that the API server waits for us."""
RETRY_AFTER = b"1"
"""Seconds after which the API server may ask again where there are too many."""

REVIEW = "holdfast.review"
"""Where in the WSGI environ the parsed review is, or the ReviewError that says why there is none"""

Scope = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]
Prepare = Callable[[bytes], tuple[object, bool]]
Refuse = Callable[[dict[str, Any], str], bytes | None]
Answer = tuple[int, list[tuple[bytes, bytes]], bytes]

_logger = logging.getLogger("holdfast.server")

_KNOWN_NAMES = 256
"""Header names whose environ keys are remembered: clients choose names, so there is an end."""


class Bridge:
    """An ASGI application that calls a WSGI one.

    `prepare` turns a POST's body into the review and tells whether answering it may block; what it
    returns, or the ReviewError that it raises, lies in the environ under REVIEW. `on_startup` runs
    in the worker before the first connection is taken: its exception stops the server;
    `on_shutdown` runs when the last is closed. `on_deadline` is told each review that is given up
    at its deadline, while its thread still runs; `on_full` each for which there is no place.
    `refuse` makes the answer to such a review, of its environ and the reason, as JSON; where there
    is none, it is HTTP 429. `deadline` is in seconds, `body_limit` in bytes.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        prepare: Prepare,
        on_startup: Callable[[], None] | None = None,
        on_shutdown: Callable[[], None] | None = None,
        on_deadline: Callable[[object], None] | None = None,
        on_full: Callable[[object], None] | None = None,
        refuse: Refuse | None = None,
        body_limit: int = BODY_LIMIT,
        pool_size: int = POOL_SIZE,
        deadline: float = DEADLINE,
    ) -> None:
        self._app = app
        self._prepare = prepare
        self._on_startup = on_startup
        self._on_shutdown = on_shutdown
        self._on_deadline = on_deadline
        self._on_full = on_full
        self._refuse = refuse
        self._body_limit = body_limit
        self._deadline = deadline
        self._pool = Pool(pool_size, "holdfast-review")
        self._room = Room(2 * pool_size, body_limit)
        self._bodies = Bodies(body_limit)
        self._keys = {b"content-type": "CONTENT_TYPE", b"content-length": "CONTENT_LENGTH"}
        self._constant_environ: dict[str, Any] = {
            "SCRIPT_NAME": "",
            "wsgi.version": (1, 0),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            # The body is whole: without this Flask takes a chunked one for empty.
            "wsgi.input_terminated": True,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the life of the worker."""
        kind = scope["type"]
        if kind == "http":
            answer = await self._answer(scope, receive)
            if answer is not None:
                status, headers, body = answer
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": body})
        elif kind == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close"})

    def begin(self, scope: Scope, body: bytes) -> Answer | Coroutine[Any, Any, Answer]:
        """Answer a POST whose body is whole; where that may block, give what is to be awaited."""
        if len(body) > self._body_limit:
            return _refused(self._bodies.too_large())
        environ = self._environ(scope)
        return self._answer_now(environ, body) or self._call_in_pool(environ, len(body))

    def close(self) -> None:
        """Take no more work into the pool; what waits there is dropped, what runs may finish."""
        self._pool.close()

    async def _answer(self, scope: Scope, receive: Receive) -> Answer | None:
        environ = self._environ(scope)
        if scope["method"] != "POST":
            environ["wsgi.input"] = BytesIO()
            return self._call(environ)
        try:
            body = await self._bodies.read(environ.get("CONTENT_LENGTH", ""), receive)
        except BodyRefusedError as refusal:
            return _refused(refusal)
        if body is None:
            return None
        return self._answer_now(environ, body) or await self._call_in_pool(environ, len(body))

    def _answer_now(self, environ: dict[str, Any], body: bytes) -> Answer | None:
        """Read a review into the environ, and answer it unless that may block."""
        environ["wsgi.input"] = BytesIO(body)
        try:
            environ[REVIEW], may_block = self._prepare(body)
        except ReviewError as error:
            environ[REVIEW], may_block = error, False
        except Exception:
            _logger.exception("cannot read a review")
            return _text(500, "internal error while reading the review; see the server's log")
        return None if may_block else self._call(environ)

    def _environ(self, scope: Scope) -> dict[str, Any]:
        environ = self._constant_environ.copy()
        path = scope["path"]
        server = scope.get("server") or ("", 0)
        environ["REQUEST_METHOD"] = scope["method"]
        environ["PATH_INFO"] = path if path.isascii() else path.encode().decode("latin-1")
        environ["QUERY_STRING"] = scope["query_string"].decode("latin-1")
        environ["SERVER_PROTOCOL"] = "HTTP/" + scope["http_version"]
        environ["SERVER_NAME"] = server[0]
        environ["SERVER_PORT"] = str(server[1])
        environ["REMOTE_ADDR"] = (scope.get("client") or ("",))[0]
        environ["wsgi.url_scheme"] = scope["scheme"]
        keys = self._keys
        for name, value in scope["headers"]:
            key = keys.get(name) or self._key(name)
            text = value.decode("latin-1")
            environ[key] = f"{environ[key]},{text}" if key in environ else text
        return environ

    def _key(self, name: bytes) -> str:
        key = "HTTP_" + name.decode("latin-1").upper().replace("-", "_")
        if len(self._keys) < _KNOWN_NAMES:
            self._keys[name] = key
        return key

    def _call(self, environ: dict[str, Any]) -> Answer:
        """Call the WSGI application; whatever it raises is logged, once, and answered with 500."""
        try:
            return self._call_app(environ)
        except Exception:
            _logger.exception(
                "cannot answer %s %.200r", environ["REQUEST_METHOD"], environ["PATH_INFO"]
            )
            return _text(500, "internal error; see the server's log")

    def _call_app(self, environ: dict[str, Any]) -> Answer:
        status = ""
        headers: list[tuple[str, str]] = []
        chunks: list[bytes] = []

        def start_response(
            line: str, fields: list[tuple[str, str]], exc_info: object = None, /
        ) -> Callable[[bytes], object]:
            nonlocal status, headers
            del exc_info  # nothing has been sent yet, so a second call simply replaces the first
            status, headers = line, fields
            return chunks.append

        result = self._app(environ, start_response)
        try:
            chunks.extend(result)
        finally:
            close = getattr(result, "close", None)
            if close is not None:
                close()
        body = b"".join(chunks)
        fields = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers
        ]
        if not any(name == b"content-length" for name, _ in fields):
            fields.append((b"content-length", b"%d" % len(body)))
        return int(status[:3]), fields, body

    async def _call_in_pool(self, environ: dict[str, Any], size: int) -> Answer:
        if not self._room.take(size):
            if self._on_full is not None:
                self._on_full(environ[REVIEW])
            return self._turned_away(
                environ, "too many reviews are waiting on plugins that block; try again"
            )
        errand = Errand(partial(self._call_in_thread, environ), partial(self._room.leave, size))
        try:
            return await errand.outcome(self._pool, self._deadline)
        except RuntimeError:
            return _text(500, "the server is shutting down; try again")
        except TimeoutError:
            if self._on_deadline is not None:
                self._on_deadline(environ[REVIEW])
            return self._turned_away(
                environ,
                f"a plugin did not finish the review within {self._deadline:g} s; try again",
            )

    def _call_in_thread(self, environ: dict[str, Any]) -> Answer:
        try:
            return self._call(environ)
        except BaseException:
            _logger.exception("a plugin would have ended its thread")
            return _text(500, "internal error; see the server's log")

    def _turned_away(self, environ: dict[str, Any], why: str) -> Answer:
        """Answer a review that cannot be decided now; whoever sends many can bring that about."""
        refusal = None if self._refuse is None else self._refuse(environ, why)
        if refusal is None:
            return _text(429, why)
        length = b"%d" % len(refusal)
        return 200, [(b"content-type", b"application/json"), (b"content-length", length)], refusal

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            if self._on_startup is not None:
                self._on_startup()
        except Exception as error:
            if not isinstance(error, HoldfastError):
                _logger.exception("start-up failed")
            text = str(error) or type(error).__name__
            await send({"type": "lifespan.startup.failed", "message": text})
            self.close()
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.close()
        if self._on_shutdown is not None:
            self._on_shutdown()
        await send({"type": "lifespan.shutdown.complete"})


def _refused(refusal: BodyRefusedError) -> Answer:
    return _text(refusal.status, str(refusal), close=True)


def _text(status: int, text: str, *, close: bool = False) -> Answer:
    body = f"{text}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
    ]
    if status == 429:
        headers.append((b"retry-after", RETRY_AFTER))  # the API server then asks once more itself
    if close:
        headers.append((b"connection", b"close"))
    return status, headers, body
