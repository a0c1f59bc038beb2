"""Objects at the limits of the API server: the policies stay within their CEL cost."""

import itertools
import string
from collections.abc import Iterator

import pytest

from holdfast.webhook.policies import pods as pod_policies
from tests.e2e.guard.changes import OWNED, STRIP, annotation, remove, write
from tests.e2e.guard.cluster import Guarded
from tests.e2e.guard.objects import FOREIGN_GATE, GATE, RECORD, held, machine
from tests.e2e.kubectl_user import refusal
from tests.e2e.namespace import Namespace, gates, pod

pytestmark = pytest.mark.xdist_group("guard")


def test_pod_with_5000_owners_can_be_updated(guarded: Guarded, ns: Namespace) -> None:
    manifest = held("owned")
    account = ns.all("serviceaccounts")[0]["metadata"]
    owner = {"apiVersion": "v1", "kind": "ServiceAccount"}
    owner |= {key: account[key] for key in ("name", "uid")}
    manifest["metadata"]["ownerReferences"] = [owner] * 5_000
    ns.create(manifest)
    jane = guarded.user(ns, "jane")
    jane.patch("owned", [annotation("team", "a")])
    jane.patch("owned", [remove("/metadata/ownerReferences/0")])
    message = refusal(jane.patch, "owned", [write("/metadata/ownerReferences/0", OWNED)])
    assert f"jane may not {pod_policies.MOVED}:" in message


def test_largest_pod_is_released_and_guarded(guarded: Guarded, ns: Namespace) -> None:
    manifest = pod(
        "large",
        {"delay": "3"} | {f"example.com/key-{number:05}": "x" * 40 for number in range(4000)},
        schedulingGates=[
            *({"name": f"example.com/gate-{number}"} for number in range(1000)),
            {"name": GATE},
        ],
        initContainers=[{"name": f"first-{number}", "image": "busybox"} for number in range(200)],
    )
    manifest["metadata"]["labels"] = {f"label-{number:05}": "x" * 60 for number in range(4_999)}
    jane = guarded.user(ns, "jane")
    jane.create(manifest, dry_run=False)
    jane.kubectl("label", "pod", "large", "app=mine")
    message = refusal(jane.patch, "large", [annotation("delay", "0")])
    assert "jane may not change delay:" in message
    ns.eventually(lambda: "large" in ns.releases())
    assert len(gates(ns.get("pod", "large"))) == 1000


def test_pod_with_2000_holdfast_gates_can_be_updated(guarded: Guarded, ns: Namespace) -> None:
    scheduling_gates = [{"name": f"holdfast.dev/gate-{number}"} for number in range(2000)]
    manifest = pod("many", {"delay": "1000"}, schedulingGates=scheduling_gates)
    manifest["metadata"]["finalizers"] = ["holdfast.dev/sticky", "example.com/mine"]
    jane = guarded.user(ns, "jane")
    jane.create(manifest, dry_run=False)
    jane.patch("many", [remove("/metadata/finalizers/1")], dry_run=False)
    controller = guarded.controller(ns)
    controller.patch("many", [remove("/metadata/finalizers")])
    controller.patch("many", [remove("/spec/schedulingGates")])
    assert "many" in refusal(jane.patch, "many", [STRIP])


def test_pod_with_15000_holdfast_gates_is_released(guarded: Guarded, ns: Namespace) -> None:
    """The webhook would reject it, and the API server rejects a JSON Patch of this length."""
    manifest = pod("many", {"delay": "1"}, schedulingGates=[{"name": FOREIGN_GATE}])
    manifest["spec"]["schedulingGates"] += [
        {"name": f"holdfast.dev/{number}"} for number in range(15_000)
    ]
    ns.create(manifest)
    ns.eventually(lambda: gates(ns.get("pod", "many")) == [FOREIGN_GATE])


@pytest.mark.slow
def test_pod_with_75000_annotations_is_released_and_deleted(
    guarded: Guarded, ns: Namespace
) -> None:
    manifest = held("many", **dict.fromkeys(short_keys(75_000), ""))
    manifest["metadata"]["annotations"] |= {"delay": "1", "holdfast.dev/held": "delay=1s"}
    manifest["metadata"]["finalizers"] = ["holdfast.dev/sticky"]
    ns.create(manifest)
    assert "patched" in guarded.controller(ns).patch("many", [remove("/metadata/finalizers")])
    ns.eventually(lambda: "many" in ns.releases())
    ns.kubectl("delete", "pod", "many", "--wait=false")
    controller = guarded.controller(ns)

    def is_deleted() -> bool:
        message = ""
        if ns.all("pods"):
            message = refusal(
                controller.patch, "many", [remove("/metadata/finalizers")], dry_run=False
            )
        assert "orbidden" not in message  # a busy API server may exceed its own deadline, though
        return ns.all("pods") == []

    ns.eventually(is_deleted, 200)


def test_pod_at_the_annotation_size_limit_is_released(guarded: Guarded, ns: Namespace) -> None:
    manifest = held("full")
    annotations = manifest["metadata"]["annotations"]
    annotations |= {"delay": "1", "holdfast.dev/held": "delay=1s", "filled": ""}
    size = sum(map(len, (*annotations, *annotations.values())))
    annotations["filled"] = "x" * ((256 << 10) - size)
    ns.create(manifest)
    ns.eventually(lambda: "full" in ns.releases())


def short_keys(number: int) -> Iterator[str]:
    """Make three-character keys: an object's annotations are limited to 256 KiB."""
    characters = string.ascii_letters + string.digits
    return map("".join, itertools.islice(itertools.product(characters, repeat=3), number))


def test_held_pod_with_40000_labels_is_released(guarded: Guarded, ns: Namespace) -> None:
    manifest = held("many")
    manifest["metadata"]["annotations"] |= {"delay": "1", "holdfast.dev/held": "delay=1s"}
    manifest["metadata"]["labels"] = dict.fromkeys(short_keys(40_000), "")
    manifest["metadata"]["labels"] |= {"holdfast.dev/held": "true"}
    ns.create(manifest)
    ns.eventually(lambda: "many" in ns.releases())


def test_developer_cannot_add_too_many_annotations_or_labels(
    guarded: Guarded, ns: Namespace
) -> None:
    ns.apply(held("held"))
    jane = guarded.user(ns, "jane")
    for field in ("annotations", "labels"):
        message = refusal(
            jane.patch,
            "held",
            [write(f"/metadata/{field}", dict.fromkeys(short_keys(5_001), ""))],
        )
        assert "give it more than 5000 annotations or labels" in message


def test_oversized_hint_does_not_block_updates(guarded: Guarded, ns: Namespace) -> None:
    hint = {"delay": "1000", "holdfast.dev/held": "," * 250_000}
    manifest = pod("hint", hint, schedulingGates=[{"name": GATE}])
    manifest["metadata"]["finalizers"] = ["example.com/mine"]
    ns.create(manifest)
    jane = guarded.user(ns, "jane")
    assert "jane may not change delay" in refusal(jane.patch, "hint", [annotation("delay", "0")])
    jane.patch("hint", [remove("/metadata/finalizers")], dry_run=False)


def test_record_is_written_to_a_vm_with_1000_volumes(guarded: Guarded, ns: Namespace) -> None:
    manifest = machine("large")
    manifest["spec"]["dataVolumeTemplates"] = [
        {"metadata": {"name": f"disk-{number}"}, "spec": {}} for number in range(1000)
    ]
    ns.create(manifest)
    controller = guarded.controller(ns)
    assert "patched" in controller.patch("large", [annotation(RECORD, "node-1")], kind="vm")
