"""Large VMIs and pods are stored without the fields that the controller does not need."""

import msgspec

from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.kubevirt import STICKY, Instance, LauncherPod
from holdfast.webhook.sticky import decision, kept
from tests.support.vm_builders import owner_of

FILLER = "x" * 100_000
OTHERS = [{"kind": f"K{n}", "name": f"n{n}", "uid": f"u{n}"} for n in range(10_000)]


def test_stored_vmi_omits_bulky_user_data() -> None:
    phases = [{"phase": f"p{n}"} for n in range(10_000)]
    source = {
        "metadata": {
            "name": "vm",
            "labels": {"a": FILLER},
            "ownerReferences": [*OTHERS, owner_of("VirtualMachine", "vm", "u1")],
        },
        "spec": {"schedulerName": FILLER},
        "status": {
            "phase": "Failed",
            "nodeName": "n1",
            "phaseTransitionTimestamps": [*phases, {"phase": "Running"}, *phases],
            "migrationState": {"sourceNode": FILLER, "targetNode": "n1", "completed": True},
        },
    }
    vmi = kept.instance(msgspec.convert(source, Instance))

    assert len(msgspec.json.encode(vmi)) < 1_000
    assert (vmi.has_run, vmi.is_over, vmi.status.node_name) == (True, True, "n1")
    vm, state = kubevirt.vm_of(vmi), vmi.status.migration_state
    assert vm is not None
    assert vm.uid == "u1"
    assert state is not None
    assert state.has_reached("n1")


def test_stored_pod_omits_bulky_user_data() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    source = {
        "metadata": {
            "name": "launcher",
            "resourceVersion": "7",
            "labels": {"a": FILLER, kubevirt.MIGRATION_JOB: "u2"},
            "annotations": {"a": FILLER, kubevirt.MIGRATION_NAME: FILLER},
            "finalizers": [*(f"a/{n}" for n in range(10_000)), STICKY],
            "ownerReferences": [*OTHERS, owner_of("VirtualMachineInstance", "vm", FILLER)],
        },
        "spec": {"nodeName": "n1", "nodeSelector": {"a": FILLER}},
        "status": {"phase": "Failed", "conditions": [{"type": FILLER}, condition]},
    }
    large_pod = msgspec.convert(source, LauncherPod)
    pod = kept.pod(large_pod)

    assert len(msgspec.json.encode(pod)) < 1_000
    assert decision.may_run_vm(pod)
    assert (pod.has_finalizer, pod.has_ended, pod.is_unschedulable) == (True, True, True)
    assert pod.labels == {kubevirt.MIGRATION_JOB: "u2"}
    assert (pod.spec.node_name, pod.metadata.resource_version) == ("n1", "")


def test_pod_with_time_outside_utc_range_is_stored() -> None:
    metadata = {"name": "launcher", "creationTimestamp": "0001-01-01T00:00:00+23:59"}
    pod = msgspec.convert({"metadata": metadata}, LauncherPod)

    assert kept.pod(pod) == pod
