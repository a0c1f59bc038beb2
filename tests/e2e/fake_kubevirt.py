"""VMs in a cluster without KubeVirt: the tests create its kinds, and act as its account."""

import json

import yaml

from controlplane.launcher import ControlPlane
from tests.e2e import vms
from tests.e2e.namespace import DEFINITIONS, Namespace, Object, pod

KUBEVIRT = "system:serviceaccount:kubevirt:kubevirt-controller"
STRANGER = "system:serviceaccount:openshift-cnv:kubevirt-controller"
RECORD = "holdfast.dev/sticky-node"


def define(plane: ControlPlane, *kinds: str) -> None:
    """Define these kinds of KubeVirt in a cluster, and make its account a cluster admin."""
    for kind in kinds:
        plane.api.create(DEFINITIONS, vms.definition(f"{kind}.kubevirt.io"))
    options = ("--clusterrole=cluster-admin", f"--user={KUBEVIRT}", f"--user={STRANGER}")
    plane.kubectl("create", "clusterrolebinding", "kubevirt", *options)


def make(
    ns: Namespace, name: str, *, record: str = "", sticky: str = "true", on: str = ""
) -> tuple[Object, Object]:
    """Make a VM and its VMI, and return both; `on` is the node where the VMI runs."""
    annotations = {"holdfast.dev/sticky": sticky} | ({RECORD: record} if record else {})
    machine = ns.create(vms.vm(name, annotations, run_strategy="Halted"))
    manifest = vms.vmi(name)
    manifest["metadata"]["ownerReferences"] = [owned_by(machine)]
    manifest["status"] = {"nodeName": on, "phase": "Running"} if on else {}
    return machine, ns.create(manifest)


def run(ns: Namespace, name: str) -> None:
    ns.kubectl("patch", "vmi", name, "--type=merge", "-p", '{"status":{"phase":"Running"}}')


def launcher(instance: Object, **metadata: dict[str, str]) -> Object:
    """Make the pod manifest that KubeVirt would make for a VMI, with more `metadata`."""
    manifest = pod(f"virt-launcher-{instance['metadata']['name']}", metadata.get("annotations"))
    manifest["metadata"]["ownerReferences"] = [owned_by(instance)]
    manifest["metadata"]["labels"] = {"kubevirt.io": "virt-launcher", **metadata.get("labels", {})}
    return manifest


def owned_by(owner: Object) -> Object:
    metadata = owner["metadata"]
    reference = {"kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {"apiVersion": owner["apiVersion"], **reference, "controller": True}


def create_as_kubevirt(
    ns: Namespace, manifest: Object, *options: str, user: str = KUBEVIRT
) -> Object:
    """Create a launcher pod as KubeVirt does; raises ControlPlaneError if it is rejected."""
    arguments = ("create", "-o", "json", f"--as={user}", *options, "-f", "-")
    return dict(json.loads(ns.kubectl(*arguments, stdin=yaml.safe_dump(manifest))))


def record(ns: Namespace, name: str) -> str:
    """Return the node that is recorded on a VM; empty if there is none."""
    return str(ns.get("vm", name)["metadata"].get("annotations", {}).get(RECORD, ""))
