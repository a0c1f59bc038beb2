"""Privileges: the rows of docs/explanation/security.md that need a whole installation.

They use the shipped manifests, a controller and an admission server with the tokens of their
ServiceAccounts, and a namespace whose pods an admin confines to one node.
"""

import base64
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.errors import ControlPlaneError
from holdfast.webhook.registration.configurations import ASKS
from tests.e2e import fake_kubevirt, vms
from tests.e2e.accounts import NAMESPACE
from tests.e2e.fake_kubevirt import KUBEVIRT, RECORD, STRANGER, create_as_kubevirt
from tests.e2e.installed import KINDS, REPAIR, endpoint_address
from tests.e2e.kubectl_user import KubectlUser, Operation, refusal, rights_in
from tests.e2e.namespace import DEFINITIONS, UNCALLED, Namespace, Object, gates, pod
from tests.e2e.secured import (
    ALWAYS,
    CONFINED_TO,
    CREATION,
    HERE,
    REQUIRING,
    ROLE,
    RULES,
    TAINT,
    THERE,
    TOLERATING,
    TOLERATION,
    WEBHOOK,
    ZONE,
    Secured,
    fetch,
    node_of,
    refused_by_scheduler,
    secured_in,
    sticky_vm,
)
from tests.e2e.test_leader import metric
from tests.support import scrapes
from tests.support.builders import make_review

pytestmark = pytest.mark.xdist_group("privilege")

MARKS = {"space": {}, "bearing": {}, "late": {"delay": "1"}, "late-bearing": {"delay": "1"}}
"""Annotation values that rules match, with further annotations of the pod. The last two rules apply
at release; the last pod gets its toleration from another rule at creation."""
BEARING = ("bearing", "late-bearing")
KUBEVIRT_OBJECT = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "KubeVirt",
    "metadata": {"name": "kubevirt"},
    "spec": {},
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_in(tmp_path_factory.mktemp("privilege")) as made:
        yield made


# --- any pod on the network --------------------------------------------------------------------


def test_metrics_and_health_reveal_no_names(secured: Secured) -> None:
    ns = secured.ns("hushed")
    ns.apply(pod("hushed-released", {"delay": "1"}), pod("hushed-held", {"delay": "1h"}))
    assert "soon" in ns.refusal(pod("hushed-refused", {"delay": "soon"}))
    _, instance = fake_kubevirt.make(ns, "hushed-vm")
    create_as_kubevirt(ns, fake_kubevirt.launcher(instance))
    fake_kubevirt.run(ns, "hushed-vm")
    ns.eventually(lambda: fake_kubevirt.record(ns, "hushed-vm"))
    second = fake_kubevirt.launcher(instance)
    second["metadata"]["name"] = "virt-launcher-hushed-vm-again"
    assert "affinity" in create_as_kubevirt(ns, second)["spec"]
    ns.eventually(lambda: not gates(ns.get("pod", "hushed-released")))
    controller = f"http://{secured.controlling.address}"
    inside = [secured.ask(f"/{name}") for name in ("metrics", "healthz", "readyz", "conditions")]
    inside += [fetch(f"{controller}/{name}") for name in ("metrics", "healthz", "readyz")]

    assert [status for status, _ in inside] == [200] * 7
    assert "holdfast_reviews_total" in inside[0][1]
    assert "holdfast_release_lateness_seconds" in inside[4][1]
    assert 'holdfast_lookup_duration_seconds_count{outcome="answered"}' in inside[0][1]
    assert 'holdfast_vm_records_total{outcome="recorded"}' in inside[4][1]
    assert not [text for _, text in inside if "hushed" in text or HERE in text or THERE in text]
    assert secured.ask("/")[0] == 404 == fetch(f"{controller}/")[0]


def test_forged_review_reveals_a_vms_node_only_with_its_uid(secured: Secured) -> None:
    ns = secured.ns("forged")
    launcher = sticky_vm(ns, THERE)

    def ask(**owner: str) -> Any:
        forged = {"metadata": dict(launcher["metadata"]), "spec": {"containers": []}}
        forged["metadata"]["ownerReferences"] = [launcher["metadata"]["ownerReferences"][0] | owner]
        user = {"username": KUBEVIRT}
        status, text = secured.ask(
            "/mutate", make_review(forged, namespace=ns.namespace, userInfo=user)
        )
        assert status == 200
        return json.loads(text)["response"]

    guess = "00000000-0000-0000-0000-000000000000"
    known, unknown = ask(uid=guess), ask(uid=guess, name="xx")
    assert not known["allowed"]
    message = known["status"]["message"].replace('"vm"', '"xx"')
    assert message == unknown["status"]["message"], "it reveals whether there is a VM"
    assert THERE not in message
    assert THERE in base64.b64decode(ask()["patch"]).decode(), "the UID is the key to it"


def test_kubevirt_account_is_found_through_the_kubevirt_object(secured: Secured) -> None:
    ns, home = secured.ns("vms-of-cnv"), secured.ns("openshift-cnv")
    manifest = sticky_vm(ns, THERE)

    def pinned() -> list[str]:
        """Return the accounts whose pods are pinned to the VM's node."""
        return [
            user
            for user in (KUBEVIRT, STRANGER)
            if "affinity" in create_as_kubevirt(ns, manifest, "--dry-run=server", user=user)["spec"]
        ]

    assert pinned() == [KUBEVIRT]
    ns.plane.api.create(DEFINITIONS, vms.definition("kubevirts.kubevirt.io"))
    ns.definitions_established()
    home.create(KUBEVIRT_OBJECT)
    try:
        ns.eventually(lambda: pinned() == [STRANGER])
    finally:
        home.kubectl("delete", "kubevirt", "kubevirt")
        ns.eventually(lambda: pinned() == [KUBEVIRT])


def test_metrics_do_not_reveal_whether_a_vm_exists(secured: Secured) -> None:
    """Compares all counters of the server; durations are not counters."""
    ns = secured.ns("counted")
    launcher = sticky_vm(ns, THERE)
    guess = "00000000-0000-0000-0000-000000000000"

    def counted(path: str, name: str) -> Mapping[str, float]:
        forged = {"metadata": dict(launcher["metadata"]), "spec": {"containers": []}}
        owner = {"name": name, "uid": guess}
        forged["metadata"]["ownerReferences"] = [launcher["metadata"]["ownerReferences"][0] | owner]
        user = {"username": KUBEVIRT}
        review = make_review(forged, namespace=ns.namespace, userInfo=user)
        secured.ask(path, review)  # KubeVirt's account is looked up once a minute
        before = secured.ask("/metrics")[1]
        assert secured.ask(path, review)[0] == 200
        return scrapes.changes(before, secured.ask("/metrics")[1])

    for path in ("/mutate", "/validate"):
        there, absent = counted(path, "vm"), counted(path, "xx")
        assert "holdfast_lookup_duration_seconds_count" in str(there)
        assert there == absent


def test_webhook_only_reads_single_vms_and_lists_kubevirts(secured: Secured) -> None:
    ns = secured.ns("reviewed")
    create_as_kubevirt(ns, sticky_vm(ns, HERE))
    log = secured.installed.plane.audit_log.read_text().splitlines()
    events = [json.loads(line) for line in log if f'"{WEBHOOK}"' in line]
    seen = {(one["verb"], one["objectRef"]["resource"]) for one in events if "objectRef" in one}

    assert {("get", "virtualmachines"), ("get", "virtualmachineinstances")} <= seen
    assert {one for one in seen if one[0] != "get"} == {("list", "kubevirts")}


def test_status_page_is_served_on_loopback_only(secured: Secured) -> None:
    ns = secured.ns("shown")
    ns.apply(pod("shown-held", {"delay": "1h"}))
    here = f"http://localhost:{secured.status_port}/"
    ns.eventually(lambda: "shown-held" in fetch(here)[1])

    with socket.socket() as probe:
        assert probe.connect_ex((endpoint_address(), secured.status_port)) != 0
    status, text = fetch(here, headers={"Host": "rebound.example.com"})
    assert status == 403
    assert "shown-held" not in text


# --- creators of pods and VMs in one namespace -------------------------------------------------


def test_sticky_record_does_not_bypass_a_namespaces_node_selector(secured: Secured) -> None:
    """PodNodeSelector confines the namespace; the record can only restrict that further."""
    ns = secured.ns("stuck", confined=True)
    launcher = sticky_vm(ns, HERE)
    write = {"op": "add", "path": f"/metadata/annotations/{RECORD.replace('/', '~1')}"}
    secured.jane(ns).patch("vm", [{**write, "value": THERE}], kind="vm", dry_run=False)
    stored = create_as_kubevirt(ns, launcher)

    assert stored["spec"]["nodeSelector"] == {ZONE: "a"}
    assert THERE in json.dumps(stored["spec"]["affinity"])
    ns.eventually(lambda: refused_by_scheduler(ns, "virt-launcher-vm"))

    secured.jane(ns).patch("vm", [{**write, "value": HERE}], kind="vm", dry_run=False)
    second = {**launcher, "metadata": {**launcher["metadata"], "name": "virt-launcher-vm-2"}}
    create_as_kubevirt(ns, second)
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
    marked = ns.get("pod", "marked")["spec"]
    fields = ("affinity", "nodeSelector", "schedulerName", "tolerations")
    by_hand = {key: marked[key] for key in fields if key in marked}
    jane.create(pod("by-hand", None, **by_hand), dry_run=False)

    assert "affinity" in by_hand
    assert ("example.com/edge" in json.dumps(by_hand["tolerations"])) == (mark in BEARING)
    assert chosen(ns.get("pod", "by-hand")["spec"]) == chosen(marked)
    assert node_of(ns, "by-hand") == THERE


def chosen(spec: Object) -> Object:
    """Return a spec without the node and the token volume, which has a random name."""
    made = {key: value for key, value in spec.items() if key not in {"nodeName", "volumes"}}
    containers = [{**one, "volumeMounts": []} for one in spec["containers"]]
    return {**made, "containers": containers}


# --- tainted nodes, and policies of the cluster's admin ----------------------------------------


@pytest.fixture
def tainted(secured: Secured) -> Iterator[None]:
    """Taint the edge node, so that only pods that tolerate the taint are scheduled there."""
    plane = secured.installed.plane
    plane.kubectl("taint", "node", THERE, f"{TAINT}=:NoSchedule")
    yield
    plane.kubectl("taint", "node", THERE, f"{TAINT}-")


@pytest.mark.usefixtures("tainted")
@pytest.mark.parametrize("mark", BEARING)
def test_policy_on_create_sees_tolerations_added_by_rules(secured: Secured, mark: str) -> None:
    """Without the policy, such a rule does open the node to a pod with the annotation."""
    closed = secured.banned(f"closed-{mark}", TOLERATING, CREATION)
    free = secured.ns(f"open-{mark}")
    marked = pod("marked", {"type": mark, **MARKS[mark]})
    message = refusal(secured.jane(closed).create, marked, dry_run=False)
    secured.jane(free).create(marked, dry_run=False)

    assert TOLERATING.message in message
    assert closed.all("pods") == []
    assert node_of(free, "marked") == THERE


@pytest.mark.usefixtures("tainted")
@pytest.mark.parametrize("mark", [mark for mark in MARKS if mark not in BEARING])
def test_rules_without_tolerations_do_not_open_tainted_nodes(secured: Secured, mark: str) -> None:
    ns = secured.banned(f"shut-{mark}", TOLERATING, ALWAYS)
    secured.jane(ns).create(pod("marked", {"type": mark, **MARKS[mark]}), dry_run=False)
    ns.eventually(lambda: not gates(ns.get("pod", "marked")))
    ns.eventually(lambda: refused_by_scheduler(ns, "marked"))
    marked = ns.get("pod", "marked")["spec"]

    assert ROLE in json.dumps(marked["affinity"])
    assert TAINT not in json.dumps(marked["tolerations"])


@pytest.mark.usefixtures("tainted")
def test_sticky_record_does_not_tolerate_taints(secured: Secured) -> None:
    ns = secured.ns("stuck-outside")
    stored = create_as_kubevirt(ns, sticky_vm(ns, THERE))

    assert THERE in json.dumps(stored["spec"]["affinity"])
    assert TAINT not in json.dumps(stored["spec"]["tolerations"])
    ns.eventually(lambda: refused_by_scheduler(ns, "virt-launcher-vm"))


@pytest.mark.parametrize("process", ["serve", "controller"])
def test_rules_cannot_add_tolerations_at_release(
    secured: Secured, tmp_path: Path, process: str
) -> None:
    """Policies on CREATE would not see these, so neither process starts."""
    rules = tmp_path / "holdfast.yaml"
    tolerations = "tolerations: [{key: "
    rules.write_text(RULES.replace(tolerations, f"resolveAtRelease: true, {tolerations}"))
    mounted = secured.installed.folder / "mount-0" / "..data"
    pair = ["--cert", str(mounted / "tls.crt"), "--key", str(mounted / "tls.key")]
    more = {"serve": [*pair, "--port", "0"], "controller": ["--health-port", "0"]}
    given = ["--kubeconfig", str(secured.installed.kubeconfig), "--config", str(rules)]
    command = [sys.executable, "-m", "holdfast.webhook", process, *given, *more[process]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert "rules[1].tolerations: cannot be added at release" in done.stderr


@pytest.mark.usefixtures("tainted")
def test_policy_on_create_alone_misses_tolerations_added_by_update(secured: Secured) -> None:
    """With or without Holdfast, users who may update pods may add tolerations."""
    half = secured.banned("half-closed", TOLERATING, CREATION)
    whole = secured.banned("closed", TOLERATING, ALWAYS)
    add = [{"op": "add", "path": "/spec/tolerations/-", "value": TOLERATION}]
    for ns in (half, whole):
        chosen_by_hand = pod("by-hand", None, nodeSelector={ROLE: "edge"})
        secured.jane(ns).create(chosen_by_hand, dry_run=False)
    secured.jane(half).patch("by-hand", add, dry_run=False)

    assert node_of(half, "by-hand") == THERE
    assert TOLERATING.message in refusal(secured.jane(whole).patch, "by-hand", add)


def test_policy_on_node_affinity_must_match_updates(secured: Secured) -> None:
    """A requirement that a rule adds at release counts as a change of the pod."""
    half = secured.banned("half-free", REQUIRING, CREATION)
    whole = secured.banned("unfree", REQUIRING, ALWAYS)
    marked = pod("marked", {"type": "late", "delay": "1"})
    now = pod("now", {"type": "space"})
    for ns in (half, whole):
        assert REQUIRING.message in refusal(secured.jane(ns).create, now)
        secured.jane(ns).create(marked, dry_run=False)
    assert node_of(half, "marked") == THERE
    assert node_of(whole, "marked")

    assert ROLE in json.dumps(half.get("pod", "marked")["spec"])
    assert ROLE not in json.dumps(whole.get("pod", "marked")["spec"])
    expected = f"released without what was to be added: .*{REQUIRING.message}"
    whole.eventually(lambda: re.search(expected, json.dumps(whole.all("events.events.k8s.io"))))


# --- the admin of a namespace ------------------------------------------------------------------

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


# --- stolen tokens -----------------------------------------------------------------------------

FORBIDDEN_TO_BOTH: dict[str, tuple[str, ...]] = {
    "secrets": ("get", "secrets"),
    "all secrets": ("get", "secrets", "--all-namespaces"),
    "a user's secret": ("get", "secret", "others"),
    "another secret of Holdfast's namespace": ("get", "secret", "others", "-n", NAMESPACE),
    "configuration": ("get", "configmaps", "--all-namespaces"),
    "a freeze": ("patch", "namespace", "default", "--patch={}", "--dry-run=server"),
    "deletion": ("delete", "pod", "victim", "--dry-run=server"),
    "eviction": ("drain", THERE, "--dry-run=server"),
    "exec": ("exec", "victim", "--", "true"),
    "a pod": ("run", "mine", "--image=busybox", "--dry-run=server"),
    "a Deployment": ("create", "deployment", "mine", "--image=busybox", "--dry-run=server"),
    "a node": ("label", "node", THERE, "a=b", "--dry-run=server"),
    "a token": ("create", "token", "default"),
    "a RoleBinding": ("create", "rolebinding", "x", "--clusterrole=admin", "--user=x"),
    "impersonation": ("get", "pods", "--as=jane"),
    "another webhook": ("delete", "mutatingwebhookconfiguration", "holdfast", "--dry-run=server"),
    "a policy": ("delete", "validatingadmissionpolicybinding", "holdfast-hold"),
}
"""kubectl commands that neither token permits."""
FORBIDDEN_TO_WEBHOOK: dict[str, tuple[str, ...]] = {
    "pods": ("get", "pods"),
    "a pod by name": ("get", "pod", "victim"),
    "namespaces": ("get", "namespaces"),
    "all VMs": ("get", "vm"),
    "all VMIs": ("get", "vmi", "--all-namespaces"),
    "a VM's record": ("annotate", "vm", "vm", f"{RECORD}={THERE}", "--overwrite"),
    "the CA": ("get", "secret", "holdfast-ca", "-n", NAMESPACE),
    "the serving key": ("get", "secret", "holdfast-tls", "-n", NAMESPACE),
    "a release": ("patch", "pod", "victim", "--patch={}"),
    "the webhooks": ("get", "mutatingwebhookconfiguration", "holdfast"),
}


@pytest.fixture(scope="module")
def robbed(secured: Secured) -> Namespace:
    """A namespace with a held pod, a VM and a user's Secret."""
    ns = secured.ns("robbed")
    ns.apply(pod("victim", {"delay": "1h"}))
    sticky_vm(ns, HERE)
    ns.kubectl("create", "secret", "generic", "others", "--from-literal=a=b")
    return ns


@pytest.mark.parametrize(
    "words",
    (FORBIDDEN_TO_BOTH | FORBIDDEN_TO_WEBHOOK).values(),
    ids=FORBIDDEN_TO_BOTH | FORBIDDEN_TO_WEBHOOK,
)
def test_webhook_token_is_forbidden(
    secured: Secured, robbed: Namespace, words: tuple[str, ...]
) -> None:
    assert "orbidden" in refusal(secured.webhook(robbed).kubectl, *words)


def test_webhook_token_reads_a_vm_by_name(secured: Secured, robbed: Namespace) -> None:
    thief = secured.webhook(robbed)

    assert thief.kubectl("get", "vm", "vm", "-o", "name").strip() == "virtualmachine.kubevirt.io/vm"
    assert "virtualmachineinstance" in thief.kubectl("get", "vmi", "vm", "-o", "name")


@pytest.mark.parametrize("words", FORBIDDEN_TO_BOTH.values(), ids=FORBIDDEN_TO_BOTH)
def test_controller_token_is_forbidden(
    secured: Secured, robbed: Namespace, words: tuple[str, ...]
) -> None:
    assert "orbidden" in refusal(secured.controller(robbed).kubectl, *words)


def test_controller_token_permits_the_documented_changes(
    secured: Secured, robbed: Namespace
) -> None:
    """The privileges that the security page discloses."""
    thief = secured.controller(robbed)
    hold = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}]
    away = [
        {"op": "add", "path": "/webhooks/0/clientConfig", "value": {"url": "https://x.example"}}
    ]
    everywhere = [{"op": "add", "path": "/webhooks/0/namespaceSelector", "value": {}}]
    configuration = "mutatingwebhookconfiguration"

    assert "victim" in thief.kubectl("get", "pods", "--all-namespaces")
    assert robbed.namespace in thief.kubectl("get", "namespaces")
    thief.patch("victim", hold)
    thief.kubectl("annotate", "vm", "vm", f"{RECORD}={THERE}", "--overwrite", "--dry-run=server")
    thief.kubectl("annotate", "vm", "vm", f"{RECORD}-", "--dry-run=server")
    for name in ("holdfast-ca", "holdfast-tls"):
        assert "tls.key" in thief.kubectl("get", "secret", name, "-n", NAMESPACE, "-o", "yaml")
    thief.kubectl("create", "-f", "-", "--dry-run=server", stdin=yaml.safe_dump(EVENT))
    assert "spec.containers" in refusal(thief.patch, "victim", [*hold, *image])
    assert "may only register webhooks for the Service" in refusal(
        thief.patch, "holdfast", away, kind=configuration
    )
    assert "may only register webhooks that exclude the namespaces kube-system" in refusal(
        thief.patch, "holdfast", everywhere, kind=configuration
    )


EVENT: Object = {
    "apiVersion": "events.k8s.io/v1",
    "kind": "Event",
    "metadata": {"name": "forged"},
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "type": "Normal",
    "reason": "Released",
    "action": "Release",
    "note": "any text",
    "reportingController": "holdfast",
    "reportingInstance": "thief",
    "regarding": {"kind": "Pod", "namespace": "robbed", "name": "victim"},
}
FIRST = "/webhooks/0"
WITHOUT_HOLDFAST: dict[str, list[Operation]] = {
    "no webhooks": [{"op": "add", "path": "/webhooks", "value": []}],
    "a condition": [
        {"op": "test", "path": f"{FIRST}/matchConditions/0/name", "value": ASKS},
        {"op": "replace", "path": f"{FIRST}/matchConditions/0/expression", "value": "false"},
    ],
}
"""Patches of a configuration after which Holdfast is not called for a pod."""
ETCD_LIMIT, ROOM = 3 << 19, 2_000
"""etcd's default limit of an object's size in bytes, and less space than our webhooks need."""
REJECT_PODS: list[Operation] = [
    {"op": "remove", "path": f"{FIRST}/matchConditions"},
    {"op": "replace", "path": f"{FIRST}/rules/0/operations", "value": ["CREATE", "UPDATE"]},
    {"op": "replace", "path": f"{FIRST}/clientConfig/service/port", "value": 1},
]
"""Patch after which every pod outside the excluded namespaces is rejected."""


def reject_workloads(number: int) -> list[Operation]:
    """Make a patch after which this webhook's workloads are all rejected."""
    webhook = f"/webhooks/{number}"
    return [
        {"op": "remove", "path": f"{webhook}/matchConditions"},
        {"op": "replace", "path": f"{webhook}/failurePolicy", "value": "Fail"},
        {"op": "replace", "path": f"{webhook}/clientConfig/service/port", "value": 1},
    ]


@pytest.mark.parametrize(
    "change", [*WITHOUT_HOLDFAST.values(), REJECT_PODS], ids=[*WITHOUT_HOLDFAST, "rejects all pods"]
)
def test_controller_token_can_disable_webhooks_until_the_next_reconcile(
    secured: Secured, robbed: Namespace, change: list[Operation]
) -> None:
    """The controller must write conditions, and `false` is one, so no policy can reject this."""
    before = secured.installed.webhooks()
    thief = secured.controller(robbed)
    done = [thief.patch("holdfast", change, "-o", "json", kind=kind) for kind in KINDS]
    assert [one for each in done for one in json.loads(each).get("webhooks", ())] != before

    for kind in KINDS:
        thief.patch("holdfast", change, kind=kind, dry_run=False)
    robbed.eventually(lambda: secured.installed.webhooks() == before, REPAIR)


def filling(size: int) -> Operation:
    """Make an operation that sets `managedFields` of this size, in bytes."""
    fields: Object = {f"f:{number:090}": {} for number in range(size // 98)}
    entry = {
        "manager": "thief",
        "operation": "Apply",
        "apiVersion": "admissionregistration.k8s.io/v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": fields}},
    }
    return {"op": "add", "path": "/metadata/managedFields", "value": [entry]}


def test_controller_token_cannot_block_repair_with_managed_fields(
    secured: Secured, robbed: Namespace
) -> None:
    """An apply to an object near etcd's limit fails, and no policy sees `managedFields`."""
    before = secured.installed.webhooks()
    thief = secured.controller(robbed)
    change = [*WITHOUT_HOLDFAST["no webhooks"], filling(ETCD_LIMIT - ROOM)]
    for kind in KINDS:
        shown = ("-o", "json", "--show-managed-fields")
        message = thief.patch("holdfast", change, *shown, kind=kind, dry_run=False)
        assert len(message) > ETCD_LIMIT - ROOM
    robbed.eventually(lambda: secured.installed.webhooks() == before, REPAIR)
    (log,) = [each.log for each in secured.installed.controllers]
    assert log.read_text().count("removing managedFields, which leave no room") == len(KINDS)


def tamper(secured: Secured, ns: Namespace, kind: str, change: list[Operation]) -> None:
    """Patch a configuration as the thief; ignore the error if an earlier patch is still there."""
    with suppress(ControlPlaneError):
        secured.controller(ns).patch("holdfast", change, kind=kind, dry_run=False)


def test_controller_token_can_have_pods_and_workloads_rejected(
    secured: Secured, robbed: Namespace
) -> None:
    """Including those without Holdfast annotations."""
    validating = KINDS[-1]
    found = secured.installed.webhooks()
    names = [one["name"] for one in found if one["name"].endswith("templates.holdfast.dev")]
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod("refused")["spec"]}
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "refused"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
    }

    def is_rejected(one: Object) -> bool:
        for kind in KINDS:
            tamper(secured, robbed, kind, REJECT_PODS)
        for number in range(1, 1 + len(names)):
            tamper(secured, robbed, validating, reject_workloads(number))
        return UNCALLED in refusal(robbed.apply, one, dry_run=True)

    robbed.eventually(lambda: is_rejected(pod("refused")))
    robbed.eventually(lambda: is_rejected(workload))
    robbed.eventually(robbed.holds_pods, REPAIR)
    robbed.eventually(lambda: secured.installed.webhooks() == found, REPAIR)


def test_controller_token_can_take_the_lease(secured: Secured, robbed: Namespace) -> None:
    """As long as it does, no controller releases pods or restores configurations."""
    thief = secured.controller(robbed)
    named = ("lease", "holdfast-controller", "-n", NAMESPACE)
    robbed.apply(pod("kept", {"delay": "1"}))

    def steal() -> bool:
        """Take the Lease; False where the leader has renewed it since it was read."""
        lease = json.loads(thief.kubectl("get", *named, "-o", "json"))
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease["spec"] |= {"holderIdentity": "thief", "renewTime": now, "leaseDurationSeconds": 12}
        try:
            thief.kubectl("replace", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(lease))
        except ControlPlaneError as exc:
            if "(Conflict)" not in str(exc):
                raise
            return False
        return True

    def leads() -> bool:
        return metric(secured.controlling, "holdfast_leader ") == 1

    robbed.eventually(lambda: not gates(robbed.get("pod", "kept")))
    robbed.eventually(leads)
    robbed.eventually(steal)
    robbed.eventually(lambda: not leads())
    robbed.apply(pod("late", {"delay": "1"}))
    for _ in range(3):
        time.sleep(2)
        assert steal()
        assert not leads()
    assert gates(robbed.get("pod", "late"))

    robbed.eventually(leads)  # the thief no longer renews it
    robbed.eventually(lambda: not gates(robbed.get("pod", "late")))


def rights(actor: KubectlUser, namespace: str) -> set[str]:
    """List what an account may do in a namespace: each resource with its verbs."""
    table = actor.kubectl("auth", "can-i", "--list", "--no-headers", "-n", namespace)
    return {line for line in rights_in(table) if not line.startswith(("[", "self"))}


def test_tokens_have_only_cluster_roles_in_other_namespaces(
    secured: Secured, robbed: Namespace
) -> None:
    """In Holdfast's namespace the controller has more rights, but the webhook does not."""
    webhook, controller = secured.webhook(robbed), secured.controller(robbed)
    elsewhere, at_home = (rights(controller, each) for each in (robbed.namespace, NAMESPACE))
    webhooks = rights(webhook, robbed.namespace)

    assert {line.partition(" ")[0] for line in webhooks} == {
        "kubevirts.kubevirt.io",
        "virtualmachineinstances.kubevirt.io",
        "virtualmachines.kubevirt.io",
    }
    assert all(line.endswith(("[get]", "[list]")) for line in webhooks)
    assert webhooks == rights(webhook, NAMESPACE)
    assert {line.partition(" ")[0] for line in elsewhere} == {
        "pods",
        "controllerrevisions.apps",
        "daemonsets.apps",
        "deployments.apps",
        "replicasets.apps",
        "statefulsets.apps",
        "jobs.batch",
        "endpointslices.discovery.k8s.io",
        "namespaces",
        "nodes",
        "events.events.k8s.io",
        "holds.holdfast.dev",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "validatingwebhookconfigurations.admissionregistration.k8s.io",
        "virtualmachines.kubevirt.io",
        "virtualmachineinstances.kubevirt.io",
        "virtualmachineinstancemigrations.kubevirt.io",
    }
    assert elsewhere < at_home
    assert {line.partition(" ")[0] for line in at_home - elsewhere} == {
        "leases.coordination.k8s.io",
        "secrets",
        "deployments.apps",
    }
