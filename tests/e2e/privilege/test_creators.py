"""Attacks by users who create pods and VMs in a namespace, and by its admin."""

import json

import pytest

from tests.e2e.accounts import NAMESPACE
from tests.e2e.fake_kubevirt import RECORD, create_as_kubevirt
from tests.e2e.kubectl_user import KubectlUser, refusal
from tests.e2e.namespace import Namespace, Object, gates, pod
from tests.e2e.privilege.marks import BEARING, MARKS
from tests.e2e.secured import (
    CONFINED_TO,
    HERE,
    ROLE,
    THERE,
    ZONE,
    Secured,
    node_of,
    refused_by_scheduler,
    sticky_vm,
)

pytestmark = pytest.mark.xdist_group("privilege")


def test_sticky_record_does_not_bypass_a_namespaces_node_selector(secured: Secured) -> None:
    """PodNodeSelector confines the namespace; the record can only restrict that further."""
    ns = secured.ns("stuck", confined=True)
    launcher = sticky_vm(ns, HERE)
    operation = {"op": "add", "path": f"/metadata/annotations/{RECORD.replace('/', '~1')}"}
    secured.jane(ns).patch("vm", [{**operation, "value": THERE}], kind="vm", dry_run=False)
    stored = create_as_kubevirt(ns, launcher)

    assert stored["spec"]["nodeSelector"] == {ZONE: "a"}
    assert THERE in json.dumps(stored["spec"]["affinity"])
    ns.eventually(lambda: refused_by_scheduler(ns, "virt-launcher-vm"))

    secured.jane(ns).patch("vm", [{**operation, "value": HERE}], kind="vm", dry_run=False)
    second_pod = {**launcher, "metadata": {**launcher["metadata"], "name": "virt-launcher-vm-2"}}
    create_as_kubevirt(ns, second_pod)
    assert node_of(ns, "virt-launcher-vm-2") == HERE


@pytest.mark.parametrize("mark", MARKS)
def test_placement_does_not_bypass_a_namespaces_node_selector(secured: Secured, mark: str) -> None:
    """Covers rules that add tolerations, and rules resolved at release."""
    confined = secured.ns(f"placed-{mark}", confined=True)
    free = secured.ns(f"placed-{mark}-free")
    for ns in (confined, free):
        marked = pod("marked", {"type": mark, **MARKS[mark]})
        secured.jane(ns).create(marked, dry_run=False)
    confined.eventually(lambda: not gates(confined.get("pod", "marked")))
    confined.eventually(lambda: refused_by_scheduler(confined, "marked"))
    assert node_of(free, "marked") == THERE


@pytest.mark.parametrize("mark", MARKS)
def test_pod_creator_may_set_what_placement_sets(secured: Secured, mark: str) -> None:
    ns = secured.ns(f"written-{mark}")
    jane = secured.jane(ns)
    jane.create(pod("marked", {"type": mark, **MARKS[mark]}), dry_run=False)
    assert node_of(ns, "marked") == THERE
    spec = ns.get("pod", "marked")["spec"]
    fields = ("affinity", "nodeSelector", "schedulerName", "tolerations")
    by_hand = {key: spec[key] for key in fields if key in spec}
    jane.create(pod("by-hand", None, **by_hand), dry_run=False)

    assert "affinity" in by_hand
    assert ("example.com/edge" in json.dumps(by_hand["tolerations"])) == (mark in BEARING)
    assert chosen(ns.get("pod", "by-hand")["spec"]) == chosen(spec)
    assert node_of(ns, "by-hand") == THERE


def chosen(spec: Object) -> Object:
    """Return a spec without the node and the token volume, which has a random name."""
    comparable = {key: value for key, value in spec.items() if key not in {"nodeName", "volumes"}}
    containers = [{**container, "volumeMounts": []} for container in spec["containers"]]
    return {**comparable, "containers": containers}


FORBIDDEN_TO_ADMIN: dict[str, tuple[str, ...]] = {
    "Holdfast's keys": ("get", "secret", "holdfast-ca", "-n", NAMESPACE),
    "the serving key": ("get", "secret", "holdfast-tls", "-n", NAMESPACE),
    "Holdfast's Lease": ("get", "leases", "-n", NAMESPACE),
    "the webhooks": ("get", "mutatingwebhookconfiguration", "holdfast"),
    "patching the webhooks": (
        *("patch", "mutatingwebhookconfiguration", "holdfast", "--type=merge"),
        *("-p", '{"webhooks":[]}', "--dry-run=server"),
    ),
    "the guard": ("delete", "validatingadmissionpolicybinding", "holdfast-hold"),
    "the namespace's node selector": (
        "annotate",
        "namespace",
        "ruled",
        f"{CONFINED_TO}=",
        "--overwrite",
    ),
    "a node": ("label", "node", HERE, f"{ROLE}=edge", "--dry-run=server"),
    "a ClusterRoleBinding": (
        "create",
        "clusterrolebinding",
        "x",
        "--clusterrole=edit",
        "--user=x",
    ),
    "pods in another namespace": ("get", "pods", "-n", NAMESPACE),
    "impersonation": ("get", "pods", "--as=jane"),
}


@pytest.fixture(scope="module")
def ruled(secured: Secured) -> Namespace:
    """A confined namespace with an admin, ann."""
    ns = secured.ns("ruled", confined=True)
    ns.kubectl("create", "rolebinding", "ann", "--user=ann", "--clusterrole=admin")
    return ns


@pytest.mark.parametrize("words", FORBIDDEN_TO_ADMIN.values(), ids=FORBIDDEN_TO_ADMIN)
def test_namespace_admin_is_forbidden(
    secured: Secured, ruled: Namespace, words: tuple[str, ...]
) -> None:
    ann = KubectlUser(ruled, secured.installed.plane.kubeconfig_for("ann"))

    assert "orbidden" in refusal(ann.kubectl, *words)
