from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.kubevirt import Instance, VirtualMachine
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.report import sticky_vms
from holdfast.webhook.report.pod_status import NodeState
from holdfast.webhook.report.sticky_vms import StickyVm
from tests.support.builders import CREATED_MS
from tests.support.vm_builders import make_vm, make_vmi, owner_of

NODE, UID = kubevirt.STICKY_NODE, kubevirt.STICKY_NODE_UID
ARGS = StickyArgs()
KEYS = {"node": NODE, "uid": UID, "sticky": kubevirt.STICKY}


def vm(writers: Sequence[Any] = (), /, **values: str) -> VirtualMachine:
    """Make a VM with annotations, given by the short names of `KEYS`."""
    annotations = {KEYS[name]: value for name, value in values.items()}
    source = make_vm(annotations, name="db", namespace="shop", uid="vm-1")
    source["metadata"]["managedFields"] = list(writers)
    return msgspec.convert(source, VirtualMachine)


def vmi(owner: str = "vm-1", node: str = "node-1") -> Instance:
    owners = [owner_of(kubevirt.VM, "db", owner)]
    source = make_vmi(owners=owners, name="db", namespace="shop", node=node)
    return msgspec.convert(source, Instance)


def test_invalid_node_name_is_not_used_in_a_command() -> None:
    sticky_vm = sticky_vms.described(vm(node="n", uid="vm-1"), vmi(node="x; id #"), ARGS)
    assert (sticky_vm.runs_on, sticky_vm.differs) == ('"x; id #"', False)
    assert "holdfast sticky set" not in "\n".join(sticky_vms.shown(sticky_vm, None, required=True))


@pytest.mark.parametrize(
    ("annotations", "node", "sticks", "remark"),
    [
        pytest.param({}, "", True, "", id="nothing recorded"),
        pytest.param({"node": "n", "uid": "vm-1"}, "n", True, "", id="recorded"),
        pytest.param({"node": "n"}, "n", True, "set by hand", id="set by hand"),
        pytest.param({"node": "n", "uid": "vm-0"}, "", True, "copied from another VM", id="clone"),
    ],
)
def test_described(annotations: dict[str, str], node: str, sticks: bool, remark: str) -> None:
    sticky_vm = sticky_vms.described(vm(**annotations), vmi(), ARGS)
    assert (sticky_vm.node, sticky_vm.is_sticky, sticky_vm.runs_on) == (node, sticks, "node-1")
    assert remark in sticky_vm.remark
    assert bool(remark) == bool(sticky_vm.remark)


def test_instance_of_another_vm_is_ignored() -> None:
    assert sticky_vms.described(vm(), vmi("vm-0"), ARGS).runs_on == ""
    assert sticky_vms.described(vm(), None, ARGS).runs_on == ""


@pytest.mark.parametrize(
    ("instance", "waits"),
    [
        pytest.param(None, False, id="stopped"),
        pytest.param(vmi(), False, id="running"),
        pytest.param(vmi(node=""), True, id="starting"),
        pytest.param(vmi("vm-0", node=""), False, id="instance of another VM"),
    ],
)
def test_waiting_start_suggests_deleting_the_vmi(instance: Instance | None, waits: bool) -> None:
    advice = sticky_vms.waiting_start(vm(), instance)
    assert ("kubectl delete vmi db --namespace shop" in advice) is waits
    assert bool(advice) is waits


OWNED: dict[str, Any] = {"fieldsV1": {"f:metadata": {"f:annotations": {f"f:{NODE}": {}}}}}
ONE = StickyVm("shop", "db", "node-1", loose="", runs_on="node-2", remark="r")


def test_vm_on_another_node_differs_from_its_record() -> None:
    ours, theirs = ([{"manager": name, **OWNED}] for name in ("holdfast-controller", "kubectl"))
    for writers, differs in ((ours, True), ([], True), (theirs, False)):
        sticky_vm = sticky_vms.described(vm(writers, node="node-2", uid="vm-1"), vmi(), ARGS)
        assert sticky_vm.differs == differs
        runs_on = "node-1 (differs)" if differs else "node-1"
        assert sticky_vms.row(sticky_vm, CREATED_MS)[3] == runs_on
        assert sticky_vms.document(sticky_vm)["differs"] == differs
        note = "to keep it on node-1, holdfast sticky set db node-1 -n shop"
        assert differs == (note in "\n".join(sticky_vms.shown(sticky_vm, None, required=True)))


def test_vm_that_is_free_or_stopped_does_not_differ() -> None:
    free_vm = vm(node="node-2", uid="vm-1", sticky="false")
    assert not sticky_vms.described(free_vm, vmi(), ARGS).differs
    assert not sticky_vms.described(vm(), vmi(), ARGS).differs
    assert not sticky_vms.described(vm(node="node-2"), None, ARGS).differs


def test_row_and_document() -> None:
    assert sticky_vms.row(ONE, CREATED_MS) == ["db", "node-1", "yes", "node-2", "-"]
    older_vm = replace(ONE, created_ms=CREATED_MS - 60_000)
    wide_row = sticky_vms.row(older_vm, CREATED_MS, wide=True)
    assert wide_row == ["db", "node-1", "yes", "node-2", "1m", "r"]
    document = sticky_vms.document(ONE)
    assert document["runsOn"] == "node-2"
    assert document["metadata"] == {"namespace": "shop", "name": "db", "creationTimestamp": None}


def shown_text(state: NodeState | None = None, *, required: bool = True, **changes: Any) -> str:
    return "\n".join(sticky_vms.shown(replace(ONE, **changes), state, required=required))


def test_shown() -> None:
    assert shown_text(NodeState("node-1")) == (
        "runs on node-2\nreturns to node-1\nr\nnode-1: accepts pods"
    )
    assert "node-1: cordoned" in shown_text(NodeState("node-1", "cordoned"))
    assert "preferably returns" in shown_text(required=False)
    assert "no node is recorded" in shown_text(node="")
    assert "not sticky: because" in shown_text(loose="because")
    assert "is not running" in shown_text(runs_on="")
    assert shown_text(runs_on="", is_starting=True).startswith(
        "is starting: its pod waits to be sch"
    )


@pytest.mark.parametrize(
    ("args", "annotations", "expected"),
    [
        (ARGS, {}, ""),
        (ARGS, {"sticky": "false"}, "it has annotation holdfast.dev/sticky: false"),
        (StickyArgs(select="annotated"), {}, "it has no annotation holdfast.dev/sticky: true"),
        (StickyArgs(namespaces=("home",)), {}, "namespace shop is not configured"),
        (None, {}, "the sticky plugin does not run for its pods in this configuration"),
    ],
)
def test_reason_why_a_vm_is_not_sticky(
    args: StickyArgs | None, annotations: dict[str, str], expected: str
) -> None:
    assert sticky_vms.loose(vm(**annotations), args) == expected
    sticky_vm = sticky_vms.described(vm(node="n", **annotations), vmi(), args)
    assert (sticky_vm.loose, sticky_vm.is_sticky) == (expected, not expected)
    assert sticky_vm.node == ("n" if args else "")


def test_record_is_tied_to_the_vm_uid() -> None:
    assert sticky_vms.record(vm(), "node-3", ARGS) == {
        "metadata": {"uid": "vm-1", "annotations": {NODE: "node-3", UID: "vm-1"}}
    }
    assert sticky_vms.record(vm(), None, StickyArgs(node_annotation="a/b")) == {
        "metadata": {"uid": "vm-1", "annotations": {"a/b": None, UID: "vm-1"}}
    }
