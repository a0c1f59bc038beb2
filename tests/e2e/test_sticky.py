"""VMs come back to their node, with KubeVirt's own controller: whatever happens in between."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import yaml

from controlplane.kubevirt.nodes import enable_all
from controlplane.launcher import ControlPlane
from tests.e2e import vms
from tests.e2e.accounts import controller_kubeconfig, kubevirt_rights
from tests.e2e.apart import Apart
from tests.e2e.vms import FEDORA
from tests.e2e.world import Object, World

pytestmark = pytest.mark.xdist_group("kubevirt")

RECORD, RECORD_UID = "holdfast.dev/sticky-node", "holdfast.dev/sticky-node-uid"
FINALIZER = "holdfast.dev/sticky"
CONTROLLER = "system:serviceaccount:holdfast-system:holdfast-controller"
TIMES = 20
ORPHANED_SECONDS = 150.0
"""Until a pod whose node is gone is deleted: Kubernetes looks every 20 s, and then waits for 40."""

_numbers = itertools.count(1)


@pytest.fixture
def machines(kubevirt: ControlPlane) -> World:
    """A namespace for VMs, on the cluster with KubeVirt."""
    return World.in_new_namespace(kubevirt, f"landing-{next(_numbers)}")


@pytest.fixture
def holdfast(kubevirt: ControlPlane, tmp_path: Path) -> Iterator[Apart]:
    """Both processes of Holdfast, apart."""
    with Apart(kubevirt, tmp_path) as running:
        yield running


def annotated(world: World, name: str = FEDORA) -> dict[str, str]:
    return dict(world.get("vm", name)["metadata"].get("annotations") or {})


def record(world: World, name: str = FEDORA, key: str = RECORD) -> str:
    return annotated(world, name).get(key, "")


def landed_and_recorded(world: World, name: str = FEDORA) -> Object:
    """Wait until a VM runs, and is recorded where it does."""
    pod = vms.landed(world, name)
    world.eventually(lambda: record(world, name) == vms.node_of(pod))
    return pod


def kept(world: World) -> list[str]:
    """Name the pods that our finalizer keeps."""
    return [
        pod["metadata"]["name"]
        for pod in world.all("pods")
        if FINALIZER in pod["metadata"].get("finalizers", ())
    ]


def run_again(world: World, old: Object) -> Object:
    """Wait for the VM's next run."""
    return vms.landed(world, other_than=vms.uid(old))


def notes(world: World, kind: str, reason: str) -> list[str]:
    return [
        event["note"]
        for event in world.all("events.events.k8s.io")
        if (event["regarding"]["kind"], event["reason"]) == (kind, reason)
    ]


# --- the sticky plugin's own test --------------------------------------------------------------


def test_vm_returns_to_its_node_20_times_of_20(machines: World, holdfast: Apart) -> None:
    machines.create(vms.vm())
    pod = landed_and_recorded(machines)
    first, nodes = vms.node_of(pod), []
    with vms.avoided(machines, first):
        for _ in range(TIMES):
            vms.delete_run(machines)
            pod = run_again(machines, pod)
            nodes.append(vms.node_of(pod))

    assert nodes == [first] * TIMES
    assert annotated(machines)[RECORD_UID] == vms.uid(machines.get("vm", FEDORA))
    told = "the VM has landed on node"
    assert notes(machines, "VirtualMachine", "StickyNodeRecorded") == [
        f"{told} {first}, and comes back there"
    ]
    assert notes(machines, "Pod", "StickyNodeRecorded") != []


def test_without_holdfast_it_lands_elsewhere(machines: World) -> None:
    machines.create(vms.vm())
    pod = vms.landed(machines)
    first = vms.node_of(pod)
    with vms.avoided(machines, first):
        vms.delete_run(machines)
        assert vms.node_of(run_again(machines, pod)) != first


# --- no landing is lost ------------------------------------------------------------------------


def restart(world: World) -> None:
    vms.set_running(world, FEDORA, running=False)


def delete_vmi(world: World) -> None:
    world.kubectl("delete", "vmi", FEDORA, "--wait=false")


def delete_all(world: World) -> None:
    vms.delete_run(world)


def test_clone_starts_afresh_and_has_a_record_of_its_own(machines: World, holdfast: Apart) -> None:
    with vms.avoided(machines, "node-1"):
        machines.create(vms.vm(annotations={RECORD: "node-1", RECORD_UID: "of-another-vm"}))
        pod = vms.landed(machines)
        assert vms.node_of(pod) != "node-1"
        own = vms.uid(machines.get("vm", FEDORA))
        machines.eventually(lambda: annotated(machines).get(RECORD_UID) == own)
        assert record(machines) == vms.node_of(pod)


@pytest.mark.parametrize("end", [restart, delete_vmi, delete_all], ids=lambda one: one.__name__)
def test_landing_of_a_vm_that_went_while_no_controller_ran(
    machines: World, holdfast: Apart, end: Callable[[World], None]
) -> None:
    holdfast.controller.kill()
    machines.create(vms.vm())
    pod = vms.landed(machines)
    end(machines)
    name = pod["metadata"]["name"]
    machines.eventually(lambda: "deletionTimestamp" in machines.get("pod", name)["metadata"])
    assert kept(machines) == [name]  # and so there is no new one
    assert record(machines) == ""

    with vms.avoided(machines, vms.node_of(pod)):
        holdfast.controller.start()
        if end is restart:
            machines.eventually(lambda: vms.is_gone(machines, FEDORA))
            vms.set_running(machines, FEDORA, running=True)
        assert vms.node_of(run_again(machines, pod)) == vms.node_of(pod)
    assert record(machines) == vms.node_of(pod)


def test_vm_that_ran_before_holdfast_is_recorded_at_its_start(
    machines: World, kubevirt: ControlPlane, tmp_path: Path
) -> None:
    machines.create(vms.vm())
    machines.create(vms.vm("free", {"holdfast.dev/sticky": "false"}))
    pod = vms.landed(machines)
    free = vms.landed(machines, "free")
    with Apart(kubevirt, tmp_path):
        machines.eventually(lambda: record(machines) == vms.node_of(pod))
        assert record(machines, "free") == ""

        machines.kubectl("annotate", "vm", "free", "--overwrite", "holdfast.dev/sticky=true")
        machines.eventually(lambda: record(machines, "free") == vms.node_of(free))


def test_key_of_the_sticky_vm_plugin(
    machines: World, kubevirt: ControlPlane, tmp_path: Path
) -> None:
    key = "example.com/sticky-node"
    config = (
        "profiles:\n- schedulerName: '*'\n  pluginConfig:\n"
        f"  - {{name: sticky, args: {{nodeAnnotation: {key}}}}}\n"
    )
    with Apart(kubevirt, tmp_path, config=config):
        machines.create(vms.vm())
        pod = vms.landed(machines)
        machines.eventually(lambda: record(machines, key=key) == vms.node_of(pod))
        assert record(machines) == ""
        with vms.avoided(machines, vms.node_of(pod)):
            vms.delete_run(machines)
            assert vms.node_of(run_again(machines, pod)) == vms.node_of(pod)


# --- what people do ----------------------------------------------------------------------------


def test_person_moves_a_vm_and_lets_it_go(machines: World, holdfast: Apart) -> None:
    machines.create(vms.vm())
    pod = landed_and_recorded(machines)
    first = vms.node_of(pod)
    second = next(node for node in vms.NODES if node != first)
    machines.kubectl("annotate", "vm", FEDORA, "--overwrite", f"{RECORD}={second}")
    vms.delete_run(machines)
    pod = run_again(machines, pod)
    assert (vms.node_of(pod), record(machines)) == (second, second)
    machines.eventually(lambda: kept(machines) == [])

    machines.kubectl("annotate", "vm", FEDORA, f"{RECORD}-")
    holdfast.controller.kill()
    holdfast.controller.start()
    assert record(machines) == ""
    with vms.avoided(machines, second):
        vms.delete_run(machines)
        pod = run_again(machines, pod)
    assert vms.node_of(pod) != second
    machines.eventually(lambda: record(machines) == vms.node_of(pod))


def test_finalizer_that_somebody_strips(machines: World, holdfast: Apart) -> None:
    """What runs is recorded all the same; what is gone as well has been lost with it."""
    holdfast.controller.kill()
    for name in ("runs", "gone"):
        machines.create(vms.vm(name))
        pod = vms.landed(machines, name)
        finalizers = json.dumps({"metadata": {"finalizers": None}})
        machines.kubectl("patch", "pod", pod["metadata"]["name"], "--type=merge", "-p", finalizers)
    running = vms.landed(machines, "runs")
    vms.stop(machines, "gone")
    holdfast.controller.start()

    machines.eventually(lambda: record(machines, "runs") == vms.node_of(running))
    assert record(machines, "gone") == ""


# --- migrations --------------------------------------------------------------------------------


def test_record_follows_a_migration_and_a_restart_right_after_finds_it(
    machines: World, holdfast: Apart
) -> None:
    machines.create(vms.vm())
    landed_and_recorded(machines)
    source, target = vms.migrate(machines)
    vms.delete_run(machines)
    with vms.avoided(machines, vms.node_of(target)):
        pod = run_again(machines, target)

    assert vms.node_of(source) != vms.node_of(target)
    assert vms.node_of(pod) == record(machines) == vms.node_of(target)
    machines.eventually(lambda: kept(machines) == [])


@pytest.mark.parametrize("first", ["recorded", "not recorded"])
def test_migration_while_no_controller_ran(machines: World, holdfast: Apart, first: str) -> None:
    if first == "not recorded":
        holdfast.controller.kill()
    machines.create(vms.vm())
    pod = vms.landed(machines)
    if first == "recorded":
        landed_and_recorded(machines)
        machines.eventually(lambda: kept(machines) == [])
        holdfast.controller.kill()
    _, target = vms.migrate(machines)
    vms.delete_run(machines)
    assert target["metadata"]["name"] in kept(machines)
    assert record(machines) == (vms.node_of(pod) if first == "recorded" else "")

    with vms.avoided(machines, vms.node_of(target)):
        holdfast.controller.start()
        assert vms.node_of(run_again(machines, target)) == vms.node_of(target)
    assert record(machines) == vms.node_of(target)


def test_migration_that_is_cancelled_changes_nothing(machines: World, holdfast: Apart) -> None:
    machines.create(vms.vm())
    pod = landed_and_recorded(machines)
    with cordoned(machines, *(node for node in vms.NODES if node != vms.node_of(pod))):
        made = machines.create(vms.migration("nowhere", FEDORA))
        machines.eventually(lambda: len(vms.launchers(machines, FEDORA)) == 2)
        machines.kubectl("delete", "vmim", "nowhere", "--wait=false")
        machines.eventually(lambda: vms.find(machines, "vmim", "nowhere") is None)
    machines.eventually(lambda: kept(machines) == [])

    assert made["metadata"]["name"] == "nowhere"
    assert record(machines) == vms.node_of(pod)
    assert vms.uid(vms.landed(machines)) == vms.uid(pod)


# --- nodes that cannot take their VM -----------------------------------------------------------


@contextmanager
def cordoned(world: World, *nodes: str) -> Iterator[None]:
    world.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        world.kubectl("uncordon", *nodes)


@contextmanager
def unlabelled(world: World, node: str) -> Iterator[None]:
    world.kubectl("label", "node", node, "kubevirt.io/schedulable-")
    try:
        yield
    finally:
        world.kubectl("label", "node", node, "kubevirt.io/schedulable=true")


@contextmanager
def removed(world: World, node: str) -> Iterator[None]:
    """Take a node away, with what runs on it, and bring it back under its name."""
    kept_keys = ("name", "labels", "annotations")
    seen = world.get("node", node)
    metadata = {key: seen["metadata"][key] for key in kept_keys}
    status = {key: seen["status"][key] for key in ("capacity", "allocatable", "nodeInfo")}
    world.kubectl("delete", "node", node)
    try:
        yield
    finally:
        manifest = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
        world.kubectl("create", "-f", "-", stdin=yaml.safe_dump(manifest))
        enable_all(world.plane.api)


@pytest.mark.parametrize(
    ("without", "why"),
    [
        pytest.param(cordoned, "which is cordoned", id="cordoned"),
        pytest.param(unlabelled, "which lacks the label kubevirt.io/schedulable=true", id="label"),
    ],
)
def test_vm_waits_for_its_node_and_says_why(
    machines: World,
    holdfast: Apart,
    without: Callable[[World, str], AbstractContextManager[None]],
    why: str,
) -> None:
    machines.create(vms.vm())
    pod = landed_and_recorded(machines)
    node = vms.node_of(pod)
    with without(machines, node):
        vms.delete_run(machines)
        machines.eventually(lambda: notes(machines, "VirtualMachine", "StickyNodeUnavailable"))
        machines.eventually(lambda: notes(machines, "Pod", "StickyNodeUnavailable"))
        (note,) = set(notes(machines, "VirtualMachine", "StickyNodeUnavailable"))
        assert note.startswith(f"the VM waits for its node {node}, {why}")
        assert record(machines) == node
    assert vms.node_of(run_again(machines, pod)) == node


def test_node_that_goes_with_the_pod_on_it_is_still_the_vms_node(
    machines: World, holdfast: Apart
) -> None:
    holdfast.controller.kill()
    machines.create(vms.vm())
    pod = vms.landed(machines)
    node = vms.node_of(pod)
    with removed(machines, node):
        machines.eventually(
            lambda: "deletionTimestamp" in machines.get("pod", pod["metadata"]["name"])["metadata"],
            ORPHANED_SECONDS,
        )
        holdfast.controller.start()
        machines.eventually(lambda: record(machines) == node)
        machines.eventually(lambda: notes(machines, "VirtualMachine", "StickyNodeUnavailable"))
        (note,) = set(notes(machines, "VirtualMachine", "StickyNodeUnavailable"))
        assert note.startswith(f"the VM waits for its node {node}, which does not exist")
    assert vms.node_of(run_again(machines, pod)) == node


# --- rights ------------------------------------------------------------------------------------


def rules() -> set[tuple[str, str, str]]:
    """Give what the shipped role grants, as (verb, group, resource)."""
    objects = yaml.safe_load_all(kubevirt_rights().read_text())
    (role,) = [one for one in objects if one["kind"] == "ClusterRole"]
    return {
        (verb, group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def asked(plane: ControlPlane) -> list[tuple[tuple[str, str, str], int]]:
    """Give what the controller's account asked for, and the answers' statuses."""
    events = [
        json.loads(line)
        for line in plane.audit_log.read_text().splitlines(keepends=True)
        if line.endswith("\n") and CONTROLLER in line
    ]
    return [
        (
            (event["verb"], event["objectRef"].get("apiGroup", ""), event["objectRef"]["resource"]),
            event["responseStatus"]["code"],
        )
        for event in events
        if event["user"]["username"] == CONTROLLER and "objectRef" in event
    ]


def test_rights_as_shipped_suffice_and_each_is_needed(
    machines: World, kubevirt: ControlPlane, tmp_path: Path
) -> None:
    kubeconfig = controller_kubeconfig(kubevirt, tmp_path / "kubeconfig")
    kubevirt.kubectl("apply", "-f", str(kubevirt_rights()))
    with Apart(kubevirt, tmp_path, controller_kubeconfig=kubeconfig):
        machines.create(vms.vm())
        landed_and_recorded(machines)
        _, target = vms.migrate(machines)
        node = vms.node_of(target)
        machines.eventually(lambda: record(machines) == node)
        with cordoned(machines, node):
            vms.delete_run(machines)
            machines.eventually(lambda: notes(machines, "Pod", "StickyNodeUnavailable"))
        assert vms.node_of(run_again(machines, target)) == node
        machines.eventually(lambda: kept(machines) == [])

    answers = asked(kubevirt)
    assert {right for right, status in answers if status == 403} == set()
    used = {right for right, status in answers if status < 400}
    others = {right for right in used if right[1] != "kubevirt.io" and right[2] != "nodes"}
    assert used - others == rules()
