"""A few pages over plain HTTP, from a thread of their own: nothing can be written there."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from webhook import listening
from webhook.errors import StartError
from webhook.plain_server import CONNECTIONS, DEADLINE, HEAD_LIMIT, PlainServer, listen

TEXT = "text/plain; charset=utf-8"
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
STOP_PATIENCE = 1.0
"""Seconds that the end waits for a page that is being made."""

_CLEAN = {501: 405, 505: 400}
_log = logging.getLogger("holdfast.pages")

Page = Callable[[], tuple[int, str, bytes]]
"""Makes a page: its status, its type, its body."""


class PageServer:
    """Serves pages by their path.

    With `local`, those alone who call it by a name of this machine: a foreign page in somebody's
    browser could otherwise read it under a name of its own (DNS rebinding). `option` is the one
    that chooses the port, for the error. `connections` is how many may be open, `deadline` how
    many seconds each has. Pages are made one at a time. Raises StartError where the port is taken.
    """

    def __init__(
        self,
        host: str,
        port: int,
        pages: Mapping[str, Page],
        *,
        option: str,
        local: bool = False,
        connections: int = CONNECTIONS,
        deadline: float = DEADLINE,
    ) -> None:
        try:
            listener = listen(host, port, deadline)
        except OSError as exc:
            raise StartError(
                f"cannot listen on {listening.written(host, port)}: {exc.strerror}; "
                f"choose another port with {option}"
            ) from None
        self.port: int = listener.getsockname()[1]
        """The port that it listens on."""
        respond = partial(answer, pages, local=local)
        self._server = PlainServer(listener, respond, connections=connections, deadline=deadline)
        self._thread = threading.Thread(target=self._server.run, name="pages", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """End, and close the port; a page that is still being made keeps nobody waiting."""
        self._server.stop()
        self._thread.join(STOP_PATIENCE)


def answer(pages: Mapping[str, Page], head: bytes, *, local: bool) -> bytes:
    """Make the whole answer to a request's head; none at all where there is no request in it."""
    handler = _Handler(pages, head, local=local)
    handler.handle()
    return handler.answer.getvalue()


class _Handler(BaseHTTPRequestHandler):
    """Answers GET of the pages, from a head that has come to its end or to its limit."""

    server_version = "holdfast"
    sys_version = ""

    def __init__(self, pages: Mapping[str, Page], head: bytes, *, local: bool) -> None:
        # Its own would read from a socket, and wait there for as long as a client likes.
        self._pages = pages
        self._local = local
        self._whole = len(head) <= HEAD_LIMIT
        self.rfile = io.BytesIO(head)
        self.wfile = self.answer = io.BytesIO()

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if not self._whole:
            self.send_error(431)
        return self._whole

    def do_GET(self) -> None:
        status, kind, body = self._page()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _page(self) -> tuple[int, str, bytes]:
        if self._local and _called(self.headers.get("Host", "")) not in LOCAL_HOSTS:
            return 403, TEXT, b"call this page by the name localhost\n"
        path = self.path.partition("?")[0]
        page = self._pages.get(path)
        if page is None:
            return 404, TEXT, b"not found\n"
        try:
            return page()
        except Exception:  # noqa: BLE001 - whatever it was, it is logged and answered
            _log.exception("the page %s could not be made", path)
            return 500, TEXT, b"this page could not be made; the log says why\n"

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        # Its own way says 501 of other methods and 505 of other versions, which are no faults.
        super().send_error(_CLEAN.get(code, code), message, explain)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has
        """Keep quiet: probes come every few seconds."""


def _called(host: str) -> str | None:
    """Give the name that a request calls this server by; None where it is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
