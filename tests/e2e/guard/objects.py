"""Objects that the tests create."""

from typing import Any

from tests.e2e import vms
from tests.e2e.namespace import Object, pod

RECORD = "holdfast.dev/sticky-node"
PACE, RELEASED = "holdfast.dev/pace", "holdfast.dev/released"
GATE, FOREIGN_GATE = "holdfast.dev/delay", "example.com/mine"
TOKEN = "kubernetes.io/service-account-token"
FILLED = {"architecture": "amd64", "domain": {"devices": {}, "machine": {"type": "q35"}}}


def role(name: str, resource: str, *verbs: str) -> Object:
    rule = {"apiGroups": [""], "resources": [resource], "verbs": [*verbs]}
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
    return {**kind, "metadata": {"name": name}, "rules": [rule]}


def held(name: str, **annotations: str) -> Object:
    """Make a pod as edited by the webhook, with a long hold."""
    hint = {"holdfast.dev/held": "delay=1000s", "holdfast.dev/profile": "*"}
    return pod(name, {"delay": "1000", **hint, **annotations}, schedulingGates=[{"name": GATE}])


def full(name: str) -> Object:
    """Make a held pod that sets every kind of field that the controller must not change."""
    manifest = held(name, team="a")
    manifest["metadata"]["labels"] = {"app": "mine"}
    manifest["metadata"]["finalizers"] = ["holdfast.dev/sticky", "example.com/mine"]
    spec = manifest["spec"]
    spec["schedulingGates"].append({"name": FOREIGN_GATE})
    spec["initContainers"] = [{"name": "first", "image": "busybox"}]
    spec["tolerations"] = [{"key": "mine", "operator": "Exists"}]
    return manifest


def machine(name: str) -> Object:
    manifest = vms.vm(name, {"team": "a", "holdfast.dev/sticky": "true"}, run_strategy="Halted")
    manifest["metadata"]["labels"] = {"app": "mine"}
    manifest["metadata"]["finalizers"] = ["example.com/mine"]
    return manifest


def secret(**changes: Any) -> Object:
    """Make a Secret that could hold a token of the namespace's own account."""
    account = {"kubernetes.io/service-account.name": "default"}
    metadata = {"name": "holdfast-ca", "annotations": account}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, **changes}


def stored(name: str, **spec: Any) -> Object:
    """Make a VM as stored by an older KubeVirt, with a data volume template."""
    manifest = machine(name)
    manifest["spec"]["template"]["metadata"] = {"creationTimestamp": None}
    manifest["spec"]["template"]["spec"] |= spec
    volume = {"creationTimestamp": None, "name": "disk"}
    manifest["spec"]["dataVolumeTemplates"] = [{"metadata": volume, "spec": {"pvc": {}}}]
    return manifest
