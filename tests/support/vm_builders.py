"""VMs, VMIs and launcher pods as KubeVirt creates them, with the fields that Holdfast reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.webhook.model import kubevirt
from tests.support.builders import Document, make_pod
from tests.support.matching import required_affinity

VM_UID, VMI_UID = "0f0f0f0f-vm", "1e1e1e1e-vmi"
LAUNCHER_LABELS = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": VMI_UID}


def owner_of(
    kind: str, name: str, uid: str, *, api_version: str = "kubevirt.io/v1", controller: bool = True
) -> Document:
    fields = {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}
    return {**fields, "controller": controller, "blockOwnerDeletion": True}


def make_vm(
    annotations: Mapping[str, str] | None = None,
    *,
    name: str = "vm",
    namespace: str = "default",
    uid: str = VM_UID,
) -> Document:
    metadata: Document = {"name": name, "namespace": namespace, "uid": uid}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": kubevirt.VM,
        "metadata": metadata,
        "spec": {"runStrategy": "Always", "template": {"spec": {"domain": {}}}},
    }


def make_vmi(
    *,
    owners: Sequence[Document] | None = None,
    name: str = "vm",
    namespace: str = "default",
    uid: str = VMI_UID,
    phase: str = "Pending",
    node: str = "",
) -> Document:
    if owners is None:
        owners = [owner_of(kubevirt.VM, name, VM_UID)]
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": kubevirt.VMI,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid,
            "ownerReferences": list(owners),
        },
        "status": {"phase": phase, **({"nodeName": node} if node else {})},
    }


def make_launcher(annotations: Mapping[str, str] | None = None, **fields: Any) -> Document:
    """Make the launcher pod of the VMI `vm`, with the affinity that KubeVirt adds."""
    fields.setdefault("owners", [owner_of(kubevirt.VMI, "vm", VMI_UID)])
    fields["labels"] = {**LAUNCHER_LABELS, **fields.pop("labels", {})}
    pod = make_pod(annotations or {}, name=fields.pop("name", "virt-launcher-vm-abcde"), **fields)
    obsolete = {"key": "node-labeller.kubevirt.io/obsolete-host-model", "operator": "DoesNotExist"}
    pod["spec"]["affinity"] = required_affinity({"matchExpressions": [obsolete]})
    return pod
