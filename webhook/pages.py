"""A few pages over plain HTTP, from a thread of their own: nothing can be written there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from webhook.errors import StartError

TEXT = "text/plain; charset=utf-8"
_CLEAN = {501: 405, 505: 400}
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})

Page = Callable[[], tuple[int, str, bytes]]
"""Makes a page: its status, its type, its body."""


class PageServer:
    """Serves pages by their path.

    With `local`, those alone who call it by a name of this machine: a foreign page in somebody's
    browser could otherwise read it under a name of its own (DNS rebinding). `option` is the one
    that chooses the port, for the error. Raises StartError where the port is taken.
    """

    def __init__(
        self, host: str, port: int, pages: Mapping[str, Page], *, option: str, local: bool = False
    ) -> None:
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(pages, local=local))
        except OSError as exc:
            raise StartError(
                f"cannot listen on {host}:{port}: {exc.strerror}; choose another port with {option}"
            ) from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.server_address[1]

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """End, and close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(pages: Mapping[str, Page], *, local: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET of the pages."""

        timeout = 5.0
        server_version = "holdfast"
        sys_version = ""

        def do_GET(self) -> None:
            status, kind, body = self._page()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _page(self) -> tuple[int, str, bytes]:
            if local and _called(self.headers.get("Host", "")) not in LOCAL_HOSTS:
                return 403, TEXT, b"call this page by the name localhost\n"
            page = pages.get(self.path.partition("?")[0])
            return page() if page else (404, TEXT, b"not found\n")

        def send_error(
            self, code: int, message: str | None = None, explain: str | None = None
        ) -> None:
            # Its own way says 501 of other methods and 505 of other versions, which are no faults.
            super().send_error(_CLEAN.get(code, code), message, explain)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has
            """Keep quiet: probes come every few seconds."""

    return Handler


def _called(host: str) -> str | None:
    """Give the name that a request calls this server by; None where it is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
