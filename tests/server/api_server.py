"""A small API server for lookups: objects by path, returned at once, late, or on a signal."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LATEST = 0.005
"""Seconds after which an object is given at the latest: so one overtakes the other."""
DRIP = 0.1
"""Seconds between two lines of an answer that does not end: less than a lookup may wait."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # the kernel drops who comes when five wait


class ApiServer:
    """Gives the objects that a test lays in; a path of none is answered as Kubernetes does."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.asked: list[str] = []
        self.may_end = threading.Event()
        """Until it is set, each answer goes on without an end."""
        self.may_end.set()
        self._chance = random.Random(1)
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

    def write_kubeconfig(self, file: Path) -> None:
        named = {
            "clusters": [{"name": "x", "cluster": {"server": self.address}}],
            "users": [{"name": "x", "user": {"token": "x"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        }
        kinds = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
        file.write_text(json.dumps(kinds | named))

    def wait(self) -> None:
        time.sleep(self._chance.uniform(0, LATEST))


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            server.asked.append(self.path)
            server.wait()
            found = server.objects.get(self.path)
            missing = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(missing if found is None else found).encode()
            self.wfile.write(b"HTTP/1.1 %d X\r\n" % (404 if found is None else 200))
            while not server.may_end.wait(DRIP):
                self.wfile.write(b"X-Wait: on\r\n")
            self.wfile.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has
            pass

    return Handler
