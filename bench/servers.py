"""The servers that are compared. `python -m bench.servers NAME CERTIFICATE KEY READY_FILE`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]
from gunicorn.arbiter import Arbiter  # type: ignore[import-untyped]

from bench.app import BareBridge, make_bridge, make_flask
from webhook import gunicorn_conf
from webhook.settings import KEEPALIVE, ServerSettings


@dataclass(frozen=True)
class Files:
    """What a server is started with, and the file in which it tells its address."""

    certfile: Path
    keyfile: Path
    ready_file: Path


class Stock(BaseApplication):  # type: ignore[misc]
    """gunicorn as it comes, one worker, keep-alive as long as Holdfast's."""

    def __init__(self, make_app: Callable[[], object], files: Files, **settings: Any) -> None:
        self._make_app = make_app
        self._files = files
        self._settings = settings
        super().__init__()

    def load_config(self) -> None:
        """Set what all stock servers have in common, and this one's own."""
        common = {
            "bind": "127.0.0.1:0",
            "certfile": str(self._files.certfile),
            "keyfile": str(self._files.keyfile),
            "keepalive": int(KEEPALIVE),
            "control_socket_disable": True,
            "loglevel": "warning",
            "when_ready": self._tell_address,
        }
        for name, value in {**common, **self._settings}.items():
            self.cfg.set(name, value)

    def load(self) -> object:
        """Make the application, in the worker."""
        return self._make_app()

    def _tell_address(self, arbiter: Arbiter) -> None:
        host, port = arbiter.LISTENERS[0].getsockname()
        self._files.ready_file.write_text(f"{host}:{port}", encoding="utf-8")


def _holdfast(make_app: Callable[[], Any]) -> Callable[[Files], None]:
    def run(files: Files) -> None:
        gunicorn_conf.run(
            make_app,
            ServerSettings(
                host="127.0.0.1",
                port=0,
                certfile=files.certfile,
                keyfile=files.keyfile,
                ready_file=files.ready_file,
            ),
        )

    return run


def _stock(make_app: Callable[[], object], **settings: Any) -> Callable[[Files], None]:
    return lambda files: Stock(make_app, files, **settings).run()


SERVERS: dict[str, Callable[[Files], None]] = {
    "Holdfast, Flask": _holdfast(make_bridge),
    "stock asgi, bridge, Flask": _stock(make_bridge, worker_class="asgi"),
    "stock gthread 8, Flask": _stock(make_flask, worker_class="gthread", threads=8),
    "Holdfast, bare ASGI": _holdfast(BareBridge),
}

if __name__ == "__main__":
    SERVERS[sys.argv[1]](Files(*map(Path, sys.argv[2:5])))
