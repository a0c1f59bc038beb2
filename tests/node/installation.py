"""Holdfast installed from the shipped manifests, and helpers to inspect and disrupt it."""

import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.launcher import ControlPlane
from docs import transcript
from tests.e2e.certificate_secrets import shown
from tests.e2e.kubectl_user import rights_in
from tests.e2e.namespace import Namespace, created, gates

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
NAMESPACE = "holdfast-system"
TAGS = ("0.1.0", "0.1.0-next")
"""The version that the manifests name, and one to upgrade to."""
_PATIENCE = "180s"
_PORT = 8443
_FIRST = {"mutating": "pods.holdfast.dev", "validating": "validate.pods.holdfast.dev"}
"""The first webhook of each configuration."""

Object = dict[str, Any]


@dataclass
class Installation:
    plane: ControlPlane
    folder: Path
    """The folder for the tests' kustomizations."""
    before: set[str] = field(default_factory=set)
    """All objects in the cluster before the installation."""

    def install(self) -> None:
        """Install as documented: apply, and wait until the API server calls Holdfast."""
        self.before = all_objects(self.plane)
        self.apply()
        self.ready()

    def apply(self, folder: Path = MANIFESTS) -> str:
        return self.plane.kubectl("apply", "-k", str(folder))

    def ready(self) -> None:
        """Wait until both Deployments are rolled out and the webhooks are called.

        Calls do not arrive until kube-proxy has the endpoints and the API server has noticed the
        registration.
        """
        await_rollouts(self.plane)
        for kind, name in _FIRST.items():
            self.plane.kubectl(
                *("wait", f"--for=jsonpath={{.webhooks[0].name}}={name}"),
                *(f"{kind}webhookconfiguration/holdfast", f"--timeout={_PATIENCE}"),
                timeout=200,
            )
        ns = Namespace(self.plane, "default")
        ns.eventually(ns.holds_pods)

    def rolled_out(self, name: str) -> None:
        """Wait until all replicas of a Deployment run its newest template."""
        self.kubectl("rollout", "status", f"deployment/{name}", f"--timeout={_PATIENCE}")

    def with_components(self, *names: str, configuration: str | None = None) -> Path:
        """Write a kustomization with components and an optional configuration."""
        content: dict[str, Any] = {
            "components": [os.path.relpath(MANIFESTS / name, self.folder / "x") for name in names]
        }
        if configuration is None:
            return self.kustomization("-".join(names), **content)
        generator = {"name": "holdfast-config", "namespace": NAMESPACE, "behavior": "replace"}
        content["configMapGenerator"] = [generator | {"files": ["holdfast.yaml"]}]
        folder = self.kustomization("-".join([*names, "own"]), **content)
        (folder / "holdfast.yaml").write_text(configuration)
        return folder

    def kustomization(self, name: str, **content: Any) -> Path:
        """Write a kustomization that changes the shipped manifests, and return its folder."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        content["resources"] = [os.path.relpath(MANIFESTS, folder)]
        (folder / "kustomization.yaml").write_text(json.dumps(content))
        return folder

    def generations(self) -> set[str]:
        """Return every object of the manifests with its generation, which counts its changes."""
        kinds = "deployments,networkpolicies,poddisruptionbudgets,services,configmaps"
        cluster = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
        columns = "custom-columns=K:.kind,N:.metadata.name,G:.metadata.generation"
        options = ["-l", "app.kubernetes.io/name=holdfast", "-o", columns]
        output = self.kubectl("get", f"{kinds},{cluster}", *options)
        return {" ".join(line.split()) for line in output.splitlines()}

    def kubectl(self, *arguments: str) -> str:
        return self.plane.kubectl("--namespace", NAMESPACE, *arguments, timeout=200)

    def scale(self, name: str, replicas: int) -> None:
        """Scale a Deployment, and wait until all its replicas are ready."""
        self.kubectl("scale", f"deployment/{name}", f"--replicas={replicas}")
        if replicas:
            self.rolled_out(name)
            return
        selector = f"app.kubernetes.io/component={name.removeprefix('holdfast-')}"
        self.kubectl("wait", "--for=delete", "pod", "-l", selector, f"--timeout={_PATIENCE}")

    def replicas(self) -> list[str]:
        """Return the address of each admission server, as `host:port`."""
        return [f"{pod['status']['podIP']}:{_PORT}" for pod in self.pods("webhook")]

    def served(self) -> set[str]:
        return {shown(address) for address in self.replicas()}

    def rights(self, account: str) -> list[str]:
        """Return the permissions of a ServiceAccount in Holdfast's namespace."""
        user = f"system:serviceaccount:{NAMESPACE}:{account}"
        output = self.kubectl("auth", "can-i", "--list", "--no-headers", "--as", user)
        return [line for line in rights_in(output) if not line.startswith("[")]

    def pods(self, component: str) -> list[Object]:
        selector = f"app.kubernetes.io/component={component}"
        pods = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


@contextmanager
def running(plane: ControlPlane, *arguments: str) -> Iterator[None]:
    command = [str(plane.bin / "kubectl"), "--kubeconfig", str(plane.kubeconfig), *arguments]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def await_rollouts(plane: ControlPlane, namespace: str = NAMESPACE) -> None:
    """Wait until all replicas of both Deployments run their newest template."""
    for name in ("holdfast-webhook", "holdfast-controller"):
        options = ("--namespace", namespace, f"deployment/{name}", f"--timeout={_PATIENCE}")
        plane.kubectl("rollout", "status", *options, timeout=200)


def check_released_on_time(ns: Namespace, pods: Sequence[Object]) -> None:
    """Check that all of these pods, which have a delay of 15 s, were released when due."""
    release_times = ns.releases()
    early_pods = [
        manifest
        for manifest in pods
        if release_times[manifest["metadata"]["name"]] < created(manifest) + 15
    ]
    assert (early_pods, [gates(pod) for pod in ns.all("pods")]) == ([], [[]] * len(pods))


def variables(deployment: Object) -> dict[str, str]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable["value"] for variable in container.get("env") or ()}


def processes(pod: Object) -> Iterator[Path]:
    """Yield the folders in /proc of the processes in a pod's containers."""
    uid = pod["metadata"]["uid"]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            groups = (process / "cgroup").read_text()
            name = (process / "comm").read_text().strip()
        except OSError:
            continue
        if uid in groups and name != "pause":
            yield process


def kill(pod: Object) -> None:
    """Kill all processes of a pod's containers at once, as the OOM killer does."""
    for process in processes(pod):
        os.kill(int(process.name), signal.SIGKILL)


def reload_failures(address: str) -> float:
    """Return how often an admission server failed to reload its certificate."""
    context = ssl._create_unverified_context()  # the server's identity does not matter here
    with urllib.request.urlopen(f"https://{address}/metrics", context=context, timeout=10) as page:
        lines = page.read().decode().splitlines()
    name = "holdfast_certificate_reload_failures_total "
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def holdfast(plane: ControlPlane, *arguments: str) -> str:
    """Run a `holdfast` command, check that it succeeds, and return its output."""
    options = ("--kubeconfig", str(plane.kubeconfig))
    command = [sys.executable, "-m", "holdfast.webhook", *arguments, *options]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def uninstall(plane: ControlPlane, release: str) -> None:
    holdfast(plane, "uninstall", "--release", release, "--purge", "--yes")


def run_documented(plane: ControlPlane, start: str) -> str:
    """Run the install page's commands that begin with `start`, in the folder of the manifests.

    Returns their output; a search without a match does not fail.
    """
    page = (MANIFESTS.parent / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    commands = [step.command for step in transcript.steps(page) if step.command.startswith(start)]
    assert commands, start
    path = f"{plane.bin}:{os.environ['PATH']}"
    process = subprocess.run(
        ["sh", "-c", "\n".join(commands)],
        cwd=MANIFESTS,
        env={**os.environ, "PATH": path, "KUBECONFIG": str(plane.kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert process.returncode == 0 or "| grep" in commands[-1], process.stderr
    return process.stdout


def all_objects(plane: ControlPlane) -> set[str]:
    """Return all objects of the cluster except Events and Leases, which change constantly."""
    names = plane.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    kinds = [name for name in names if name.partition(".")[0] not in {"events", "leases"}]
    columns = "custom-columns=K:.kind,S:.metadata.namespace,N:.metadata.name"
    shown = plane.kubectl("get", ",".join(kinds), "-A", "--no-headers", "-o", columns)
    return {" ".join(line.split()) for line in shown.splitlines() if line.strip()}
