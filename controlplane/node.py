"""A real node alongside a control plane: kubelet, containerd, runc, kube-proxy, and a bridge.

Unlike kwok's nodes, it runs its pods' containers. It needs Linux, root, and the sandbox of
`controlplane.node_sandbox`, which cleans up after it.
"""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from controlplane import node_plan, node_sandbox, nodes
from controlplane.build import ensure
from controlplane.components import SERVICE_RANGE
from controlplane.errors import ControlPlaneError
from controlplane.guard import Guard
from controlplane.launcher import ControlPlane
from controlplane.modules import CONTAINERD, NODE, RUNC
from controlplane.node_images import pause_archive
from controlplane.node_plan import NodePlan, Programs
from controlplane.process import Process
from controlplane.progress import Report

_PROXY_HEALTH_PORT = 10256
_IMPORT_TIMEOUT = 120.0  # seconds; a 60 MB image takes two
_NODE_ROLE = ("system:nodes",)


def build(report: Report | None = None) -> Programs:
    """Return the folders of a node's programs, built if not cached."""
    return Programs(
        node=ensure(report, NODE),
        containerd=ensure(report, CONTAINERD),
        runc=ensure(report, RUNC),
    )


class Node:
    """A node as a context manager: on entry it is Ready, and pods can run on it.

    The control plane must be reachable at the bridge: `ControlPlane(address=GATEWAY)`.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._sandbox = node_sandbox.inside()
        self._processes: dict[str, Process] = {}
        self._guard = Guard()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it. Raises ControlPlaneError, which names the log, if a program does not start."""
        plan = self._plan()
        for path, content in plan.files().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        _make_bridge()
        for name in node_plan.NAMES:
            process = Process(
                name,
                plan.command(name),
                log=self.plane.logs / f"{name}.log",
                guard=self._guard,
                is_ready=self._ready(name, plan),
            )
            self._processes[name] = process
            process.start()
            process.wait_ready()
            if name == node_plan.CONTAINERD:
                self.load(pause_archive())

    def stop(self) -> None:
        """Stop its programs; the sandbox removes the rest when it ends."""
        for process in reversed(self._processes.values()):
            process.stop()
        self._processes = {}
        self._guard.close()

    def process(self, name: str) -> Process:
        """Return one of its programs, to pause or restart it."""
        return self._processes[name]

    def load(self, archive: Path) -> None:
        """Import the images of a docker archive. Raises ControlPlaneError."""
        self.ctr("images", "import", str(archive))

    def ctr(self, *arguments: str) -> str:
        """Run containerd's client in the namespace of the node's pods, and return its output."""
        plan = self._plan()
        address = ["--address", str(plan.socket), "--namespace", "k8s.io"]
        result = subprocess.run(
            [plan.programs.containerd / "ctr", *address, *arguments],
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT,
            check=False,
        )
        if result.returncode != 0:
            raise ControlPlaneError(f"ctr {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout

    def _plan(self) -> NodePlan:
        plane = self.plane
        users = {
            node_plan.KUBELET: (f"system:node:{node_plan.NAME}", _NODE_ROLE),
            node_plan.KUBE_PROXY: ("system:kube-proxy", ()),
        }
        return NodePlan(
            programs=build(),
            directory=self._sandbox.directory,
            cgroup=self._sandbox.cgroup,
            ca=plane.ca,
            kubeconfigs={
                name: plane.kubeconfig_for(user, groups) for name, (user, groups) in users.items()
            },
        )

    def _ready(self, name: str, plan: NodePlan) -> Callable[[], bool]:
        return {
            node_plan.CONTAINERD: lambda: plan.socket.exists() and self._answers(),
            node_plan.KUBELET: self._node_ready,
            node_plan.KUBE_PROXY: _proxy_ready,
        }[name]

    def _answers(self) -> bool:
        with suppress(ControlPlaneError):
            return bool(self.ctr("version"))
        return False

    def _node_ready(self) -> bool:
        output = self.plane.kubectl(
            "get", "node", node_plan.NAME, "--ignore-not-found", "-o", "json"
        )
        return bool(output) and nodes.is_ready(json.loads(output))


def _make_bridge() -> None:
    """Create the pods' bridge, and route the Service range through it."""
    width = node_plan.POD_RANGE.rpartition("/")[2]
    for arguments in (
        ["link", "add", node_plan.BRIDGE, "type", "bridge"],
        ["address", "add", f"{node_plan.GATEWAY}/{width}", "dev", node_plan.BRIDGE],
        ["link", "set", node_plan.BRIDGE, "up"],
        ["route", "add", SERVICE_RANGE, "dev", node_plan.BRIDGE],
    ):
        result = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise ControlPlaneError(f"ip {' '.join(arguments)}: {result.stderr.strip()}")


def _proxy_ready() -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", _PROXY_HEALTH_PORT, timeout=2.0)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
