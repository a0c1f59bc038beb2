"""`holdfast dev`: server and controller on this machine, for development and tests.

It issues certificates, registers the webhooks by URL, runs until stopped, and then removes them.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.certs import authority
from holdfast.webhook.errors import ApiStatusError, ClusterError, StartError
from holdfast.webhook.framework.profiles import Profiles
from holdfast.webhook.kube.api import APPLY_PATCH, Api
from holdfast.webhook.registration.configurations import Configuration, Registration, by_url

if TYPE_CHECKING:
    from holdfast.webhook.runtime.controllers import Manager

NAME = "holdfast-dev"
FIELD_MANAGER = "holdfast-dev"
START_SECONDS = 20.0
"""Seconds within which the admission server must start."""
STOP_SECONDS = 15.0
"""Seconds within which the admission server must stop; longer than its drain."""

_FOLDER = "holdfast-dev-"

_log = logging.getLogger("holdfast.dev")


def run(
    api: Api,
    profiles: Profiles,
    controller: Manager,
    *,
    host: str,
    port: int,
    serve_arguments: list[str],
    stop: threading.Event,
    ready: Callable[[str], None],
) -> None:
    """Run server and controller until `stop` is set. Raises StartError or ClusterError.

    The controller starts first, so overdue pods do not wait for the server. `host` is the address
    at which the cluster reaches this machine. `ready` is called with the server's address once
    everything works.
    """
    with (
        _controlling(controller),
        _server(host, port, serve_arguments) as (server, address, ca),
        _registered(api, Registration(NAME, by_url(address, ca)).configurations(profiles)),
    ):
        while not controller.synced and not controller.threads.failed and not stop.is_set():
            stop.wait(0.02)
        ready(address)
        while not stop.wait(0.2):
            if server.poll() is not None:
                raise StartError(
                    f"the admission server exited with status {server.returncode}; see the log "
                    "above"
                )
            if controller.threads.failed:
                raise StartError("the controller failed; see the log above")


def _remove_left_behind() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*-*"):
        pid = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if pid.isdecimal():
            try:
                if folder.lstat().st_uid == os.getuid():
                    os.kill(int(pid), 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)
            except (OSError, OverflowError):
                continue  # may be another user's, with an arbitrary name


@contextmanager
def _server(
    host: str, port: int, arguments: list[str]
) -> Iterator[tuple[subprocess.Popen[bytes], str, bytes]]:
    """Run the admission server; yield its process, its address as `host:port`, and its CA."""
    _remove_left_behind()
    with tempfile.TemporaryDirectory(prefix=f"{_FOLDER}{os.getpid()}-") as folder:
        directory = Path(folder)
        now = datetime.now(UTC)
        ca = authority.new_ca("holdfast dev", now=now)
        leaf = _leaf(ca, host, now)
        (directory / "tls.crt").write_bytes(leaf.certificate)
        key = directory / "tls.key"
        key.touch(mode=0o600)
        key.write_bytes(leaf.key)
        ready_file = directory / "ready"
        # -P: import nothing from the current folder, which may be somebody else's checkout
        command = [sys.executable, "-P", "-m", "holdfast.webhook", "serve"]
        command += ["--host", host, "--port", str(port)]
        command += ["--cert", str(directory / "tls.crt"), "--key", str(key)]
        command += ["--ready-file", str(ready_file), "--exit-with-stdin", *arguments]
        # a separate session, so only this process receives Ctrl-C and stops both in order
        with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
            try:
                yield process, _await_ready(process, ready_file), ca.certificate
            finally:
                _end(process)


def _leaf(ca: authority.KeyPair, host: str, now: datetime) -> authority.KeyPair:
    try:
        return authority.issue(ca, common_name=host, now=now, ip_addresses=[host])
    except ValueError:
        return authority.issue(ca, common_name=host, now=now, dns_names=[host])


def _await_ready(process: subprocess.Popen[bytes], ready_file: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StartError("the admission server did not start; see the log above")
        if ready_file.exists():
            return ready_file.read_text().strip()
        time.sleep(0.02)
    raise StartError(f"the admission server did not start within {START_SECONDS:.0f} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


@contextmanager
def _registered(api: Api, configurations: Mapping[str, Configuration]) -> Iterator[None]:
    try:
        for path, configuration in configurations.items():
            api.request(
                "PATCH",
                path,
                query={"fieldManager": FIELD_MANAGER, "force": "true"},
                body=msgspec.json.encode(configuration),
                content_type=APPLY_PATCH,
            )
        yield
    finally:
        for path in configurations:
            try:
                api.request("DELETE", path)
            except ClusterError as exc:
                if not (isinstance(exc, ApiStatusError) and exc.is_not_found):
                    _log.error("%s may still be registered: %s; delete it with kubectl", path, exc)


@contextmanager
def _controlling(controller: Manager) -> Iterator[None]:
    thread = threading.Thread(target=controller.work, name="controller")
    thread.start()
    try:
        yield
    finally:
        controller.stop()
        thread.join()
