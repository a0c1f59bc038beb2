"""VMs return to their node, with KubeVirt's own virt-controller."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import yaml

from controlplane.kubevirt import KWOK_VMI
from controlplane.kubevirt.nodes import enable_all
from controlplane.launcher import ControlPlane
from controlplane.nodes import FAKE, is_ready
from tests.e2e import fake_kubevirt, vms
from tests.e2e.namespace import HOSTNAME, Namespace, Object, listens, volume
from tests.e2e.two_processes import TwoProcesses
from tests.e2e.vms import FEDORA

pytestmark = pytest.mark.xdist_group("kubevirt")

RECORD, RECORD_UID = "holdfast.dev/sticky-node", "holdfast.dev/sticky-node-uid"
FINALIZER = "holdfast.dev/sticky"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TIMES = 20
ORPHANED_SECONDS = 150.0
"""Until Kubernetes deletes a pod of a deleted node: it checks every 20 s, and then waits 40 s."""

_numbers = itertools.count(1)


@pytest.fixture
def vm_ns(kubevirt: ControlPlane) -> Namespace:
    """A namespace for VMs, on the cluster with KubeVirt."""
    return Namespace.create_new(kubevirt, f"landing-{next(_numbers)}")


@pytest.fixture(scope="module")
def apart(
    kubevirt: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoProcesses]:
    with TwoProcesses(kubevirt, tmp_path_factory.mktemp("apart")) as running:
        yield running


@pytest.fixture
def holdfast(apart: TwoProcesses) -> TwoProcesses:
    """Both processes; started again if a failed test has left one stopped."""
    for name in ("server", "controller"):
        if not getattr(apart, name).was_started:
            apart.start(name)
    return apart


def annotated(ns: Namespace, name: str = FEDORA) -> dict[str, str]:
    return dict(ns.get("vm", name)["metadata"].get("annotations") or {})


def record(ns: Namespace, name: str = FEDORA, key: str = RECORD) -> str:
    return annotated(ns, name).get(key, "")


def landed_and_recorded(ns: Namespace, name: str = FEDORA) -> Object:
    """Wait until a VM runs and its node is recorded; return its pod."""
    pod = vms.landed(ns, name)
    ns.eventually(lambda: record(ns, name) == vms.node_of(pod))
    return pod


def kept(ns: Namespace) -> list[str]:
    """Return the names of the pods with our finalizer."""
    return [
        pod["metadata"]["name"]
        for pod in ns.all("pods")
        if FINALIZER in pod["metadata"].get("finalizers", ())
    ]


def run_again(ns: Namespace, old: Object) -> Object:
    return vms.landed(ns, other_than=vms.uid(old))


def notes(ns: Namespace, kind: str, reason: str) -> list[str]:
    return [
        event["note"]
        for event in ns.all("events.events.k8s.io")
        if (event["regarding"]["kind"], event["reason"]) == (kind, reason)
    ]


# --- without the shared processes: first, because they run from the next test on -----------------


def test_vm_moves_without_holdfast(vm_ns: Namespace) -> None:
    vm_ns.create(vms.vm())
    pod = vms.landed(vm_ns)
    first = vms.node_of(pod)
    with vms.avoided(vm_ns, first):
        vms.delete_run(vm_ns)
        assert vms.node_of(run_again(vm_ns, pod)) != first


def test_vm_running_before_holdfast_is_recorded_at_startup(
    vm_ns: Namespace, kubevirt: ControlPlane, tmp_path: Path
) -> None:
    vm_ns.create(vms.vm())
    vm_ns.create(vms.vm("free", {"holdfast.dev/sticky": "false"}))
    pod = vms.landed(vm_ns)
    free = vms.landed(vm_ns, "free")
    with TwoProcesses(kubevirt, tmp_path):
        vm_ns.eventually(lambda: record(vm_ns) == vms.node_of(pod))
        assert record(vm_ns, "free") == ""

        vm_ns.kubectl("annotate", "vm", "free", "--overwrite", "holdfast.dev/sticky=true")
        vm_ns.eventually(lambda: record(vm_ns, "free") == vms.node_of(free))


def test_record_uses_the_configured_annotation(
    vm_ns: Namespace, kubevirt: ControlPlane, tmp_path: Path
) -> None:
    key = "example.com/sticky-node"
    config = (
        "profiles:\n- schedulerName: '*'\n  pluginConfig:\n"
        f"  - {{name: sticky, args: {{nodeAnnotation: {key}}}}}\n"
    )
    with TwoProcesses(kubevirt, tmp_path, config=config):
        vm_ns.create(vms.vm())
        pod = vms.landed(vm_ns)
        vm_ns.eventually(lambda: record(vm_ns, key=key) == vms.node_of(pod))
        assert record(vm_ns) == ""
        with vms.avoided(vm_ns, vms.node_of(pod)):
            vms.delete_run(vm_ns)
            assert vms.node_of(run_again(vm_ns, pod)) == vms.node_of(pod)


# --- the sticky plugin's own test --------------------------------------------------------------


def test_vm_returns_to_its_node_20_times_of_20(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    vm_ns.create(vms.vm())
    pod = landed_and_recorded(vm_ns)
    first, nodes = vms.node_of(pod), []
    with vms.avoided(vm_ns, first):
        for _ in range(TIMES):
            vms.delete_run(vm_ns)
            pod = run_again(vm_ns, pod)
            nodes.append(vms.node_of(pod))

    assert nodes == [first] * TIMES
    assert annotated(vm_ns)[RECORD_UID] == vms.uid(vm_ns.get("vm", FEDORA))
    prefix = "recorded node"
    assert notes(vm_ns, "VirtualMachine", "StickyNodeRecorded") == [
        f"{prefix} {first}: the VM starts there again"
    ]
    assert notes(vm_ns, "Pod", "StickyNodeRecorded") != []


# --- no record is lost -------------------------------------------------------------------------


def restart(ns: Namespace) -> None:
    vms.set_running(ns, FEDORA, running=False)


def delete_vmi(ns: Namespace) -> None:
    ns.kubectl("delete", "vmi", FEDORA, "--wait=false")


def delete_all(ns: Namespace) -> None:
    vms.delete_run(ns)


def test_clone_gets_its_own_record(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    with vms.avoided(vm_ns, "node-1"):
        vm_ns.create(vms.vm(annotations={RECORD: "node-1", RECORD_UID: "of-another-vm"}))
        pod = vms.landed(vm_ns)
        assert vms.node_of(pod) != "node-1"
        own = vms.uid(vm_ns.get("vm", FEDORA))
        vm_ns.eventually(lambda: annotated(vm_ns).get(RECORD_UID) == own)
        assert record(vm_ns) == vms.node_of(pod)


@pytest.mark.parametrize("end", [restart, delete_vmi, delete_all], ids=lambda one: one.__name__)
def test_node_of_vm_stopped_without_a_controller_is_recorded(
    vm_ns: Namespace, holdfast: TwoProcesses, end: Callable[[Namespace], None]
) -> None:
    holdfast.controller.kill()
    vm_ns.create(vms.vm())
    pod = vms.landed(vm_ns)
    end(vm_ns)
    name = pod["metadata"]["name"]
    vm_ns.eventually(lambda: "deletionTimestamp" in vm_ns.get("pod", name)["metadata"])
    assert kept(vm_ns) == [name]  # so KubeVirt creates no new one
    assert record(vm_ns) == ""

    with vms.avoided(vm_ns, vms.node_of(pod)):
        holdfast.controller.start()
        if end is restart:
            vm_ns.eventually(lambda: vms.is_gone(vm_ns, FEDORA))
            vms.set_running(vm_ns, FEDORA, running=True)
        assert vms.node_of(run_again(vm_ns, pod)) == vms.node_of(pod)
    assert record(vm_ns) == vms.node_of(pod)


def test_vmi_with_another_name_is_not_recorded(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    """KubeVirt runs a VMI that names any VM of its namespace as its owner."""
    victim, forged = vm_ns.create(vms.vm(run_strategy="Halted")), vms.vmi("forged")
    forged["metadata"]["ownerReferences"] = [fake_kubevirt.owned_by(victim)]
    vm_ns.create(forged)
    elsewhere = vms.node_of(vms.landed(vm_ns, "forged"))
    assert (kept(vm_ns), record(vm_ns)) == ([], "")
    with vms.avoided(vm_ns, elsewhere):
        vms.start(vm_ns)
        own = vms.node_of(landed_and_recorded(vm_ns))
    assert own != elsewhere


# --- user changes ------------------------------------------------------------------------------


def test_user_moves_a_vm_and_clears_its_record(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    vm_ns.create(vms.vm())
    pod = landed_and_recorded(vm_ns)
    first = vms.node_of(pod)
    second = next(node for node in vms.NODES if node != first)
    vm_ns.kubectl("annotate", "vm", FEDORA, "--overwrite", f"{RECORD}={second}")
    vms.delete_run(vm_ns)
    pod = run_again(vm_ns, pod)
    assert (vms.node_of(pod), record(vm_ns)) == (second, second)
    vm_ns.eventually(lambda: kept(vm_ns) == [])

    vm_ns.kubectl("annotate", "vm", FEDORA, f"{RECORD}-")
    holdfast.controller.kill()
    holdfast.controller.start()
    assert record(vm_ns) == ""
    with vms.avoided(vm_ns, second):
        vms.delete_run(vm_ns)
        pod = run_again(vm_ns, pod)
    assert vms.node_of(pod) != second
    vm_ns.eventually(lambda: record(vm_ns) == vms.node_of(pod))


def test_user_moves_the_vms_of_a_node(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    vm_ns.create(vms.vm())
    pod = landed_and_recorded(vm_ns)
    old, new, *_ = sorted(vms.NODES, key=lambda node: node != vms.node_of(pod))
    command(vm_ns, "sticky", "move", "--from", old, "--to", new, "--yes")
    with vms.avoided(vm_ns, new):
        vms.delete_run(vm_ns)
        assert vms.node_of(run_again(vm_ns, pod)) == new
    assert record(vm_ns) == new


def test_removed_finalizer_loses_only_the_node_of_a_stopped_vm(
    vm_ns: Namespace, holdfast: TwoProcesses
) -> None:
    """A running VM is still recorded; if the VM has stopped as well, its node is lost."""
    holdfast.controller.kill()
    for name in ("runs", "gone"):
        vm_ns.create(vms.vm(name))
        pod = vms.landed(vm_ns, name)
        finalizers = json.dumps({"metadata": {"finalizers": None}})
        vm_ns.kubectl("patch", "pod", pod["metadata"]["name"], "--type=merge", "-p", finalizers)
    running = vms.landed(vm_ns, "runs")
    vms.stop(vm_ns, "gone")
    holdfast.controller.start()

    vm_ns.eventually(lambda: record(vm_ns, "runs") == vms.node_of(running))
    assert record(vm_ns, "gone") == ""


# --- migrations --------------------------------------------------------------------------------


def test_record_follows_a_migration(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    vm_ns.create(vms.vm())
    landed_and_recorded(vm_ns)
    source, target = vms.migrate(vm_ns)
    vms.delete_run(vm_ns)
    with vms.avoided(vm_ns, vms.node_of(target)):
        pod = run_again(vm_ns, target)

    assert vms.node_of(source) != vms.node_of(target)
    assert vms.node_of(pod) == record(vm_ns) == vms.node_of(target)
    vm_ns.eventually(lambda: kept(vm_ns) == [])


@pytest.mark.parametrize("first", ["recorded", "not recorded"])
def test_migration_without_a_controller_is_recorded(
    vm_ns: Namespace, holdfast: TwoProcesses, first: str
) -> None:
    if first == "not recorded":
        holdfast.controller.kill()
    vm_ns.create(vms.vm())
    pod = vms.landed(vm_ns)
    if first == "recorded":
        landed_and_recorded(vm_ns)
        vm_ns.eventually(lambda: kept(vm_ns) == [])
        holdfast.controller.kill()
    _, target = vms.migrate(vm_ns)
    vms.delete_run(vm_ns)
    assert target["metadata"]["name"] in kept(vm_ns)
    assert record(vm_ns) == (vms.node_of(pod) if first == "recorded" else "")

    with vms.avoided(vm_ns, vms.node_of(target)):
        holdfast.controller.start()
        assert vms.node_of(run_again(vm_ns, target)) == vms.node_of(target)
    assert record(vm_ns) == vms.node_of(target)


def remove_finalizers(ns: Namespace) -> None:
    for name in kept(ns):
        ns.kubectl("patch", "pod", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def set_sticky(ns: Namespace, value: str) -> None:
    ns.kubectl("annotate", "vm", FEDORA, "--overwrite", f"holdfast.dev/sticky={value}")


def report_source(ns: Namespace, node: str) -> None:
    """Have the VMI report another source of its migration, as KubeVirt's virt-handler may."""
    patch = json.dumps({"status": {"migrationState": {"sourceNode": node}}})
    account = "system:serviceaccount:kubevirt:kubevirt-handler"
    acting = (f"--as={account}", "--as-group=system:masters")
    ns.kubectl("patch", "vmi", FEDORA, "--type=merge", "-p", patch, *acting)


def command(ns: Namespace, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.webhook", *arguments, "-n", ns.namespace],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "KUBECONFIG": str(ns.plane.kubeconfig)},
    ).stdout


@pytest.mark.parametrize("source", ["recorded", "in another cluster"])
def test_migration_without_finalizers_is_recorded(
    vm_ns: Namespace, holdfast: TwoProcesses, source: str
) -> None:
    vm_ns.create(vms.vm())
    landed_and_recorded(vm_ns)
    holdfast.controller.kill()
    _, target = vms.migrate(vm_ns)
    remove_finalizers(vm_ns)
    if source != "recorded":
        report_source(vm_ns, "node-of-another-cluster")
    holdfast.controller.start()
    vm_ns.eventually(lambda: record(vm_ns) == vms.node_of(target))

    vms.delete_run(vm_ns)
    with vms.avoided(vm_ns, vms.node_of(target)):
        assert vms.node_of(run_again(vm_ns, target)) == vms.node_of(target)
    assert notes(vm_ns, "VirtualMachine", "StickyNodeDiffers") == []


def test_migration_of_a_non_sticky_vm_is_recorded(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    vm_ns.create(vms.vm())
    landed_and_recorded(vm_ns)
    set_sticky(vm_ns, "false")
    _, target = vms.migrate(vm_ns)
    vm_ns.eventually(lambda: record(vm_ns) == vms.node_of(target))
    vms.delete_run(vm_ns)
    set_sticky(vm_ns, "true")
    assert record(vm_ns) == vms.node_of(target)


def test_user_can_set_the_record_back_after_a_migration(
    vm_ns: Namespace, holdfast: TwoProcesses
) -> None:
    vm_ns.create(vms.vm())
    source = landed_and_recorded(vm_ns)
    _, target = vms.migrate(vm_ns)
    vm_ns.eventually(lambda: record(vm_ns) == vms.node_of(target) and not kept(vm_ns))
    command(vm_ns, "sticky", "set", FEDORA, vms.node_of(source))
    holdfast.controller.kill()
    holdfast.controller.start()
    set_sticky(vm_ns, "true")
    vms.delete_run(vm_ns)
    pod = run_again(vm_ns, target)
    assert vms.node_of(pod) == record(vm_ns) == vms.node_of(source)
    assert notes(vm_ns, "VirtualMachine", "StickyNodeDiffers") == []


def test_vm_running_on_an_unrecorded_node_is_reported(
    vm_ns: Namespace, holdfast: TwoProcesses
) -> None:
    vm_ns.create(vms.vm())
    pod = landed_and_recorded(vm_ns)
    first = vms.node_of(pod)
    set_sticky(vm_ns, "false")
    with vms.avoided(vm_ns, first):
        vms.delete_run(vm_ns)
        pod = run_again(vm_ns, pod)
    second = vms.node_of(pod)
    assert second != first
    set_sticky(vm_ns, "true")
    vm_ns.eventually(lambda: notes(vm_ns, "VirtualMachine", "StickyNodeDiffers"))
    (note,) = notes(vm_ns, "VirtualMachine", "StickyNodeDiffers")
    assert note.startswith(f"the VM runs on {second}, but starts on {first} the next time")
    assert record(vm_ns) == first
    assert f"{second} (differs)" in command(vm_ns, "sticky", "list")

    _, target = vms.migrate(vm_ns)
    vm_ns.eventually(lambda: record(vm_ns) == vms.node_of(target))
    assert "(differs)" not in command(vm_ns, "sticky", "list")


def test_cancelled_migration_does_not_change_the_record(
    vm_ns: Namespace, holdfast: TwoProcesses
) -> None:
    vm_ns.create(vms.vm())
    pod = landed_and_recorded(vm_ns)
    with cordoned(vm_ns, *(node for node in vms.NODES if node != vms.node_of(pod))):
        made = vm_ns.create(vms.migration("nowhere", FEDORA))
        vm_ns.eventually(lambda: len(vms.launchers(vm_ns, FEDORA)) == 2)
        vm_ns.kubectl("delete", "vmim", "nowhere", "--wait=false")
        vm_ns.eventually(lambda: vm_ns.find("vmim", "nowhere") is None)
    vm_ns.eventually(lambda: kept(vm_ns) == [])

    assert made["metadata"]["name"] == "nowhere"
    assert record(vm_ns) == vms.node_of(pod)
    assert vms.uid(vms.landed(vm_ns)) == vms.uid(pod)


# --- pools -------------------------------------------------------------------------------------

POOL = [f"pool-{number}" for number in range(3)]


def change_pool(ns: Namespace, **template: object) -> None:
    patch = json.dumps({"spec": {"virtualMachineTemplate": template}})
    ns.kubectl("patch", "virtualmachinepool", "pool", "--type=merge", "-p", patch)


def start_pool(ns: Namespace) -> dict[str, str]:
    """Start a pool of VMs, wait until all are recorded, and return their nodes."""
    ns.create(vms.pool("pool", len(POOL)))
    nodes = {name: vms.node_of(landed_and_recorded(ns, name)) for name in POOL}
    ns.eventually(lambda: kept(ns) == [])
    return nodes


def has_team(ns: Namespace) -> bool:
    return all("team" in annotated(ns, name) for name in POOL)


@pytest.mark.parametrize("controller", ["with", "without"])
def test_pool_template_change_does_not_move_vms(
    vm_ns: Namespace, holdfast: TwoProcesses, controller: str
) -> None:
    nodes = start_pool(vm_ns)
    if controller == "without":
        holdfast.controller.kill()
    change_pool(vm_ns, metadata={"annotations": {"team": "a"}})
    vm_ns.eventually(lambda: has_team(vm_ns))
    assert {name: record(vm_ns, name) for name in POOL} == nodes

    for strategy in ("Halted", "Always"):
        change_pool(vm_ns, spec={"runStrategy": strategy})
        if strategy == "Halted":
            vm_ns.eventually(lambda: all(vms.is_gone(vm_ns, name) for name in POOL))
    assert {name: vms.node_of(vms.landed(vm_ns, name)) for name in POOL} == nodes
    if controller == "without":
        holdfast.controller.start()
    source, target = vms.migrate(vm_ns, POOL[0])
    assert vms.node_of(source) == nodes[POOL[0]]
    vm_ns.eventually(lambda: record(vm_ns, POOL[0]) == vms.node_of(target))


def test_pool_template_change_waits_for_the_webhook(
    vm_ns: Namespace, holdfast: TwoProcesses
) -> None:
    nodes = start_pool(vm_ns)
    holdfast.server.kill()
    vm_ns.eventually(lambda: not listens(holdfast.address))  # its worker outlives it for a moment
    change_pool(vm_ns, metadata={"annotations": {"team": "a"}})
    vm_ns.eventually(
        lambda: [
            note for note in notes(vm_ns, "VirtualMachinePool", "FailedUpdate") if "vms.h" in note
        ]
    )
    assert not has_team(vm_ns)
    assert {name: record(vm_ns, name) for name in POOL} == nodes
    holdfast.start("server")
    vm_ns.eventually(lambda: has_team(vm_ns), ORPHANED_SECONDS)
    assert {name: record(vm_ns, name) for name in POOL} == nodes


def test_cleared_record_of_a_pool_vm_stays_cleared(
    vm_ns: Namespace, holdfast: TwoProcesses
) -> None:
    start_pool(vm_ns)
    vm_ns.kubectl("annotate", "vm", POOL[0], f"{RECORD}-")
    change_pool(vm_ns, metadata={"annotations": {"team": "a"}})
    vm_ns.eventually(lambda: has_team(vm_ns))
    found = annotated(vm_ns, POOL[0])
    assert (RECORD in found, RECORD_UID in found) == (False, True)


# --- nodes that cannot take their VM -----------------------------------------------------------


@contextmanager
def cordoned(ns: Namespace, *nodes: str) -> Iterator[None]:
    ns.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        ns.kubectl("uncordon", *nodes)


@contextmanager
def unlabelled(ns: Namespace, node: str) -> Iterator[None]:
    ns.kubectl("label", "node", node, "kubevirt.io/schedulable-")
    try:
        yield
    finally:
        ns.kubectl("label", "node", node, "kubevirt.io/schedulable=true")


@contextmanager
def not_ready(ns: Namespace, node: str) -> Iterator[None]:
    key, value = FAKE
    ns.kubectl("annotate", "node", node, f"{key}-")  # kwok no longer manages it
    condition = {"type": "Ready", "status": "False", "reason": "KubeletSays"}
    patch = json.dumps({"status": {"conditions": [condition]}})
    ns.kubectl("patch", "node", node, "--subresource=status", "-p", patch)
    try:
        ns.eventually(lambda: ns.get("node", node)["spec"].get("taints"))
        yield
    finally:
        ns.kubectl("annotate", "node", node, f"{key}={value}")
        ns.eventually(lambda: is_ready(ns.get("node", node)))


@contextmanager
def removed(ns: Namespace, node: str) -> Iterator[None]:
    """Delete a node and its pods; recreate it with the same name afterwards."""
    kept_keys = ("name", "labels", "annotations")
    seen = ns.get("node", node)
    metadata = {key: seen["metadata"][key] for key in kept_keys}
    status = {key: seen["status"][key] for key in ("capacity", "allocatable", "nodeInfo")}
    ns.kubectl("delete", "node", node)
    try:
        yield
    finally:
        manifest = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
        ns.kubectl("create", "-f", "-", stdin=yaml.safe_dump(manifest))
        enable_all(ns.plane.api)


@pytest.mark.parametrize(
    ("without", "why"),
    [
        pytest.param(cordoned, "which is cordoned", id="cordoned"),
        pytest.param(not_ready, "which is not ready (KubeletSays)", id="not ready"),
        pytest.param(unlabelled, "which lacks the label kubevirt.io/schedulable=true", id="label"),
    ],
)
def test_vm_waits_for_its_node_and_reports_why(
    vm_ns: Namespace,
    holdfast: TwoProcesses,
    without: Callable[[Namespace, str], AbstractContextManager[None]],
    why: str,
) -> None:
    vm_ns.create(vms.vm())
    pod = landed_and_recorded(vm_ns)
    node = vms.node_of(pod)
    with without(vm_ns, node):
        vms.delete_run(vm_ns)
        vm_ns.eventually(lambda: notes(vm_ns, "VirtualMachine", "StickyNodeUnavailable"))
        vm_ns.eventually(lambda: notes(vm_ns, "Pod", "StickyNodeUnavailable"))
        (note,) = set(notes(vm_ns, "VirtualMachine", "StickyNodeUnavailable"))
        assert note.startswith(f"the VM waits for its node {node}, {why}")
        starting = f"VM {vm_ns.namespace}/{FEDORA} is starting: its pod keeps the node"
        vm_ns.eventually(lambda: starting in command(vm_ns, "sticky", "set", FEDORA, node))
        assert record(vm_ns) == node
    assert vms.node_of(run_again(vm_ns, pod)) == node


UNMET = f'"{HOSTNAME} In [elsewhere]"'
ELSEWHERE = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": ["elsewhere"]}]}
    ]
}
BY_POD = (
    f"does not meet {UNMET} of the pod's node selector or affinity",
    f"the node selector or affinity of the pod requires {UNMET}",
)
BY_VOLUME = (
    "a volume of the VM cannot be reached from",
    f"the volume of claim data requires {UNMET}",
)


@pytest.mark.parametrize(
    ("spec", "noted", "shown"),
    [
        pytest.param({"nodeSelector": {HOSTNAME: "elsewhere"}}, *BY_POD, id="selector"),
        pytest.param({"affinity": {"nodeAffinity": {REQUIRED: ELSEWHERE}}}, *BY_POD, id="affinity"),
        pytest.param(
            {
                "domain": {"devices": {"disks": [{"name": "data", "disk": {}}]}},
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            },
            *BY_VOLUME,
            id="volume",
        ),
    ],
)
def test_record_contradicting_the_vm_template_is_reported(
    vm_ns: Namespace, holdfast: TwoProcesses, spec: Object, noted: str, shown: str
) -> None:
    vm_ns.apply(*volume(f"disk-{vm_ns.namespace}", "data", ELSEWHERE))
    vm_ns.create(vms.vm())
    node = vms.node_of(landed_and_recorded(vm_ns))
    template = json.dumps({"spec": {"template": {"spec": spec}}})
    vm_ns.kubectl("patch", "vm", FEDORA, "--type=merge", "-p", template)
    vms.delete_run(vm_ns)
    vm_ns.eventually(lambda: notes(vm_ns, "VirtualMachine", "StickyNodeUnavailable"))
    (note,) = set(notes(vm_ns, "VirtualMachine", "StickyNodeUnavailable"))
    assert note.startswith(f"the VM waits for its node {node}, which {noted}")
    required = f"{node}: {shown}"
    (pod,) = vms.launchers(vm_ns, FEDORA)
    for arguments in (["sticky", "show", FEDORA], ["explain", pod["metadata"]["name"]]):
        assert required in command(vm_ns, *arguments)


def test_node_with_a_different_hostname_label(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    vm_ns.kubectl("label", "node", "node-2", "--overwrite", f"{HOSTNAME}=host-2")
    try:
        vm_ns.create(vms.vm(nodeSelector={HOSTNAME: "host-2"}))
        pod = landed_and_recorded(vm_ns)
        assert record(vm_ns) == "node-2"
        with cordoned(vm_ns, "node-2"):
            vms.delete_run(vm_ns)
            vm_ns.eventually(lambda: notes(vm_ns, "Pod", "StickyNodeUnavailable"))
            name = vms.launchers(vm_ns, FEDORA)[-1]["metadata"]["name"]
            assert "must run on node-2: it is cordoned" in command(vm_ns, "explain", name)
        assert vms.node_of(run_again(vm_ns, pod)) == "node-2"
    finally:
        vm_ns.kubectl("label", "node", "node-2", "--overwrite", f"{HOSTNAME}=node-2")


def test_vm_that_never_ran_is_not_pinned(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    handler = vm_ns.plane.process(KWOK_VMI)
    handler.kill()  # so VMIs are not reported as running
    try:
        vm_ns.create(vms.vm())
        vm_ns.eventually(
            lambda: (vm_ns.find("vmi", FEDORA) or {}).get("status", {}).get("nodeName")
        )
        (pod,) = vms.launchers(vm_ns, FEDORA)
        name, first = pod["metadata"]["name"], vms.node_of(pod)
        expected = f"{first} is recorded once the VM runs; if it ends before, no node is"
        assert expected in command(vm_ns, "explain", name)
        assert (kept(vm_ns), record(vm_ns)) == ([name], "")
        vm_ns.kubectl("cordon", first)
        vms.delete_run(vm_ns)
        vm_ns.eventually(lambda: kept(vm_ns) != [name])
    finally:
        handler.restart()
    try:
        second = vms.node_of(run_again(vm_ns, pod))
    finally:
        vm_ns.kubectl("uncordon", first)
    assert second != first
    vm_ns.eventually(lambda: record(vm_ns) == second)
    (note,) = notes(vm_ns, "Pod", "StickyNodeNotRecorded")
    assert note.endswith(f"because the VM ended before it ran; it was on {first}")


@pytest.mark.slow
def test_record_survives_node_deletion(vm_ns: Namespace, holdfast: TwoProcesses) -> None:
    holdfast.controller.kill()
    vm_ns.create(vms.vm())
    pod = vms.landed(vm_ns)
    node = vms.node_of(pod)
    with removed(vm_ns, node):
        vm_ns.eventually(
            lambda: "deletionTimestamp" in vm_ns.get("pod", pod["metadata"]["name"])["metadata"],
            ORPHANED_SECONDS,
        )
        holdfast.controller.start()
        vm_ns.eventually(lambda: record(vm_ns) == node)
        vm_ns.eventually(lambda: notes(vm_ns, "VirtualMachine", "StickyNodeUnavailable"))
        (note,) = set(notes(vm_ns, "VirtualMachine", "StickyNodeUnavailable"))
        assert note.startswith(f"the VM waits for its node {node}, which does not exist")
    assert vms.node_of(run_again(vm_ns, pod)) == node
