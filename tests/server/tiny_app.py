"""A small Flask application behind the real server, started as a process of its own.

The one argument is JSON: {"server": settings, "bridge": settings, "fault": name or null,
"stopped_file": path or null, "other_pair": [certificate, key]}.
"""

from __future__ import annotations

import itertools
import json
import ssl
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flask

from webhook import gunicorn_conf
from webhook.asgi import REVIEW, Bridge
from webhook.errors import ConfigurationError, ReviewError
from webhook.request_parser import RequestParser
from webhook.settings import ServerSettings
from webhook.tls import load_pair


@dataclass
class Life:
    orders: dict[str, Any]
    tls: list[ssl.SSLContext] = field(default_factory=list)

    def start(self) -> None:
        if self.orders["fault"] == "startup":
            raise ConfigurationError("no luck at start-up; try another day")

    def stop(self) -> None:
        if self.orders["stopped_file"]:
            Path(self.orders["stopped_file"]).write_text("stopped", encoding="utf-8")


def prepare(body: bytes) -> tuple[object, bool]:
    try:
        review = json.loads(body)
    except ValueError as error:
        raise ReviewError("not JSON") from error
    if review.get("prepare") == "raise":
        raise RuntimeError("prepare is broken")
    return review, review.get("block", False)


def make_flask(life: Life) -> flask.Flask:
    app = flask.Flask("tiny")
    calls = itertools.count(1)
    last = {"count": 0}

    @app.post("/mutate")
    def mutate() -> flask.typing.ResponseReturnValue:
        last["count"] = next(calls)
        review = flask.request.environ[REVIEW]
        if isinstance(review, ReviewError):
            return str(review), 400
        time.sleep(review.get("sleep", 0))
        return {
            "received": len(flask.request.get_data()),
            "thread": threading.current_thread().name,
        }

    @app.get("/healthz")
    def healthz() -> flask.typing.ResponseReturnValue:
        return "ok"

    @app.get("/count")
    def count() -> flask.typing.ResponseReturnValue:
        return str(last["count"])

    @app.get("/big")
    def big() -> flask.typing.ResponseReturnValue:
        return b"x" * 1_000_000

    @app.get("/huge")
    def huge() -> flask.typing.ResponseReturnValue:
        return b"x" * 20_000_000

    @app.get("/swap")
    def swap() -> flask.typing.ResponseReturnValue:
        certificate, key = life.orders["other_pair"]
        load_pair(life.tls[0], Path(certificate), Path(key))
        return "swapped"

    return app


def _fail(_parser: RequestParser) -> None:
    raise KeyError("the parser is\nbroken")


def main() -> None:
    orders = json.loads(sys.argv[1])
    life = Life(orders)
    server: dict[str, Any] = {
        name: Path(value) if name in {"certfile", "keyfile", "ready_file", "client_ca"} else value
        for name, value in orders["server"].items()
    }

    if orders["fault"] == "parser":
        RequestParser._finalize_headers = _fail  # type: ignore[method-assign,assignment]

    def make_app() -> Bridge:
        if orders["fault"] == "factory":
            raise ConfigurationError("the factory is closed; open it")
        if orders["fault"] == "certificate":
            server["certfile"].write_text("gone", encoding="utf-8")
        return Bridge(
            make_flask(life),
            prepare=prepare,
            on_startup=life.start,
            on_shutdown=life.stop,
            **orders["bridge"],
        )

    gunicorn_conf.run(make_app, ServerSettings(on_tls=life.tls.append, **server))


if __name__ == "__main__":
    main()
