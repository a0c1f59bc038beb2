"""Launcher pods of the real virt-controller, as the admission server has them stored."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import yaml

from controlplane.errors import ControlPlaneError
from controlplane.kubevirt import install
from controlplane.launcher import ControlPlane
from demo.command import Command
from tests.e2e import vms
from tests.e2e.others import other_webhook
from tests.e2e.vms import FEDORA
from tests.e2e.world import Object, World, gates

pytestmark = pytest.mark.xdist_group("kubevirt")

ACCOUNT = "system:serviceaccount:kubevirt:kubevirt-controller"
FINALIZER = "holdfast.dev/sticky"
RECORD = "holdfast.dev/sticky-node"
LEGACY = "example.com/sticky-node"

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def serving(kubevirt: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """`holdfast dev` on the cluster with KubeVirt."""
    log = tmp_path_factory.mktemp("sticky") / "dev.log"
    with Command("dev", "--kubeconfig", str(kubevirt.kubeconfig), log=log) as running:
        yield running


@pytest.fixture
def machines(kubevirt: ControlPlane, serving: Command) -> World:
    """A namespace for VMs, with Holdfast."""
    return World.in_new_namespace(kubevirt, f"sticky-{next(_numbers)}", serving)


def pristine(pod: Object) -> Object:
    """Make the manifest again from which KubeVirt created a pod."""
    metadata = {
        key: pod["metadata"][key]
        for key in ("generateName", "labels", "annotations", "ownerReferences")
    }
    metadata["annotations"] = {
        key: value
        for key, value in metadata["annotations"].items()
        if not key.startswith("holdfast.dev/")
    }
    spec = copy.deepcopy({key: value for key, value in pod["spec"].items() if key != "nodeName"})
    for term in terms(spec):
        term.pop("matchFields", None)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def created(world: World, manifest: Object, *, by: str = ACCOUNT) -> Object:
    """Create a pod in a dry run as somebody, and return what would be stored."""
    arguments = ["create", "-o", "json", "--dry-run=server", f"--as={by}", "-f", "-"]
    if by != ACCOUNT:
        arguments.append("--as-group=system:masters")
    return dict(json.loads(world.kubectl(*arguments, stdin=yaml.safe_dump(manifest))))


def refusal(world: World, manifest: Object, *, by: str = ACCOUNT) -> str:
    """Create a pod that has to be refused, and return what is said."""
    with pytest.raises(ControlPlaneError) as caught:
        created(world, manifest, by=by)
    return str(caught.value)


def terms(spec: Object) -> list[Object]:
    """Give the terms of required node affinity."""
    node = spec.get("affinity", {}).get("nodeAffinity", {})
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    return list(required.get("nodeSelectorTerms", ()))


def pins(pod: Object) -> list[Any]:
    """Give what each term requires of the node's name."""
    return [term.get("matchFields") for term in terms(pod["spec"])]


def pinned_to(node: str) -> list[Any]:
    return [[{"key": "metadata.name", "operator": "In", "values": [node]}]]


def finalizers(pod: Object) -> list[str]:
    return list(pod["metadata"].get("finalizers", ()))


def launcher(world: World, annotations: Mapping[str, str] | None = None) -> Object:
    """Run a VM, and give the manifest of its pod; then annotate the VM."""
    world.create(vms.vm())
    pod = pristine(vms.landed(world))
    if annotations:
        annotate(world, **annotations)
    return pod


def annotate(world: World, **annotations: str) -> None:
    """Annotate the VM, as an admin would."""
    written = [f"{key}={value}" for key, value in annotations.items()]
    world.kubectl("annotate", "vm", FEDORA, "--overwrite", *written)


# --- placing -----------------------------------------------------------------------------------


def test_a_vm_with_a_record_starts_there_though_the_scheduler_prefers_others(
    machines: World,
) -> None:
    for number, node in enumerate(vms.NODES):
        with vms.avoided(machines, node):
            machines.create(vms.vm(f"free-{number}"))
            machines.create(vms.vm(f"recorded-{number}", {RECORD: node}))
            assert vms.node_of(vms.landed(machines, f"free-{number}")) != node
            pod = vms.landed(machines, f"recorded-{number}")
            assert vms.node_of(pod) == node
            assert pins(pod) == pinned_to(node)
            (term,) = terms(pod["spec"])
            assert term["matchExpressions"]  # KubeVirt's own


def test_a_dry_run_as_kubevirt_shows_the_pin_and_the_finalizer(machines: World) -> None:
    pod = launcher(machines)
    machines.eventually(lambda: RECORD in machines.get("vm", FEDORA)["metadata"]["annotations"])
    machines.kubectl("annotate", "vm", FEDORA, f"{RECORD}-")
    shown = created(machines, pod)
    assert (finalizers(shown), pins(shown)) == ([FINALIZER], [None])

    annotate(machines, **{RECORD: "node-3"})
    shown = created(machines, pod)
    assert (finalizers(shown), pins(shown)) == ([FINALIZER], pinned_to("node-3"))
    assert gates(shown) == []


def test_a_vm_that_opts_out_is_left_alone(machines: World) -> None:
    pod = launcher(machines, {RECORD: "node-3", "holdfast.dev/sticky": "false"})
    shown = created(machines, pod)
    assert (finalizers(shown), pins(shown)) == ([], [None])


def test_a_migrations_target_is_neither_pinned_nor_delayed(machines: World) -> None:
    annotations = {"holdfast.dev/delay": "3s"}
    machines.create(vms.vm(annotations={RECORD: "node-1"}, template_annotations=annotations))
    first = vms.landed(machines)
    assert first["metadata"]["annotations"]["holdfast.dev/held"] == "holdfast.dev/delay=3s"
    source, target = vms.migrate(machines)
    assert vms.node_of(source) == "node-1" != vms.node_of(target)
    assert pins(target) == [None]
    assert "holdfast.dev/held" not in target["metadata"]["annotations"]

    target = pristine(target)
    shown = created(machines, target)
    assert (finalizers(shown), pins(shown)) == ([FINALIZER], [None])


# --- forgeries, and pods without a VM ----------------------------------------------------------


def test_whoever_else_creates_such_a_pod_is_given_nothing_whether_or_not_there_is_a_vm(
    machines: World,
) -> None:
    pod = launcher(machines, {RECORD: "node-3"})
    other = copy.deepcopy(pod)
    other["metadata"]["ownerReferences"][0]["uid"] = "00000000-0000-4000-8000-000000000000"
    gone = copy.deepcopy(pod)
    gone["metadata"]["ownerReferences"][0]["name"] = "no-such-vm"
    accounts = ["jane", "system:serviceaccount:default:default", "system:admin"]
    for by, manifest in itertools.product(accounts, [pod, other, gone]):
        shown = created(machines, manifest, by=by)
        assert (finalizers(shown), pins(shown)) == ([], [None])
        assert not [key for key in shown["metadata"]["annotations"] if "holdfast" in key]


def test_the_finalizer_is_nobody_elses_to_add(machines: World) -> None:
    pod = launcher(machines)
    forged = copy.deepcopy(pod)
    forged["metadata"]["finalizers"] = [FINALIZER]
    said = 'finalizer "holdfast.dev/sticky" is Holdfast\'s own; leave it out'
    assert said in refusal(machines, forged, by="jane")

    plain = copy.deepcopy(forged)
    del plain["metadata"]["ownerReferences"]
    for by in ("jane", ACCOUNT):
        assert said in refusal(machines, plain, by=by)

    stored = machines.create({**pod, "metadata": {"name": "stored"}})
    patch = json.dumps({"metadata": {"finalizers": [FINALIZER]}})
    name = stored["metadata"]["name"]
    with pytest.raises(ControlPlaneError, match="is Holdfast's own; leave it out"):
        machines.kubectl("patch", "pod", name, "--type=merge", "-p", patch, f"--as={ACCOUNT}")


def test_kubevirts_pod_whose_owner_is_not_the_one_it_names_is_refused(
    machines: World, kubevirt: ControlPlane
) -> None:
    pod = launcher(machines, {RECORD: "node-3"})
    other_uid = copy.deepcopy(pod)
    other_uid["metadata"]["ownerReferences"][0]["uid"] = "another"
    said = f'there is no VirtualMachineInstance %s/"{FEDORA}" of UID "%s" any more'
    assert said % (machines.namespace, "another") in refusal(machines, other_uid)

    elsewhere = World.in_new_namespace(kubevirt, f"sticky-{next(_numbers)}")
    uid = pod["metadata"]["ownerReferences"][0]["uid"]
    assert said % (elsewhere.namespace, uid) in refusal(elsewhere, pod)


def test_vmis_without_a_vm_do_not_stick(machines: World) -> None:
    machines.create(vms.vmi("alone"))
    machines.create(vms.replica_set("set", 2))
    machines.create(vms.pool("pool", 1))

    def running() -> list[Object]:
        pods = machines.all("pods")
        return pods if len(pods) == 4 and all(map(vms.node_of, pods)) else []

    for pod in machines.eventually(running):
        shown = created(machines, pristine(pod))
        of_a_vm = vms.owner(pod)["name"].startswith("pool-")
        assert finalizers(shown) == ([FINALIZER] if of_a_vm else [])


def test_a_record_that_is_no_name_keeps_the_vm_from_starting_anywhere(machines: World) -> None:
    pod = launcher(machines)
    with pytest.raises(ControlPlaneError, match='"Node 3" is no node\'s name; correct it'):
        annotate(machines, **{RECORD: "Node 3"})
    without_us(machines, {RECORD: "Node 3"})
    assert (
        f'VirtualMachine {machines.namespace}/{FEDORA}: annotation {RECORD}: "Node 3" is no '
        "node's name; correct it, or remove it to let the VM start anywhere"
    ) in refusal(machines, pod)


def without_us(world: World, annotations: Mapping[str, str]) -> None:
    """Annotate the VM while our check of VMs is away, as it may be: it is passed over then."""
    name = "validatingwebhookconfiguration/holdfast-dev"
    kept = world.kubectl("get", name, "-o", "json")
    world.kubectl("delete", name)

    def annotated() -> bool:
        try:
            annotate(world, **annotations)
        except ControlPlaneError:  # the API server takes a moment to notice
            return False
        return True

    world.eventually(annotated)
    found = json.loads(kept)
    for key in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"):
        found["metadata"].pop(key, None)
    world.kubectl("create", "-f", "-", stdin=json.dumps(found))
    manifest = vms.vm("probe", {"holdfast.dev/sticky": "maybe"})

    def checked() -> bool:
        try:
            world.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(manifest))
        except ControlPlaneError:
            return True
        return False

    world.eventually(checked)


# --- the VM, as it is written ------------------------------------------------------------------


def test_a_vm_that_says_what_cannot_be_followed_is_refused_where_it_is_written(
    machines: World,
) -> None:
    said = machines.refusal(vms.vm("wrong", {"holdfast.dev/sticky": "yes", RECORD: "a/b"}))
    assert (
        'metadata: annotation holdfast.dev/sticky: "yes" is neither "true" nor "false"; write '
        'one of them; annotation holdfast.dev/sticky-node: "a/b" is no node\'s name'
    ) in said
    right = {"holdfast.dev/sticky": "true", RECORD: "node-1"}
    machines.create(vms.vm("right", right, run_strategy="Halted"))
    before = machines.reviews()
    machines.kubectl("annotate", "vm", "right", "team=a")
    machines.kubectl("label", "vm", "right", "team=a")
    assert machines.reviews() == before


def test_a_node_beside_another_vms_uid_is_refused_where_it_is_written(machines: World) -> None:
    uid = "holdfast.dev/sticky-node-uid"
    copied = {RECORD: "node-1", uid: "another"}
    machines.create(vms.vm("clone", copied, run_strategy="Halted"))
    change = ("annotate", "vm", "clone", "--overwrite", f"{RECORD}=node-2")
    with pytest.raises(ControlPlaneError, match=f"{uid} beside it is another VM's"):
        machines.kubectl(*change)
    machines.kubectl(*change, f"{uid}-")
    found = machines.get("vm", "clone")["metadata"]["annotations"]
    assert (found[RECORD], uid in found) == ("node-2", False)


# --- other webhooks ----------------------------------------------------------------------------


def touched(pod: Object, label: str) -> bool:
    """Tell whether another's webhook has to do with a pod, and has not had it yet."""
    return bool(pod["metadata"].get("labels", {}).get(label) == "yes")


def seen_late(world: World, pod: Object, label: str) -> Object:
    """Create the pod in a dry run, until the other webhook has been called for it."""

    def late() -> Object:
        shown = created(world, pod)
        return shown if shown["metadata"]["labels"][label] == "late" else {}

    return world.eventually(late)


def test_called_again_it_changes_nothing_more_and_refuses_nothing(machines: World) -> None:
    def touches(pod: Object) -> Sequence[Object]:
        late = {"op": "add", "path": "/metadata/labels/touches", "value": "late"}
        return [late] if touched(pod, "touches") else []

    pod = launcher(machines, {RECORD: "node-2"})
    pod["metadata"]["labels"]["touches"] = "yes"
    with other_webhook(machines.plane, "z-touches", touches):
        shown = seen_late(machines, pod, "touches")
    assert (finalizers(shown), pins(shown)) == ([FINALIZER], pinned_to("node-2"))


def test_what_others_strip_is_put_back(machines: World) -> None:
    def strips(pod: Object) -> Sequence[Object]:
        late = [
            {"op": "add", "path": "/metadata/labels/strips", "value": "late"},
            {"op": "remove", "path": "/metadata/finalizers"},
            {"op": "remove", "path": "/spec/affinity"},
        ]
        return late if touched(pod, "strips") else []

    pod = launcher(machines, {RECORD: "node-2"})
    pod["metadata"]["labels"]["strips"] = "yes"
    with other_webhook(machines.plane, "z-strips", strips):
        shown = seen_late(machines, pod, "strips")
    assert (finalizers(shown), pins(shown)) == ([FINALIZER], pinned_to("node-2"))


# --- a cluster without KubeVirt ----------------------------------------------------------------


def test_without_kubevirt_it_says_so_once_and_notices_when_it_comes(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    log = tmp_path_factory.mktemp("idle") / "dev.log"
    with (
        ControlPlane(nodes=3, audit=True) as plane,
        Command("dev", "--kubeconfig", str(plane.kubeconfig), log=log) as running,
    ):
        world = World.in_new_namespace(plane, "idle", running)
        idle = "this cluster has no KubeVirt; idle until it is installed"
        world.eventually(lambda: log.read_text().count(idle) == 1)
        install(plane)
        world.create(vms.vm(annotations={RECORD: "node-2"}))
        assert vms.node_of(vms.landed(world)) == "node-2"
        assert log.read_text().count(idle) == 1
