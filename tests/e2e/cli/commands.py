"""Run commands as a user would."""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.e2e.namespace import Namespace, Object, definition, pod
from tests.e2e.workloads import workload

ROOT = Path(__file__).parents[3]
GATE = "holdfast.dev/delay"
CRDS = [
    definition("kubevirt.io", "v1", "VirtualMachine", "vm"),
    definition("kubevirt.io", "v1", "VirtualMachineInstance", "vmi"),
]
VM: Object = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine"}


class Cli:
    """Runs `holdfast` as a user would, with a kubeconfig."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._kubeconfig = kubeconfig
        self._namespace = namespace

    def run(
        self, *arguments: str, stdin: str | None = None, module: str = "webhook"
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            check=False,
            env=self._environment(),
            timeout=120,
        )

    def output(self, *arguments: str, stdin: str | None = None) -> str:
        """Run a command in the namespace, check that it succeeds, and return its output."""
        result = self.run(*arguments, "-n", self._namespace, stdin=stdin)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def error(self, *arguments: str, stdin: str | None = None) -> str:
        """Run a command in the namespace, check that it fails, and return its one-line error."""
        result = self.run(*arguments, "-n", self._namespace, stdin=stdin)
        assert result.returncode == 1, (result.stdout, result.stderr)
        (line,) = (text for text in result.stderr.splitlines() if not text.startswith("note: "))
        assert line.startswith(("Error: ", "Error from server ("))
        return line

    def terminal(self, *arguments: str, columns: int = 80, **variables: str) -> Iterator[str]:
        """Run a command on a terminal, and yield its output as it arrives."""
        parent_end, child_end = pty.openpty()
        fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.webhook", *arguments, "-n", self._namespace],
            stdin=child_end,
            stdout=child_end,
            stderr=child_end,
            env={**self._environment(), "TERM": "xterm-256color", **variables},
            start_new_session=True,
        )
        os.close(child_end)
        try:
            while select.select([parent_end], [], [], 60)[0]:
                try:
                    data = os.read(parent_end, 1 << 16)
                except OSError:  # end of file on a Linux terminal
                    return
                yield data.decode(errors="replace")
        finally:
            process.terminate()
            process.wait()
            os.close(parent_end)

    def _environment(self) -> dict[str, str]:
        environment = {
            key: value for key, value in os.environ.items() if key not in {"COLUMNS", "LINES"}
        }
        return {**environment, "KUBECONFIG": str(self._kubeconfig)}


def user(ns: Namespace, name: str, folder: Path, *roles: str) -> Cli:
    """Create a ServiceAccount with these ClusterRoles in the namespace, and return its Cli."""
    ns.kubectl("create", "serviceaccount", name)
    for role in roles:
        account = f"--serviceaccount={ns.namespace}:{name}"
        ns.kubectl("create", "rolebinding", f"{name}-{role}", f"--clusterrole={role}", account)
    token = ns.kubectl("create", "token", name).strip()
    config = yaml.safe_load(ns.plane.kubeconfig.read_text())
    config["users"] = [
        {"name": entry["name"], "user": {"token": token}} for entry in config["users"]
    ]
    path = folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return Cli(path, ns.namespace)


def hold(ns: Namespace, *names: str, delay: str = "1h", **labels: str) -> None:
    for name in names:
        manifest = pod(name, {"delay": delay})
        manifest["metadata"]["labels"] = labels
        ns.apply(manifest)


def manifests(delay: str) -> str:
    """Make the manifests of a Deployment that delays its pods, and of a pod that does not."""
    return "\n---\n".join(map(json.dumps, [workload("Deployment", delay), pod("free")]))
