"""Run gunicorn inside this program: settings, the listening socket, the master process."""

import errno
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]
from gunicorn.glogging import Logger  # type: ignore[import-untyped]

from holdfast.webhook import sockets
from holdfast.webhook.errors import StartError
from holdfast.webhook.process import on_end_of_stdin
from holdfast.webhook.server.offload import AsyncHandler
from holdfast.webhook.server.settings import ServerSettings
from holdfast.webhook.server.tls import SHARED_MEMORY, load_pair, new_context
from holdfast.webhook.server.worker import FINISH, HoldfastWorker, boot_error

SHUTDOWN = 3.0
"""Seconds for the worker's shutdown hook until the master kills the worker."""
HEARTBEAT = 30
"""Seconds without a heartbeat after which the master replaces the worker."""
BACKLOG = 1024
"""Connections that the kernel queues until the worker accepts them."""

_logger = logging.getLogger("holdfast.server")


def run(make_app: Callable[[], AsyncHandler], settings: ServerSettings) -> NoReturn:
    """Serve until SIGTERM or SIGINT, then exit.

    An unusable certificate or port is reported before the fork, with one line on standard error and
    exit status 1. `make_app` is called in the worker, where its threads and connections are used.
    If it or its startup hook raises, the exit status is 3.
    """
    try:
        context = new_context(settings.client_ca)
        if not settings.await_certificate:
            load_pair(context, settings.certfile, settings.keyfile)
        listener = listen(settings.host, settings.port)
    except StartError as error:
        sys.stderr.write(f"Error: {error}\n")
        raise SystemExit(1) from error
    if settings.ready_file is not None:
        settings.ready_file.unlink(missing_ok=True)
    _GunicornApp(make_app, settings, listener.detach()).run()
    raise SystemExit(0)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the port. Raises StartError.

    gunicorn would retry five times, and log each attempt.
    """
    try:
        return sockets.bound(host, port, BACKLOG)
    except (OSError, OverflowError) as error:
        raise StartError(
            f"cannot listen on {sockets.written(host, port)}: {_cure(error)}"
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


class _GunicornApp(BaseApplication):  # type: ignore[misc]
    """The application as gunicorn sees it; the worker reads its `settings`."""

    def __init__(
        self, make_app: Callable[[], AsyncHandler], settings: ServerSettings, fd: int
    ) -> None:
        self.settings = settings
        self._make_app = make_app
        self._fd = fd
        super().__init__(prog="holdfast")

    def load_config(self) -> None:
        for name, value in _gunicorn_settings(self.settings, self._fd).items():
            self.cfg.set(name, value)

    def load(self) -> AsyncHandler:
        try:
            return self._make_app()
        except Exception as error:
            raise boot_error(error) from error


def _gunicorn_settings(settings: ServerSettings, fd: int) -> dict[str, Any]:
    stop = partial(os.kill, os.getpid(), signal.SIGTERM)
    with_stdin = {"when_ready": lambda _master: on_end_of_stdin(stop)}
    optional = with_stdin if settings.exit_with_stdin else {}
    return optional | {
        "bind": f"fd://{fd}",
        "workers": 1,  # one loop answers thousands of reviews a second; scale with pods
        "worker_class": HoldfastWorker,
        "worker_tmp_dir": str(SHARED_MEMORY) if os.access(SHARED_MEMORY, os.W_OK) else None,
        "timeout": HEARTBEAT,
        "graceful_timeout": math.ceil(settings.drain + FINISH + SHUTDOWN),
        "control_socket_disable": True,  # it needs a writable directory
        "proc_name": "holdfast",
        "accesslog": None,
        "logger_class": _Log,
    }


class _Log(Logger):  # type: ignore[misc]
    """Sends gunicorn's log to `holdfast.server`, with its info lines at level debug."""

    access_log_enabled = False

    def setup(self, cfg: object) -> None:
        self.cfg = cfg
        self.error_log = _logger

    def info(self, msg: str, *args: object, **kwargs: Any) -> None:
        self.error_log.debug(msg, *args, **kwargs)

    def error(self, msg: str, *args: object, **kwargs: Any) -> None:
        # After a failed start, the worker has already logged the reason.
        echo = msg in {"Shutting down: %s", "Reason: %s"}
        self.error_log.log(logging.DEBUG if echo else logging.ERROR, msg, *args, **kwargs)
