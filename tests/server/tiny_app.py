"""A small handler behind the real server, started in a separate process.

The one argument is JSON: {"server": settings, "handler": settings, "fault": name or null,
"stopped_file": path}.
"""

import itertools
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.server import gunicorn_app
from holdfast.webhook.server.connection import Connection
from holdfast.webhook.server.handler import JSON, HttpResponse, text
from holdfast.webhook.server.offload import AsyncHandler
from holdfast.webhook.server.settings import ServerSettings
from holdfast.webhook.telemetry import logs

SIZES = {"/big": 1_000_000, "/huge": 20_000_000}
"""Sizes of the large pages, in bytes."""


class Prepared(NamedTuple):
    review: dict[str, Any]
    size: int
    may_block: bool


class TinyHandler:
    """Handles each review as its JSON says, and serves pages that a test reads."""

    def __init__(self) -> None:
        self._calls = itertools.count(1)
        self._count = 0

    def prepare(self, path: str, _kind: str, body: bytes, *_more: str) -> Prepared | HttpResponse:
        if path != "/mutate":
            return self.page("POST", path)
        review = json.loads(body)
        return Prepared(review, len(body), review.get("block", False))

    def decide(self, prepared: Prepared) -> HttpResponse:
        self._count = next(self._calls)
        time.sleep(prepared.review.get("sleep", 0))
        content = {"received": prepared.size, "thread": threading.current_thread().name}
        return HttpResponse(200, json.dumps(content).encode(), JSON)

    def reject_late(self, _prepared: Prepared, seconds: float) -> HttpResponse:
        return text(f"not decided within {seconds:g} s", 429)

    def reject_full(self, _prepared: Prepared) -> HttpResponse:
        return text("too many wait", 429)

    def page(self, _method: str, path: str) -> HttpResponse:
        if path in SIZES:
            return HttpResponse(200, b"x" * SIZES[path])
        pages = {"/healthz": b"ok", "/count": b"%d" % self._count}
        content = pages.get(path)
        return text("not found", 404) if content is None else HttpResponse(200, content)


def _fail(_connection: Connection) -> None:
    raise KeyError("the parser is\nbroken")


def main() -> None:
    orders = json.loads(sys.argv[1])

    def start() -> None:
        if orders["fault"] == "startup":
            raise ConfigurationError("startup failed on purpose; remove the fault")

    class TinyServer(AsyncHandler):
        def stop(self) -> None:
            super().stop()
            Path(orders["stopped_file"]).write_text("stopped", encoding="utf-8")

    logs.set_up()
    server: dict[str, Any] = {
        name: Path(value) if name in {"certfile", "keyfile", "ready_file", "client_ca"} else value
        for name, value in orders["server"].items()
    }

    if orders["fault"] == "parser":
        Connection.on_headers_complete = _fail  # type: ignore[method-assign,assignment]

    def make_app() -> AsyncHandler:
        if orders["fault"] == "factory":
            raise ConfigurationError("the factory failed on purpose; remove the fault")
        if orders["fault"] == "certificate":
            server["certfile"].write_text("gone", encoding="utf-8")
        return TinyServer(cast("Any", TinyHandler()), on_startup=start, **orders["handler"])

    gunicorn_app.run(make_app, ServerSettings(**server))


if __name__ == "__main__":
    main()
