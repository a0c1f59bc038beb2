"""Health and metrics of the controller, over plain HTTP: nothing there is secret or writable."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from webhook.errors import StartError

_TEXT = "text/plain; charset=utf-8"


class HealthServer:
    """Serves /healthz, /readyz and /metrics from a thread of its own."""

    def __init__(
        self, host: str, port: int, *, ready: Callable[[], bool], exposition: Callable[[], bytes]
    ) -> None:
        self._pages: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            "/healthz": lambda: (200, _TEXT, b"ok\n"),
            "/readyz": lambda: (200, _TEXT, b"ok\n") if ready() else (503, _TEXT, b"not ready\n"),
            "/metrics": lambda: (200, CONTENT_TYPE_LATEST, exposition()),
        }
        try:
            self._server = ThreadingHTTPServer((host, port), self._handler())
        except OSError as exc:
            raise StartError(
                f"cannot listen on {host}:{port}: {exc.strerror}; choose another port with "
                "--health-port"
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

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        pages = self._pages

        class Handler(BaseHTTPRequestHandler):
            """Answers GET of the pages above."""

            timeout = 5.0
            server_version = "holdfast"
            sys_version = ""

            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                status, kind, body = page() if page else (404, _TEXT, b"not found\n")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has
                """Keep quiet: probes come every few seconds."""

        return Handler
