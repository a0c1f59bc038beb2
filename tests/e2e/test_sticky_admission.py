"""Launcher pods of the real virt-controller, as stored after admission."""

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
from tests.e2e.foreign_webhook import other_webhook
from tests.e2e.namespace import Namespace, Object, gates
from tests.e2e.vms import FEDORA

pytestmark = pytest.mark.xdist_group("kubevirt")

ACCOUNT = "system:serviceaccount:kubevirt:kubevirt-controller"
FINALIZER = "holdfast.dev/sticky"
RECORD = "holdfast.dev/sticky-node"

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def serving(kubevirt: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """`holdfast dev` on the cluster with KubeVirt."""
    log = tmp_path_factory.mktemp("sticky") / "dev.log"
    with Command("dev", "--kubeconfig", str(kubevirt.kubeconfig), log=log) as process:
        yield process


@pytest.fixture
def vm_ns(kubevirt: ControlPlane, serving: Command) -> Namespace:
    return Namespace.create_new(kubevirt, f"sticky-{next(_numbers)}", serving)


def pristine(pod: Object) -> Object:
    """Reconstruct the manifest from which KubeVirt created a pod."""
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


def created(ns: Namespace, manifest: Object, *, by: str = ACCOUNT) -> Object:
    """Create a pod in a dry run as the user `by`, and return what would be stored."""
    arguments = ["create", "-o", "json", "--dry-run=server", f"--as={by}", "-f", "-"]
    if by != ACCOUNT:
        arguments.append("--as-group=system:masters")
    return dict(json.loads(ns.kubectl(*arguments, stdin=yaml.safe_dump(manifest))))


def refusal(ns: Namespace, manifest: Object, *, by: str = ACCOUNT) -> str:
    with pytest.raises(ControlPlaneError) as caught:
        created(ns, manifest, by=by)
    return str(caught.value)


def terms(spec: Object) -> list[Object]:
    node = spec.get("affinity", {}).get("nodeAffinity", {})
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    return list(required.get("nodeSelectorTerms", ()))


def pins(pod: Object) -> list[Any]:
    return [term.get("matchFields") for term in terms(pod["spec"])]


def pinned_to(node: str) -> list[Any]:
    return [[{"key": "metadata.name", "operator": "In", "values": [node]}]]


def finalizers(pod: Object) -> list[str]:
    return list(pod["metadata"].get("finalizers", ()))


def launcher(ns: Namespace, annotations: Mapping[str, str] | None = None) -> Object:
    """Run a VM until its node is recorded, then annotate it; return the manifest of its pod."""
    ns.create(vms.vm())
    pod = pristine(vms.landed(ns))
    ns.eventually(lambda: is_recorded(ns, FEDORA))
    if annotations:
        annotate(ns, **annotations)
    return pod


def is_recorded(ns: Namespace, name: str) -> bool:
    """Return whether a VM has a record: until then, the two webhooks may see different VMs."""
    vm = ns.find("vm", name)
    return vm is not None and RECORD in vm["metadata"].get("annotations", {})


def annotate(ns: Namespace, **annotations: str) -> None:
    arguments = [f"{key}={value}" for key, value in annotations.items()]
    ns.kubectl("annotate", "vm", FEDORA, "--overwrite", *arguments)


# --- placing -----------------------------------------------------------------------------------


def test_vm_starts_on_its_recorded_node(vm_ns: Namespace) -> None:
    for number, node in enumerate(vms.NODES):
        with vms.avoided(vm_ns, node):
            vm_ns.create(vms.vm(f"free-{number}"))
            vm_ns.create(vms.vm(f"recorded-{number}", {RECORD: node}))
            assert vms.node_of(vms.landed(vm_ns, f"free-{number}")) != node
            pod = vms.landed(vm_ns, f"recorded-{number}")
            assert vms.node_of(pod) == node
            assert pins(pod) == pinned_to(node)
            (term,) = terms(pod["spec"])
            assert term["matchExpressions"]  # KubeVirt's own


def test_dry_run_as_kubevirt_shows_affinity_and_finalizer_of_sticky_vms(vm_ns: Namespace) -> None:
    pod = launcher(vm_ns)
    vm_ns.kubectl("annotate", "vm", FEDORA, f"{RECORD}-")
    stored = created(vm_ns, pod)
    assert (finalizers(stored), pins(stored)) == ([FINALIZER], [None])

    annotate(vm_ns, **{RECORD: "node-3"})
    stored = created(vm_ns, pod)
    assert (finalizers(stored), pins(stored)) == ([FINALIZER], pinned_to("node-3"))
    assert gates(stored) == []

    annotate(vm_ns, **{"holdfast.dev/sticky": "false"})
    stored = created(vm_ns, pod)
    assert (finalizers(stored), pins(stored)) == ([], [None])


def test_migration_target_is_neither_pinned_nor_delayed(vm_ns: Namespace) -> None:
    annotations = {"holdfast.dev/delay": "3s"}
    vm_ns.create(vms.vm(annotations={RECORD: "node-1"}, template_annotations=annotations))
    first_pod = vms.landed(vm_ns)
    assert first_pod["metadata"]["annotations"]["holdfast.dev/held"] == "holdfast.dev/delay=3s"
    source, target = vms.migrate(vm_ns)
    assert vms.node_of(source) == "node-1" != vms.node_of(target)
    assert pins(target) == [None]
    assert "holdfast.dev/held" not in target["metadata"]["annotations"]

    target = pristine(target)
    stored = created(vm_ns, target)
    assert (finalizers(stored), pins(stored)) == ([FINALIZER], [None])


# --- forgeries, and pods without a VM ----------------------------------------------------------


def test_launcher_pods_of_other_creators_are_not_edited(vm_ns: Namespace) -> None:
    pod = launcher(vm_ns, {RECORD: "node-3"})
    other_owner = copy.deepcopy(pod)
    other_owner["metadata"]["ownerReferences"][0]["uid"] = "00000000-0000-4000-8000-000000000000"
    missing_owner = copy.deepcopy(pod)
    missing_owner["metadata"]["ownerReferences"][0]["name"] = "no-such-vm"
    accounts = ["jane", "system:serviceaccount:default:default", "system:admin"]
    for user, manifest in itertools.product(accounts, [pod, other_owner, missing_owner]):
        stored = created(vm_ns, manifest, by=user)
        assert (finalizers(stored), pins(stored)) == ([], [None])
        assert not [key for key in stored["metadata"]["annotations"] if "holdfast" in key]


@pytest.mark.parametrize("mark", ["migration", "provisioning"])
def test_template_cannot_exempt_pods_from_their_hold(vm_ns: Namespace, mark: str) -> None:
    """KubeVirt copies the labels and annotations of a template to the pods."""
    manifest = vms.replica_set("set", 1)
    metadata = manifest["spec"]["template"]["metadata"]
    metadata["annotations"] = {"holdfast.dev/delay": "1h"}
    if mark == "migration":
        metadata["labels"][vms.MIGRATION_JOB] = "forged"
    else:
        metadata["annotations"]["kubevirt.io/ephemeral-provisioning"] = "true"
    vm_ns.create(manifest)
    pod = vm_ns.eventually(lambda: next(iter(vm_ns.all("pods")), None))
    assert pod is not None
    assert pod["metadata"]["labels" if mark == "migration" else "annotations"].keys() & {
        vms.MIGRATION_JOB,
        "kubevirt.io/ephemeral-provisioning",
    }
    assert gates(pod) == ["holdfast.dev/delay"]


def test_only_holdfast_can_add_the_finalizer(vm_ns: Namespace) -> None:
    pod = launcher(vm_ns)
    forged = copy.deepcopy(pod)
    forged["metadata"]["finalizers"] = [FINALIZER]
    expected = 'finalizer "holdfast.dev/sticky" is reserved for Holdfast: remove it'
    assert expected in refusal(vm_ns, forged, by="jane")

    ownerless = copy.deepcopy(forged)
    del ownerless["metadata"]["ownerReferences"]
    for user in ("jane", ACCOUNT):
        assert expected in refusal(vm_ns, ownerless, by=user)

    stored = vm_ns.create({**pod, "metadata": {"name": "stored"}})
    patch = json.dumps({"metadata": {"finalizers": [FINALIZER]}})
    name = stored["metadata"]["name"]
    with pytest.raises(ControlPlaneError, match="is reserved for Holdfast: remove it"):
        vm_ns.kubectl("patch", "pod", name, "--type=merge", "-p", patch, f"--as={ACCOUNT}")


def test_vmis_without_a_vm_are_not_sticky(vm_ns: Namespace) -> None:
    vm_ns.create(vms.vmi("alone"))
    vm_ns.create(vms.replica_set("set", 2))
    vm_ns.create(vms.pool("pool", 1))

    def running() -> list[Object]:
        pods = vm_ns.all("pods")
        return pods if len(pods) == 4 and all(map(vms.node_of, pods)) else []

    pods = vm_ns.eventually(running)
    vm_ns.eventually(lambda: is_recorded(vm_ns, "pool-0"))
    for pod in pods:
        stored = created(vm_ns, pristine(pod))
        of_a_vm = vms.owner(pod)["name"].startswith("pool-")
        assert finalizers(stored) == ([FINALIZER] if of_a_vm else [])


# --- validation of VMs -------------------------------------------------------------------------


def test_vm_with_an_invalid_annotation_is_rejected(vm_ns: Namespace) -> None:
    message = vm_ns.refusal(vms.vm("wrong", {"holdfast.dev/sticky": "yes", RECORD: "a/b"}))
    assert (
        'metadata: annotation holdfast.dev/sticky: invalid value "yes": use "true" or '
        '"false"; annotation holdfast.dev/sticky-node: invalid value "a/b"'
    ) in message
    bad_delay = vms.vm("delayed", template_annotations={"delay": "soon"})
    assert 'spec.template.metadata: annotation delay: invalid value "soon"' in vm_ns.refusal(
        bad_delay
    )
    annotations = {"holdfast.dev/sticky": "true", RECORD: "node-1"}
    vm_ns.create(vms.vm("right", annotations, run_strategy="Halted"))
    with pytest.raises(ControlPlaneError, match='invalid value "Node 3": use a node name'):
        vm_ns.kubectl("annotate", "vm", "right", "--overwrite", f"{RECORD}=Node 3")
    before = vm_ns.reviews()
    vm_ns.kubectl("annotate", "vm", "right", "team=a")
    vm_ns.kubectl("label", "vm", "right", "team=a")
    assert vm_ns.reviews() == before


# --- other webhooks ----------------------------------------------------------------------------


def test_removed_edits_are_restored_on_reinvocation(vm_ns: Namespace) -> None:
    def strip(pod: Object) -> Sequence[Object]:
        if pod["metadata"].get("labels", {}).get("strips") != "yes":
            return []
        return [
            {"op": "add", "path": "/metadata/labels/strips", "value": "late"},
            {"op": "remove", "path": "/metadata/finalizers"},
            {"op": "remove", "path": "/spec/affinity"},
        ]

    pod = launcher(vm_ns, {RECORD: "node-2"})
    pod["metadata"]["labels"]["strips"] = "yes"

    def stripped() -> Object:
        """Create the pod in a dry run; the API server takes a moment to notice the webhook."""
        stored = created(vm_ns, pod)
        return stored if stored["metadata"]["labels"]["strips"] == "late" else {}

    with other_webhook(vm_ns.plane, "z-strips", strip):
        stored = vm_ns.eventually(stripped)
    assert (finalizers(stored), pins(stored)) == ([FINALIZER], pinned_to("node-2"))


# --- a cluster without KubeVirt ----------------------------------------------------------------


@pytest.mark.slow
def test_kubevirt_installed_later_is_detected(tmp_path_factory: pytest.TempPathFactory) -> None:
    log = tmp_path_factory.mktemp("idle") / "dev.log"
    with (
        ControlPlane(nodes=3, audit=True) as plane,
        Command("dev", "--kubeconfig", str(plane.kubeconfig), log=log) as process,
    ):
        ns = Namespace.create_new(plane, "idle", process)
        message = "KubeVirt is not installed; idle until it is"
        ns.eventually(lambda: log.read_text().count(message) == 1)
        install(plane)
        ns.create(vms.vm(annotations={RECORD: "node-2"}))
        assert vms.node_of(vms.landed(ns)) == "node-2"
        assert log.read_text().count(message) == 1
