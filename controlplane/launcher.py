"""Run a real Kubernetes on loopback, and clean up after it."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from controlplane import cache, components
from controlplane.api import Api
from controlplane.bringup import Running, Started, bring_up
from controlplane.build import ensure
from controlplane.errors import ControlPlaneError, from_os_error
from controlplane.guard import Guard
from controlplane.kubectl import TIMEOUT as KUBECTL_TIMEOUT
from controlplane.kubectl import Kubectl
from controlplane.layout import Layout
from controlplane.pki import Files
from controlplane.preparation import server_url, write_kubeconfig
from controlplane.process import STOP_TIMEOUT, Process
from controlplane.processes import Processes
from controlplane.progress import Report
from controlplane.settings import Settings

KEPT_LOGS = Path(__file__).resolve().parent.parent / "build" / "logs"
"""The folder for logs of failed control planes."""


class ControlPlane:
    """A Kubernetes cluster, used as a context manager or with start() and stop().

    Most keyword arguments are those of `Settings`. `directory` keeps the cluster's state for a
    later start; None uses a temporary folder, removed at the end. `report` receives the progress
    of a first build; None shows it on standard error.
    """

    def __init__(
        self,
        *,
        nodes: int = 3,
        address: str = components.LOOPBACK,
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
        defaults = Settings()
        self._settings = Settings(
            nodes=nodes,
            address=address,
            audit=audit,
            port=port,
            durable=durable,
            node_labels=node_labels or defaults.node_labels,
            node_capacity=node_capacity or defaults.node_capacity,
            scheduler_profiles=tuple(scheduler_profiles),
            stages=tuple(stages),
            extra_args=dict(extra_args),
        )
        self._chosen_directory = directory
        self._report = report
        self._running: Running | None = None
        self._started: Started | None = None

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
        """Start everything; on return, pods can be created and the nodes are Ready.

        Raises ControlPlaneError, which names the logs, and leaves nothing running.
        """
        if self._running is not None:
            raise ControlPlaneError("this control plane is already running; stop it first")
        binaries = ensure(self._report)
        try:
            self._running = self._open(binaries)
            self._started = bring_up(self._running, self._settings)
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
        """Stop everything and remove temporary files. A second call does nothing."""
        if self._running is not None:
            self._running.processes.stop()
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
        """The audit log, in JSON lines. Raises ControlPlaneError without `audit=True`."""
        if not self._settings.audit:
            raise ControlPlaneError("there is no audit log; start with ControlPlane(audit=True)")
        return self._now().layout.audit_log

    @property
    def kubeconfig(self) -> Path:
        """The admin's kubeconfig (group system:masters)."""
        return self._now().layout.kubeconfig

    @property
    def ca(self) -> Path:
        """The API server's CA certificate, PEM."""
        return self._made().pki.ca.certificate

    @property
    def server(self) -> str:
        """The API server's URL."""
        return server_url(self._made().plan.ports)

    @property
    def api(self) -> Api:
        """A client of the API server, as admin."""
        return self._made().api

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the components, including added ones."""
        return self._now().processes.names

    def process(self, name: str) -> Process:
        """Return a component, to kill, pause or restart it. Raises ControlPlaneError if unknown."""
        return self._now().processes[name]

    def add(
        self,
        name: str,
        command: Sequence[str],
        is_ready: Callable[[], bool],
        *,
        wait: bool = True,
        stop_timeout: float = STOP_TIMEOUT,
    ) -> Process:
        """Run an additional component, and wait until it is ready unless `wait` is false.

        Its log is in `logs`, and `process` returns it. It is stopped before Kubernetes' components,
        and killed after `stop_timeout` seconds. Raises ControlPlaneError if it does not become
        ready, or if the name is already used.
        """
        processes = self._now().processes
        process = processes.start(name, command, is_ready, stop_timeout=stop_timeout)
        if wait:
            process.wait_ready()
        return process

    def certificate(self, name: str, dns_names: Sequence[str] = ()) -> Files:
        """Issue a server certificate for loopback and `dns_names`, signed by the cluster's CA."""
        return self._made().pki.server(name, dns_names=dns_names)

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig with a client certificate for the user, and return its path."""
        started = self._made()
        layout = self._now().layout
        return write_kubeconfig(layout, started.pki, started.plan.ports, user, tuple(groups))

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        check: bool = True,
        kubeconfig: Path | None = None,
        timeout: float = KUBECTL_TIMEOUT,
    ) -> str:
        """Run kubectl, as admin unless a kubeconfig is given, and return its output.

        Raises ControlPlaneError with kubectl's error if it fails (unless `check` is False), or if
        it takes longer than `timeout` seconds.
        """
        binary, cache = self.bin / "kubectl", self.directory / "kubectl-cache"
        path = kubeconfig or self.kubeconfig
        return Kubectl(binary, cache).run(
            arguments, kubeconfig=path, stdin=stdin, check=check, timeout=timeout
        )

    def keep_logs(self) -> Path:
        """Copy the logs to a folder that outlives this control plane, and return that folder."""
        target = KEPT_LOGS / self.directory.name
        try:
            shutil.copytree(self.logs, target, dirs_exist_ok=True)
        except OSError:
            target = Path(tempfile.mkdtemp(prefix=f"{self.directory.name}-logs-"))
            shutil.copytree(self.logs, target, dirs_exist_ok=True)
        return target

    def _now(self) -> Running:
        if self._running is None:
            raise ControlPlaneError("this control plane is not running; start it first")
        return self._running

    def _made(self) -> Started:
        self._now()
        if self._started is None:
            raise ControlPlaneError("this control plane is still starting")
        return self._started

    def _open(self, binaries: Path) -> Running:
        """Create and lock the folder; the reaper starts before there is anything to clean up."""
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
            message = f"another control plane runs in {directory}; choose another directory"
            stack.enter_context(cache.lock_now(directory / "lock", message))
            return Running(binaries, layout, Processes(layout, guard), stack.pop_all())
