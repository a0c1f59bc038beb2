"""Running gunicorn from the program itself: settings, the listening socket, the master process."""

from __future__ import annotations

import errno
import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]
from gunicorn.arbiter import Arbiter  # type: ignore[import-untyped]
from gunicorn.glogging import Logger  # type: ignore[import-untyped]

from webhook import listening, logs
from webhook.asgi import Bridge
from webhook.errors import HoldfastError, StartError
from webhook.settings import ServerSettings
from webhook.tls import SHARED_MEMORY, load_pair, new_context
from webhook.worker import FINISH, HoldfastWorker

LIFESPAN = 3.0
"""Seconds for what runs at the worker's end, before the master kills it."""
HEARTBEAT = 30
"""Seconds without a sign of life after which the master kills the worker and starts another."""
BACKLOG = 1024
"""Connections that the kernel holds until the worker accepts them."""

_logger = logging.getLogger("holdfast.server")


def run(make_app: Callable[[], Bridge], settings: ServerSettings) -> NoReturn:
    """Serve until SIGTERM or SIGINT, then exit.

    Certificate and port are tried here, before anything is forked: where they cannot be used, one
    line on standard error says so, and the exit status is 1. `make_app` is called in the worker,
    so that threads and connections made there live where they are used; its exception, or one of
    the application's start-up, ends the server with status 3.
    """
    _log_to_stderr()
    try:
        context = new_context(settings.client_ca)
        if not settings.await_certificate:
            load_pair(context, settings.certfile, settings.keyfile)
        listener = listen(settings.host, settings.port)
    except StartError as error:
        sys.stderr.write(f"holdfast: {error}\n")
        raise SystemExit(1) from error
    if settings.ready_file is not None:
        settings.ready_file.unlink(missing_ok=True)
    _Application(make_app, settings, listener.detach()).run()
    raise SystemExit(0)


def listen(host: str, port: int) -> socket.socket:
    """Take the port. Raises StartError when it cannot be had.

    gunicorn itself would try five times, a second apart, and say so each time.
    """
    try:
        return listening.bound(host, port, BACKLOG)
    except (OSError, OverflowError) as error:
        raise StartError(
            f"cannot listen on {listening.written(host, port)}: {_cure(error)}"
        ) from error


def _cure(error: OSError | OverflowError) -> str:
    code = getattr(error, "errno", None)
    if code == errno.EADDRINUSE:
        return "address already in use; stop the other process or choose another port with --port"
    if code in {errno.EACCES, errno.EPERM}:
        return "permission denied; choose a port above 1023 with --port"
    if code == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return "this machine has no such address; choose another with --host"
    return str(error)


class _Application(BaseApplication):  # type: ignore[misc]
    """gunicorn's view of the server; the worker finds `settings` here."""

    def __init__(self, make_app: Callable[[], Bridge], settings: ServerSettings, fd: int) -> None:
        self.settings = settings
        self._make_app = make_app
        self._fd = fd
        super().__init__(prog="holdfast")

    def load_config(self) -> None:
        for name, value in _gunicorn_settings(self.settings, self._fd).items():
            self.cfg.set(name, value)

    def load(self) -> Bridge:
        try:
            return self._make_app()
        except HoldfastError as error:
            _logger.error("cannot start: %s", error)  # noqa: TRY400 - its text is all there is
            raise SystemExit(Arbiter.WORKER_BOOT_ERROR) from error
        except Exception as error:
            _logger.exception("cannot start")
            raise SystemExit(Arbiter.WORKER_BOOT_ERROR) from error


def _gunicorn_settings(settings: ServerSettings, fd: int) -> dict[str, Any]:
    return {
        "bind": f"fd://{fd}",
        "workers": 1,  # one loop answers thousands of reviews a second; more pods, not processes
        "worker_class": HoldfastWorker,
        "worker_tmp_dir": str(SHARED_MEMORY) if os.access(SHARED_MEMORY, os.W_OK) else None,
        "certfile": os.devnull,  # a sign that it is TLS; the worker makes the context
        "asgi_loop": "asyncio",
        "asgi_lifespan": "on",
        "http_parser": "python",  # see request_parser.py
        "limit_request_fields": 64,
        "keepalive": max(1, math.ceil(settings.keepalive)),  # 0 would mean none; see worker.py
        "timeout": HEARTBEAT,
        "graceful_timeout": math.ceil(settings.drain + FINISH + LIFESPAN),
        "control_socket_disable": True,  # it wants a writable directory, and nobody asks it
        "proc_name": "holdfast",
        "accesslog": None,
        "logger_class": _Log,
        "when_ready": _watch_stdin if settings.exit_with_stdin else _ignore,
    }


def _ignore(_arbiter: Arbiter) -> None:
    """Do nothing when the master is ready."""


def _watch_stdin(_arbiter: Arbiter) -> None:
    """End the master with its standard input."""
    threading.Thread(target=_end_with_stdin, name="holdfast-stdin", daemon=True).start()


def _end_with_stdin() -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        _logger.warning("cannot read standard input; taken for its end")
    os.kill(os.getpid(), signal.SIGTERM)


class _Log(Logger):  # type: ignore[misc]
    """gunicorn's log, led to `holdfast.server`; its running commentary only at debug level."""

    access_log_enabled = False

    def setup(self, cfg: object) -> None:
        self.cfg = cfg
        self.error_log = _logger

    def info(self, msg: str, *args: object, **kwargs: Any) -> None:
        self.error_log.debug(msg, *args, **kwargs)

    def error(self, msg: str, *args: object, **kwargs: Any) -> None:
        # Said after a worker could not start, of which the worker itself has said why.
        echo = msg in {"Shutting down: %s", "Reason: %s"}
        self.error_log.log(logging.DEBUG if echo else logging.ERROR, msg, *args, **kwargs)


def _log_to_stderr() -> None:
    """Give the server's log a handler, unless the program has set up logging itself."""
    if not _logger.hasHandlers():
        logs.set_up()
