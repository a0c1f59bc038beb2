"""Start a real Kubernetes on loopback, hand it out, and leave nothing behind."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from controlplane import cache, components, nodes
from controlplane.build import ensure
from controlplane.components import Plan
from controlplane.errors import ControlPlaneError, PortTakenError, from_os_error
from controlplane.guard import Guard
from controlplane.kubeconfig import kubeconfig
from controlplane.layout import Layout, write_private
from controlplane.pki import Files, Pki
from controlplane.ports import port_taken
from controlplane.preparation import choose_ports, prepare, server_url, write_kubeconfig
from controlplane.process import Process
from controlplane.progress import Report
from controlplane.readiness import Readiness
from controlplane.settings import Settings

KEPT_LOGS = Path(__file__).resolve().parent.parent / "build" / "logs"
"""Where the logs of a failed control plane are kept."""
_ATTEMPTS = 4
_KUBECTL_TIMEOUT = 90.0
_STOP_ORDER = (
    (components.KWOK, components.SCHEDULER, components.CONTROLLER_MANAGER),
    (components.API_SERVER,),
    (components.ETCD,),
)


@dataclass(frozen=True, slots=True)
class _Running:
    """What exists between start and stop."""

    bin: Path
    layout: Layout
    guard: Guard
    resources: ExitStack


@dataclass(frozen=True, slots=True)
class _Started:
    """What one successful attempt made."""

    plan: Plan
    pki: Pki
    processes: Mapping[str, Process]


def _nothing() -> None:
    """Do nothing before a start."""


class ControlPlane:
    """A Kubernetes of one's own: a context manager, or start() and stop().

    The keyword arguments are those of `Settings`. `directory` keeps the cluster there, so that a
    later start finds its state again; None uses a temporary folder, removed at the end. `report`
    is told the progress of a first build; None shows it on standard error.
    """

    def __init__(
        self,
        *,
        nodes: int = 3,
        audit: bool = False,
        directory: Path | None = None,
        port: int | None = None,
        durable: bool = False,
        node_labels: Callable[[int], Mapping[str, str]] | None = None,
        node_capacity: Mapping[str, str] | None = None,
        scheduler_profiles: Sequence[str] = ("default-scheduler",),
        stages: Sequence[Path] = (),
        extra_args: Mapping[str, Sequence[str]] = MappingProxyType({}),
        report: Report | None = None,
    ) -> None:
        usual = Settings()
        self._settings = Settings(
            nodes=nodes,
            audit=audit,
            port=port,
            durable=durable,
            node_labels=node_labels or usual.node_labels,
            node_capacity=node_capacity or usual.node_capacity,
            scheduler_profiles=tuple(scheduler_profiles),
            stages=tuple(stages),
            extra_args=dict(extra_args),
        )
        self._chosen_directory = directory
        self._report = report
        self._running: _Running | None = None
        self._started: _Started | None = None
        self._processes: dict[str, Process] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, Exception) and self._running is not None:
                error.add_note(f"the control plane's logs: {self.keep_logs()}")
        finally:
            self.stop()

    def start(self) -> None:
        """Start everything; at the return pods can be created and the nodes are Ready.

        Raises ControlPlaneError, with nothing left running, and the logs named in it.
        """
        if self._running is not None:
            raise ControlPlaneError("this control plane is running already; stop it first")
        binaries = ensure(self._report)
        try:
            self._running = self._open(binaries)
            self._started = self._attempts(self._running)
        except ControlPlaneError as error:
            text = str(error)
            if self._running is not None and str(self.logs) in text:
                text = text.replace(str(self.logs), str(self.keep_logs()))
            self.stop()
            raise ControlPlaneError(text) from error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything and remove what is temporary. A second call does nothing."""
        self._stop_processes()
        running, self._running, self._started = self._running, None, None
        if running is not None:
            running.resources.close()

    @property
    def bin(self) -> Path:
        """The folder with etcd, the components and kubectl."""
        return self._now().bin

    @property
    def directory(self) -> Path:
        """The folder with all files of this control plane."""
        return self._now().layout.directory

    @property
    def logs(self) -> Path:
        """The folder with a log for each component."""
        return self._now().layout.logs

    @property
    def audit_log(self) -> Path:
        """The audit log, a JSON object a line. Raises ControlPlaneError without `audit=True`."""
        if not self._settings.audit:
            raise ControlPlaneError("there is no audit log; start with ControlPlane(audit=True)")
        return self._now().layout.audit_log

    @property
    def kubeconfig(self) -> Path:
        """The admin's kubeconfig (group system:masters)."""
        return self._now().layout.kubeconfig

    @property
    def ca(self) -> Path:
        """The certificate, PEM, by which to trust the API server."""
        return self._made().pki.ca.certificate

    @property
    def server(self) -> str:
        """The API server's URL."""
        return server_url(self._made().plan.ports)

    def process(self, name: str) -> Process:
        """Give a component, to kill, pause or restart it. Raises ControlPlaneError if unknown."""
        if name not in self._processes:
            raise ControlPlaneError(
                f"no component {name!r} is running; there are {', '.join(components.NAMES)}"
            )
        return self._processes[name]

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig for a user with a client certificate of its own."""
        started = self._made()
        layout = self._now().layout
        return write_kubeconfig(layout, started.pki, started.plan.ports, user, tuple(groups))

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        check: bool = True,
        kubeconfig: Path | None = None,
        timeout: float = _KUBECTL_TIMEOUT,
    ) -> str:
        """Run kubectl, as the admin unless another kubeconfig is given, and give what it prints.

        Raises ControlPlaneError with what it complains of when it fails (unless `check` is False)
        or takes longer than `timeout` seconds.
        """
        quiet = {"KUBECACHEDIR": str(self.directory / "kubectl-cache"), "KUBERC": "off"}
        shown = f"kubectl {' '.join(arguments)}"
        try:
            done = subprocess.run(
                [self.bin / "kubectl", "--kubeconfig", kubeconfig or self.kubeconfig, *arguments],
                input=stdin or "",
                env={**os.environ, **quiet},
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ControlPlaneError(f"{shown}: no answer in {timeout:.0f} s") from error
        if check and done.returncode != 0:
            raise ControlPlaneError(f"{shown}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def keep_logs(self) -> Path:
        """Copy the logs to where they outlive this control plane, and tell where."""
        target = KEPT_LOGS / self.directory.name
        try:
            shutil.copytree(self.logs, target, dirs_exist_ok=True)
        except OSError:
            target = Path(tempfile.mkdtemp(prefix=f"{self.directory.name}-logs-"))
            shutil.copytree(self.logs, target, dirs_exist_ok=True)
        return target

    def _now(self) -> _Running:
        if self._running is None:
            raise ControlPlaneError("this control plane is not running; start it first")
        return self._running

    def _made(self) -> _Started:
        self._now()
        if self._started is None:
            raise ControlPlaneError("this control plane is still starting")
        return self._started

    def _open(self, binaries: Path) -> _Running:
        """Make the folder, and have somebody watch over it before there is anything to watch."""
        with ExitStack() as stack:
            guard = Guard()
            stack.callback(guard.close)
            directory = self._chosen_directory
            if directory is None:
                name = f"holdfast-{secrets.token_hex(6)}"
                directory = Path(tempfile.gettempdir()).resolve() / name
                guard.removes(directory)
            layout = Layout(directory.absolute())
            try:
                layout.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                layout.logs.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise from_os_error(error, directory) from error
            taken = f"another control plane runs in {directory}; choose another directory"
            stack.enter_context(cache.lock_now(directory / "lock", taken))
            return _Running(binaries, layout, guard, stack.pop_all())

    def _attempts(self, running: _Running) -> _Started:
        """Start on free ports, and again on others where one was taken in between."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._attempt(running)
            except PortTakenError as error:
                self._stop_processes()
                if self._settings.port is not None and f"{components.API_SERVER} ended" in str(
                    error
                ):
                    raise port_taken(self._settings.port) from error
                if attempt == _ATTEMPTS:
                    raise
                for log in running.layout.logs.iterdir():
                    log.unlink()
        raise AssertionError

    def _attempt(self, running: _Running) -> _Started:
        layout = running.layout
        pki = Pki(layout.pki)
        ports = choose_ports(self._settings.port)
        plan = prepare(running.bin, layout, pki, ports, self._settings)
        admin, files = pki.admin()
        ca = pki.ca.certificate.read_bytes()
        write_private(layout.kubeconfig, kubeconfig(server_url(ports), ca, "admin", admin))
        self._start_all(running, plan, files)
        return _Started(plan, pki, self._processes)

    def _start_all(self, running: _Running, plan: Plan, admin: Files) -> None:
        """Start etcd, then the API server, then the others together."""
        readiness = Readiness(plan, admin, self._settings.nodes)
        self._processes = {
            name: Process(
                name,
                plan.command(name),
                log=running.layout.log(name),
                guard=running.guard,
                is_ready=readiness.of(name),
                before_start=readiness.leases.release if name == components.KWOK else _nothing,
            )
            for name in components.NAMES
        }
        first, second, *others = self._processes.values()
        for process in (first, second):
            process.start()
            process.wait_ready()
        readiness.leases.make_room()
        for process in others:
            process.start()
        for index in range(1, self._settings.nodes + 1):
            labels = self._settings.node_labels(index)
            made = nodes.node(index, labels, self._settings.node_capacity)
            readiness.api.create("/api/v1/nodes", made)
        for process in others:
            process.wait_ready()

    def _stop_processes(self) -> None:
        for group in _STOP_ORDER:
            members = [self._processes[name] for name in group if name in self._processes]
            alive = [process for process in members if process.running]
            for process in alive:
                process.terminate()
            for process in alive:
                process.stop()
        self._processes = {}
