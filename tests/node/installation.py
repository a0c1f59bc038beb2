"""Holdfast in a cluster: applied as shipped, its pods, and what tests do to them."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.launcher import ControlPlane
from tests.e2e.world import World

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
NAMESPACE = "holdfast-system"
TAGS = ("0.1.0", "0.1.0-next")
"""The version that the manifests name, and one to upgrade to."""
_PATIENCE = "180s"
_FIRST = {"mutating": "pods.holdfast.dev", "validating": "validate.pods.holdfast.dev"}
"""The first webhook of each configuration."""

Object = dict[str, Any]


@dataclass
class Installation:
    """The manifests in one cluster."""

    plane: ControlPlane
    folder: Path
    """Where a kustomization of one's own may be made."""
    before: set[str] = field(default_factory=set)
    """Everything that was in the cluster before."""

    def install(self) -> None:
        """Do what the install page says: apply, and wait until the API server asks Holdfast."""
        self.before = everything(self.plane)
        self.apply()
        self.ready()

    def apply(self, folder: Path = MANIFESTS) -> str:
        """Apply a kustomization, and give what kubectl prints."""
        return self.plane.kubectl("apply", "-k", str(folder))

    def ready(self) -> None:
        """Wait until both Deployments are as they are to be, and the webhooks are called.

        Between the registration and the first call that arrives lie kube-proxy's turn and the API
        server's own look at the registration.
        """
        for name in ("holdfast-webhook", "holdfast-controller"):
            self.rolled_out(name)
        for kind, name in _FIRST.items():
            self.plane.kubectl(
                *("wait", f"--for=jsonpath={{.webhooks[0].name}}={name}"),
                *(f"{kind}webhookconfiguration/holdfast", f"--timeout={_PATIENCE}"),
                timeout=200,
            )
        world = World(self.plane, "default")
        world.eventually(world.holds_pods)

    def rolled_out(self, name: str) -> None:
        """Wait until a Deployment has its replicas, all of the newest template."""
        self.kubectl("rollout", "status", f"deployment/{name}", f"--timeout={_PATIENCE}")

    def version(self, tag: str) -> Path:
        """Make the kustomization of somebody who chooses a version."""
        return self._kustomization(f"version-{tag}", images=[{"name": "holdfast", "newTag": tag}])

    def with_components(self, *names: str) -> Path:
        """Make the kustomization of somebody who adds components."""
        return self._kustomization(
            "-".join(names),
            components=[os.path.relpath(MANIFESTS / name, self.folder / "x") for name in names],
        )

    def _kustomization(self, name: str, **content: Any) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        content["resources"] = [os.path.relpath(MANIFESTS, folder)]
        (folder / "kustomization.yaml").write_text(json.dumps(content))
        return folder

    def generations(self) -> set[str]:
        """Name every object of the manifests with its generation, which counts its changes."""
        kinds = "deployments,networkpolicies,poddisruptionbudgets,services,configmaps"
        cluster = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
        columns = "custom-columns=K:.kind,N:.metadata.name,G:.metadata.generation"
        chosen = ["-l", "app.kubernetes.io/name=holdfast", "-o", columns]
        shown = self.kubectl("get", f"{kinds},{cluster}", *chosen)
        return {" ".join(line.split()) for line in shown.splitlines()}

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl in Holdfast's namespace."""
        return self.plane.kubectl("--namespace", NAMESPACE, *arguments, timeout=200)

    def pods(self, component: str) -> list[Object]:
        """Read the pods of a component that are not being deleted."""
        selector = f"app.kubernetes.io/component={component}"
        found = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def kill(pod: Object) -> None:
    """End all processes of a pod's containers at once, as the kernel does without memory."""
    uid = pod["metadata"]["uid"]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            groups = (process / "cgroup").read_text()
            name = (process / "comm").read_text().strip()
        except OSError:
            continue
        if uid in groups and name != "pause":
            os.kill(int(process.name), signal.SIGKILL)


def everything(plane: ControlPlane) -> set[str]:
    """Name every object of the cluster but Events and Leases, which come and go by themselves."""
    listed = plane.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    kinds = [one for one in listed if one.partition(".")[0] not in {"events", "leases"}]
    columns = "custom-columns=K:.kind,S:.metadata.namespace,N:.metadata.name"
    shown = plane.kubectl("get", ",".join(kinds), "-A", "--no-headers", "-o", columns)
    return {" ".join(line.split()) for line in shown.splitlines() if line.strip()}
