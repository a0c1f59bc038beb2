"""The admission server and the controller as two processes that can be killed independently."""

import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import yaml

from controlplane.launcher import ControlPlane
from controlplane.ports import free_ports
from demo.command import Command
from holdfast.certs import authority
from holdfast.webhook.registration.configurations import Registration, by_url
from holdfast.webhook.runtime import pipelines
from tests.e2e.namespace import listens

NAME = "holdfast-apart"
HOST = "127.0.0.1"
PORT_SECONDS = 30.0
"""Seconds until the port of a killed server has to be free."""


class TwoProcesses:
    """Both processes on one cluster; a context manager that unregisters and stops them.

    `name` is that of the webhook configurations; the controller can have its own kubeconfig.
    The commands `server` and `controller` can be killed, stopped and started. The server's wall
    clock is ahead by the number of seconds in the file `ahead`.
    """

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        *,
        config: str = "",
        name: str = NAME,
        controller_kubeconfig: Path | None = None,
    ) -> None:
        self._plane = plane
        self._name = name
        self._configuration = folder / "holdfast.yaml"
        head = "apiVersion: holdfast.dev/v1beta1\nkind: HoldfastConfiguration\n"
        self._configuration.write_text(head + config)
        (port,) = free_ports(1)
        self._ca = authority.new_ca("holdfast apart", now=datetime.now(UTC))
        self.ahead = folder / "seconds-ahead"
        self.ahead.write_text("0")
        self.address = f"{HOST}:{port}"
        options = ["--config", str(self._configuration), "--kubeconfig"]
        kubeconfig = str(plane.kubeconfig)
        certificate, key = self._write_certificate(folder)
        self.server = Command(
            *("serve", *options, kubeconfig, "--host", HOST, "--port", str(port)),
            *("--cert", str(certificate), "--key", str(key)),
            log=folder / "server.log",
            module="tests.e2e.wrong_clock",
            environment={"SECONDS_AHEAD": str(self.ahead)},
        )
        self.controller = Command(
            *("controller", *options, str(controller_kubeconfig or kubeconfig)),
            *("--health-port", "0"),
            log=folder / "controller.log",
        )
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.server)
            stack.callback(self._unregister)
            self._register()
            stack.enter_context(self.controller)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def kill(self, name: str) -> None:
        """Kill `server` or `controller` with SIGKILL."""
        (self.server if name == "server" else self.controller).kill()

    def start(self, name: str) -> None:
        """Start a process again that was killed.

        The server's worker outlives its parent for a moment, and keeps the port until it exits.
        """
        if name == "controller":
            self.controller.start()
            return
        deadline = time.monotonic() + PORT_SECONDS
        while listens(self.address) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.server.start()

    def _write_certificate(self, folder: Path) -> tuple[Path, Path]:
        leaf = authority.issue(
            self._ca, common_name=HOST, now=datetime.now(UTC), ip_addresses=[HOST]
        )
        certificate, key = folder / "tls.crt", folder / "tls.key"
        certificate.write_bytes(leaf.certificate)
        key.write_bytes(leaf.key)
        return certificate, key

    def _register(self) -> None:
        profiles = pipelines.load_profiles(pipelines.Setup(self._configuration))
        registration = Registration(self._name, by_url(self.address, self._ca.certificate))
        configurations = registration.configurations(profiles).values()
        self._plane.kubectl(
            "apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(configurations)
        )

    def _unregister(self) -> None:
        for kind in ("mutating", "validating"):
            configuration = f"{kind}webhookconfiguration"
            self._plane.kubectl("delete", configuration, self._name, "--ignore-not-found")
