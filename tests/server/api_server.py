"""A small API server for lookups. It serves objects by path, at once, late, or on a signal."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_DELAY = 0.005
"""Maximum delay of a response in seconds, so that responses overtake each other."""
DRIP = 0.1
"""Seconds between two lines of an endless response: less than the timeout of a lookup."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # with the default of 5, the kernel drops connections


class ApiServer:
    """Serves the objects that a test stores. Other paths get a 404 as from Kubernetes."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.requested_paths: list[str] = []
        self.may_end = threading.Event()
        """Until it is set, responses do not end."""
        self.may_end.set()
        self.chance = random.Random(1)
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @contextmanager
    def serving(self) -> Iterator[ApiServer]:
        self._thread.start()
        try:
            yield self
        finally:
            self.may_end.set()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            server.requested_paths.append(self.path)
            time.sleep(server.chance.uniform(0, MAX_DELAY))
            document = server.objects.get(self.path)
            not_found = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(not_found if document is None else document).encode()
            self.wfile.write(b"HTTP/1.1 %d X\r\n" % (404 if document is None else 200))
            while not server.may_end.wait(DRIP):
                self.wfile.write(b"X-Wait: on\r\n")
            self.wfile.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    return Handler
