"""Virtual machines on a real KubeVirt, and what tests do with them.

kwok emulates virt-handler, except for the end of a migration, which `migrate` emulates.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from controlplane.build import ensure
from controlplane.errors import ControlPlaneError
from controlplane.modules import KUBEVIRT
from tests.e2e.namespace import Namespace, Object

FEDORA = "kubevirt-smoke-fedora"
NODES = ("node-1", "node-2", "node-3")
MIGRATION_JOB = "kubevirt.io/migrationJobUID"
_AVOIDED = "tests.holdfast.dev/avoided"


def definition(name: str) -> Object:
    """Return KubeVirt's definition of one of its kinds, for a cluster without KubeVirt."""
    objects = json.loads((ensure(None, KUBEVIRT).parent / "objects.json").read_bytes())["items"]
    (crd,) = (manifest for manifest in objects if manifest["metadata"]["name"] == name)
    return dict(crd)


def vm(
    name: str = FEDORA,
    annotations: Mapping[str, str] | None = None,
    *,
    run_strategy: str = "Always",
    template_annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """Make the manifest of a VM; `spec` is added to the spec of its template."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "runStrategy": run_strategy,
            "template": template({}, template_annotations, **spec),
        },
    }


def vmi(name: str, annotations: Mapping[str, str] | None = None, **spec: Any) -> Object:
    manifest = template({}, annotations, **spec)
    manifest["metadata"]["name"] = name
    return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", **manifest}


def replica_set(name: str, replicas: int) -> Object:
    """Make the manifest of a VirtualMachineInstanceReplicaSet: VMIs without VMs."""
    labels = {"set": name}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceReplicaSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": template(labels),
        },
    }


def pool(name: str, replicas: int) -> Object:
    """Make the manifest of a VirtualMachinePool: VMs NAME-0, NAME-1 and so on."""
    labels = {"pool": name}
    return {
        "apiVersion": "pool.kubevirt.io/v1beta1",
        "kind": "VirtualMachinePool",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "virtualMachineTemplate": {
                "metadata": {"labels": labels},
                "spec": {"runStrategy": "Always", "template": template(labels)},
            },
        },
    }


def migration(name: str, vm_name: str) -> Object:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": name},
        "spec": {"vmiName": vm_name},
    }


def template(
    labels: Mapping[str, str], annotations: Mapping[str, str] | None = None, **spec: Any
) -> Object:
    """Make a VMI template. Its architecture is amd64 on any machine, since kwok does not run it."""
    defaults = {
        "architecture": "amd64",
        "terminationGracePeriodSeconds": 0,
        "domain": {"resources": {"requests": {"memory": "64Mi"}}, "devices": {}},
    }
    metadata = {"labels": dict(labels), "annotations": dict(annotations or {})}
    return {"metadata": metadata, "spec": {**defaults, **spec}}


def launchers(ns: Namespace, name: str) -> list[Object]:
    """Read the launcher pods of a VMI, by its owner reference, oldest first."""
    pods = [pod for pod in ns.all("pods") if owner(pod).get("name") == name]
    return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def owner(manifest: Object) -> Object:
    owners = manifest["metadata"].get("ownerReferences", ())
    return next((dict(reference) for reference in owners if reference.get("controller")), {})


def landed(ns: Namespace, name: str = FEDORA, *, other_than: str = "") -> Object:
    """Wait until a VMI runs with one bound pod that is not terminating, and return that pod.

    `other_than` is the UID of the pod of an earlier run, which is ignored.
    """

    def look() -> Object | None:
        instance = ns.find("vmi", name)
        if instance is None or instance.get("status", {}).get("phase") != "Running":
            return None
        pods = [pod for pod in launchers(ns, name) if owner(pod)["uid"] == uid(instance)]
        pods = [pod for pod in pods if not has_ended(pod)]
        if len(pods) != 1 or uid(pods[0]) == other_than or is_going(pods[0]):
            return None
        return pods[0] if node_of(pods[0]) else None

    pod = ns.eventually(look)
    assert pod is not None
    return pod


def has_ended(pod: Object) -> bool:
    """Return whether a pod's containers have ended, as after a migration to another pod."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def is_going(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def node_of(pod: Object) -> str:
    return str(pod["spec"].get("nodeName", ""))


def uid(manifest: Object) -> str:
    return str(manifest["metadata"]["uid"])


def set_running(ns: Namespace, name: str, *, running: bool) -> None:
    """Start or stop a VM, without waiting."""
    patch = json.dumps({"spec": {"runStrategy": "Always" if running else "Halted"}})
    ns.kubectl("patch", "vm", name, "--type=merge", "-p", patch)


def start(ns: Namespace, name: str = FEDORA) -> Object:
    """Start a VM, and return its pod when it runs."""
    set_running(ns, name, running=True)
    return landed(ns, name)


def is_gone(ns: Namespace, name: str) -> bool:
    """Return whether neither VMI nor pods of a VM are left."""
    return ns.find("vmi", name) is None and not launchers(ns, name)


def delete_run(ns: Namespace, name: str = FEDORA) -> None:
    """Delete a VM's VMI and its pods, as the sticky plugin's own test does, without waiting."""
    pods = [str(pod["metadata"]["name"]) for pod in launchers(ns, name)]
    ns.kubectl("delete", "vmi", name, "--wait=false", "--ignore-not-found")
    if pods:
        ns.kubectl("delete", "pods", *pods, "--wait=false", "--ignore-not-found")


def migrate(ns: Namespace, name: str = FEDORA) -> tuple[Object, Object]:
    """Migrate a VM live; return its former pod and, when it has succeeded, its present one."""
    source = landed(ns, name)
    vmim = ns.create(migration(f"{name}-{uid(source)[:8]}", name))
    await_migration(ns, vmim, "Succeeded")
    end_pod(ns, source)
    target = next(pod for pod in launchers(ns, name) if is_target_of(pod, vmim))
    return source, target


def await_migration(ns: Namespace, vmim: Object, phase: str) -> Object:
    def look() -> Object | None:
        current = ns.get("vmim", str(vmim["metadata"]["name"]))
        return current if current.get("status", {}).get("phase") == phase else None

    stored = ns.eventually(look)
    assert stored is not None
    return stored


def is_target_of(pod: Object, vmim: Object) -> bool:
    return bool(pod["metadata"].get("labels", {}).get(MIGRATION_JOB) == uid(vmim))


def end_pod(ns: Namespace, pod: Object) -> None:
    """Mark a pod as succeeded, as the launcher of a VM that has migrated."""
    patch = json.dumps({"status": {"phase": "Succeeded"}})
    name = str(pod["metadata"]["name"])
    arguments = ["patch", "pod", name, "--subresource=status", "--type=merge", "-p", patch]
    try:
        ns.kubectl(*arguments)
    except ControlPlaneError as error:  # already deleted
        if "not found" not in str(error):
            raise


@contextmanager
def avoided(ns: Namespace, node: str) -> Iterator[None]:
    """Make the scheduler prefer all other nodes until the block ends."""
    ns.kubectl("taint", "node", node, f"{_AVOIDED}=yes:PreferNoSchedule", "--overwrite")
    try:
        yield
    finally:
        ns.kubectl("taint", "node", node, f"{_AVOIDED}:PreferNoSchedule-")


@contextmanager
def cordoned(ns: Namespace, *nodes: str) -> Iterator[None]:
    ns.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        ns.kubectl("uncordon", *nodes)
