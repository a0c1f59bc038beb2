from __future__ import annotations

from typing import Any

import pytest

from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.framework.plugin import Code, Result
from holdfast.webhook.model import durations, kubevirt
from holdfast.webhook.model.annotations import HELD_ANNOTATION, JITTER, NOT_BEFORE
from holdfast.webhook.model.edits import AddGate, SetAnnotation, SetSchedulerName
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.delay import Delay
from tests.support.builders import (
    CREATED_MS,
    DEPLOYMENT,
    GATE,
    HOUR,
    MINUTE,
    SECOND,
    call,
    held,
    instant,
    make_delay,
    make_pod,
)
from tests.support.fakes import apply_patch
from tests.support.vm_builders import owner_of

DAY = 24 * HOUR
SOON = f'annotation delay: invalid value "soon": {durations.DELAY_ACCEPTED}'
ADVICE = "shorten the hold, or ask an admin to raise maxDelay"


def ahead(milliseconds: int) -> dict[str, str]:
    return {NOT_BEFORE: instant(CREATED_MS + milliseconds)}


def mutate(pod: Any, plugin: Delay | None = None, **fields: Any) -> Result:
    return call(plugin or make_delay(), "mutate", pod, **fields)


def validate(pod: Any, plugin: Delay | None = None, **fields: Any) -> Result:
    return call(plugin or make_delay(), "validate", pod, **fields)


# --- mutate ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "hint"),
    [
        pytest.param({"holdfast.dev/delay": "90"}, "holdfast.dev/delay=1m30s", id="own key"),
        pytest.param({"delay": "168h"}, "delay=168h", id="maximum delay"),
        pytest.param({JITTER: "2s"}, "jitter=2s", id="jitter alone"),
        pytest.param(ahead(7 * DAY), "not-before=2026-03-08T12:00:00Z", id="latest not-before"),
        pytest.param(ahead(-10 * MINUTE), "not-before=2026-03-01T11:50:00Z", id="10 minutes ago"),
        pytest.param(
            {"delay": "1", JITTER: "1"} | ahead(0),
            "delay=1s,not-before=2026-03-01T12:00:00Z,jitter=1s",
            id="all three",
        ),
        pytest.param({"delay": "15", HELD_ANNOTATION: "delay=1s"}, "delay=15s", id="forged hint"),
    ],
)
def test_annotated_pod_is_held(annotations: dict[str, str], hint: str) -> None:
    edits = (AddGate(GATE), SetAnnotation(HELD_ANNOTATION, hint))

    assert Result(Code.SUCCESS, edits) == mutate(make_pod(annotations))


KUBEVIRT = "system:serviceaccount:kubevirt:kubevirt-controller"
VMI_OWNER = owner_of(kubevirt.VMI, "vm", "u")
REPLICA_SET = owner_of("ReplicaSet", "web", "u", api_version="apps/v1")


def target(delay: str = "15", **fields: Any) -> Any:
    """Make a pod with the marks of a migration target."""
    marks: dict[str, Any] = {"labels": {kubevirt.MIGRATION_JOB: "7d1f"}, "owners": [VMI_OWNER]}
    return make_pod({"delay": delay}, **{**marks, **fields})


def provisioning_pod() -> Any:
    """Make a pod like KubeVirt's, which runs no virt-launcher."""
    annotations = {"delay": "15", "kubevirt.io/ephemeral-provisioning": "true"}
    pod = make_pod(annotations, owners=[VMI_OWNER])
    command = ["/bin/bash", "-c", "echo", "bound PVCs"]
    pod["spec"]["containers"] = [{"name": "compute", "command": command}]
    return pod


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(target(), id="migration target"),
        pytest.param(target("soon"), id="invalid value"),
        pytest.param(provisioning_pod(), id="provisioning pod"),
    ],
)
def test_pod_that_kubevirt_waits_for_is_not_held(pod: Any) -> None:
    assert Result(Code.SKIP) == mutate(pod, userInfo={"username": KUBEVIRT})
    assert Result(Code.SKIP) == validate(pod, userInfo={"username": KUBEVIRT})
    assert Result(Code.SKIP) == validate(pod, operation="UPDATE", old=pod)


def test_update_that_adds_kubevirt_labels_does_not_lift_the_limit() -> None:
    held = make_pod({"delay": "15"}, gates=[GATE])
    labelled_pod = target("999999h", gates=[GATE])

    assert validate(labelled_pod, operation="UPDATE", old=held).code is Code.REJECT


@pytest.mark.parametrize(
    ("pod", "username"),
    [
        pytest.param(target(owners=[]), KUBEVIRT, id="no owner"),
        pytest.param(target(owners=[REPLICA_SET]), KUBEVIRT, id="owned by a ReplicaSet"),
        pytest.param(
            target(owners=[VMI_OWNER | {"controller": False}]), KUBEVIRT, id="not the controller"
        ),
        pytest.param(target(), "jane", id="created by a user"),
        pytest.param(provisioning_pod(), kubevirt.controller_account("a:b"), id="invalid account"),
        pytest.param(target(), kubevirt.controller_account("tenant"), id="a tenant's account"),
        pytest.param(target(labels={}), KUBEVIRT, id="pod of a VM"),
    ],
)
def test_other_pods_with_kubevirt_metadata_are_held(pod: Any, username: str) -> None:
    assert AddGate(GATE) in mutate(pod, userInfo={"username": username}).edits


@pytest.mark.parametrize(
    ("pod", "warnings"),
    [
        pytest.param(make_pod(), [], id="no annotation"),
        pytest.param(make_pod({"delay": "0"}), [], id="zero delay"),
        pytest.param(
            make_pod(ahead(-10 * MINUTE - 1)),
            [
                (
                    "holdfast: not held: annotation holdfast.dev/not-before: "
                    "2026-03-01T11:49:59.999Z is in the past: use a later time or none"
                )
            ],
            id="not-before long past",
        ),
        pytest.param(
            make_pod({"delay": "15"}, node="n1"),
            ["holdfast: not held: spec.nodeName is already set: use a nodeSelector instead"],
            id="already bound",
        ),
    ],
)
def test_pod_that_is_not_held(pod: Any, warnings: list[str]) -> None:
    result = mutate(pod)

    assert (Code.SUCCESS, (), warnings) == (result.code, result.edits, list(result.warnings))


TOO_FAR = (
    'annotation holdfast.dev/not-before: "%s" is more than maxDelay=168h after '
    "the pod's creation: use an earlier time, or ask an admin to raise maxDelay"
)
TOO_FAR_WITH_JITTER = (
    'holdfast.dev/not-before="2026-03-08T11:00:00Z" and holdfast.dev/jitter="168h" together exceed '
    "maxDelay=168h: use an earlier time, or ask an admin to raise maxDelay"
)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({"delay": "soon"}, SOON, id="invalid"),
        pytest.param(
            {"delay": "15", "holdfast.dev/delay": "20"},
            'annotations holdfast.dev/delay="20" and delay="15" disagree: remove one of them',
            id="conflict",
        ),
        pytest.param(
            {"delay": "169h"}, f'delay="169h" exceeds maxDelay=168h: {ADVICE}', id="over maxDelay"
        ),
        pytest.param(
            {"delay": "168h", JITTER: "1ms"},
            f'delay="168h" and holdfast.dev/jitter="1ms" together exceed maxDelay=168h: {ADVICE}',
            id="over maxDelay with the jitter",
        ),
        pytest.param(ahead(7 * DAY + SECOND), TOO_FAR % "2026-03-08T12:00:01Z", id="too far"),
        pytest.param(
            {**ahead(7 * DAY - HOUR), JITTER: "168h"},
            TOO_FAR_WITH_JITTER,
            id="too far with the jitter",
        ),
    ],
)
def test_invalid_value_is_rejected_or_ignored(annotations: dict[str, str], expected: str) -> None:
    pod, plugin = make_pod(annotations), make_delay(on_invalid="ignore")
    rejection = Result(Code.REJECT, (), expected)

    assert rejection == mutate(pod)
    assert rejection == mutate(make_pod(annotations, node="n1"))
    assert rejection == validate(held(annotations))
    assert rejection == validate(pod, operation="UPDATE", old=held({"delay": "15"}))
    assert Result(Code.SUCCESS, (), "", [f"holdfast: not held: {expected}"]) == mutate(pod, plugin)


def test_scheduler_name_for_held_pods() -> None:
    plugin = make_delay(scheduler_name="delayed")

    assert SetSchedulerName("delayed") in mutate(make_pod({"delay": "15"}), plugin).edits
    assert mutate(make_pod({"delay": "0"}), plugin).edits == ()


def test_custom_annotation_key() -> None:
    plugin = make_delay(annotations=("wait.io/for",))

    assert mutate(make_pod({"delay": "15"}), plugin).edits == ()
    assert SetAnnotation(HELD_ANNOTATION, "wait.io/for=15s") in (
        mutate(make_pod({"wait.io/for": "15"}), plugin).edits
    )


@pytest.mark.parametrize("gates", [[], [GATE], ["a.io/b"]], ids=["none", "holdfast", "third-party"])
def test_reinvocation_is_idempotent(gates: list[str]) -> None:
    pod = make_pod({"delay": "15"}, gates=gates)
    patched = apply_patch(pod, patch(Pod.of(pod), mutate(pod).edits))

    assert patched["spec"]["schedulingGates"].count({"name": GATE}) == 1
    assert patch(Pod.of(patched), mutate(patched).edits) == []


# --- validate ----------------------------------------------------------------------------------

LOST = (
    "scheduling gate holdfast.dev/delay is missing although the pod asks to be held: "
    "another mutating webhook removed the gate, or added the annotation after Holdfast ran: "
    "call Holdfast last, or add the annotation with a MutatingAdmissionPolicy"
)


WRONG_CLOCK = (
    "scheduling gate holdfast.dev/delay is missing: the admission server's clock says "
    "2026-03-01T13:00:00Z, long after the not-before; the API server created the pod at "
    "2026-03-01T12:00:00Z, before it: correct the clock of the server's node"
)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(make_pod(), Result(Code.SKIP), id="no annotation"),
        pytest.param(held({"delay": "15"}), Result(), id="held"),
        pytest.param(make_pod({"delay": "15"}), Result(Code.REJECT, (), LOST), id="gate lost"),
        pytest.param(make_pod({"delay": "0"}), Result(), id="zero delay"),
        pytest.param(
            make_pod(ahead(1)),
            Result(Code.REJECT, (), LOST),
            id="gate lost, not-before in the future",
        ),
        pytest.param(make_pod(ahead(-1)), Result(), id="not-before just past"),
        pytest.param(make_pod({"delay": "15"}, node="n1"), Result(), id="already bound"),
        pytest.param(target("soon", owners=[]), Result(Code.REJECT, (), SOON), id="only a label"),
    ],
)
def test_validate_at_create(pod: Any, expected: Result) -> None:
    assert expected == validate(pod)


@pytest.mark.parametrize(
    ("annotations", "code"),
    [({"delay": "15"}, Code.SUCCESS), ({}, Code.SKIP)],
    ids=["gate already removed", "annotations removed"],
)
def test_update_of_a_pod_without_its_gate(annotations: dict[str, str], code: Code) -> None:
    old = held({"delay": "15"})
    assert Result(code) == validate(make_pod(annotations), operation="UPDATE", old=old)


def test_nothing_is_rejected_if_invalid_values_are_ignored() -> None:
    """The controller releases a pod with an invalid value at once."""
    plugin = make_delay(on_invalid="ignore")

    assert Result() == validate(make_pod({"delay": "15"}), plugin)
    for pod in (make_pod({"delay": "soon"}), held({"delay": "soon"})):
        assert Result(Code.SKIP) == validate(pod, plugin)
        assert mutate(pod, plugin).code is Code.SUCCESS


LONG, LONGER = {"delay": "169h"}, {"delay": "9999999999"}


def test_gated_pod_over_max_delay_is_rejected_despite_ignore_unlike_a_template() -> None:
    """If the value were ignored, the gate would still hold the pod for that long."""
    plugin, pod = make_delay(on_invalid="ignore"), held(LONG)

    for result in (mutate(pod, plugin), validate(pod, plugin)):
        assert result.code is Code.REJECT
        assert "exceeds maxDelay=168h" in result.reason
    assert validate(pod, plugin, operation="UPDATE", old=pod).code is not Code.REJECT
    workload = {"metadata": {"name": "w"}, "spec": {"template": pod}}
    assert validate(workload, plugin, kind=DEPLOYMENT).code is Code.SKIP


@pytest.mark.parametrize(
    ("old", "new", "rejected"),
    [
        pytest.param({"delay": "15"}, LONGER, True, id="from a valid delay"),
        pytest.param({"delay": "soon"}, LONG, True, id="from an invalid value"),
        pytest.param({"delay": "15"}, {"delay": "15", JITTER: "168h"}, True, id="by the jitter"),
        pytest.param({"delay": "15"}, ahead(8 * DAY), True, id="by a not-before"),
        pytest.param(ahead(8 * DAY), {**ahead(8 * DAY), JITTER: "1"}, True, id="jitter added"),
        pytest.param(ahead(9 * DAY), ahead(8 * DAY), False, id="an earlier not-before"),
        pytest.param(
            ahead(9 * DAY), {**LONG, **ahead(8 * DAY)}, False, id="earlier not-before, longer delay"
        ),
        pytest.param(LONG, {**LONG, JITTER: "0"}, False, id="same length"),
        pytest.param(LONGER, LONG, False, id="shorter but too long"),
        pytest.param({"delay": "15"}, {"delay": "soon"}, False, id="to an invalid value"),
    ],
)
def test_update_cannot_extend_a_hold_beyond_max_delay(
    old: dict[str, str], new: dict[str, str], rejected: bool
) -> None:
    """Also if invalid values are ignored, because the gate would hold the pod for that long."""
    plugin = make_delay(on_invalid="ignore")
    result = validate(held(new), plugin, operation="UPDATE", old=held(old))
    assert (result.code is Code.REJECT) == rejected

    unheld_result = validate(make_pod(new), plugin, operation="UPDATE", old=make_pod(old))
    assert unheld_result.code is not Code.REJECT


@pytest.mark.parametrize("on_invalid", ["reject", "ignore"])
def test_fast_clock_does_not_admit_a_pod_without_its_gate(on_invalid: str) -> None:
    """The pod was created an hour ago by our clock, but just now by the API server's."""
    plugin, pod = make_delay(on_invalid=on_invalid), make_pod(ahead(30 * MINUTE))
    now_ms = CREATED_MS + HOUR

    assert mutate(pod, plugin, now_ms=now_ms).edits == ()
    assert Result(Code.REJECT, (), WRONG_CLOCK) == validate(pod, plugin, now_ms=now_ms)


def test_slow_clock_does_not_reject_a_gated_pod() -> None:
    pod = held(ahead(30 * MINUTE))

    assert Result() == validate(pod, now_ms=CREATED_MS - 400 * DAY)


# --- templates ---------------------------------------------------------------------------------


def validate_workload(kind: str, annotations: dict[str, str], pod: Any, **spec: Any) -> Result:
    template = {"metadata": {"annotations": annotations}, "spec": pod}
    group = {"group": "batch" if kind == "Job" else "apps", "version": "v1", "kind": kind}
    workload = {"metadata": {"name": "w"}, "spec": {"template": template} | spec}
    return validate(workload, kind=group)


def updates(field: str, advice: str) -> str:
    return (
        f"{field} deletes each pod before its successor starts, so an update leaves it down for "
        f"15s: {advice}"
    )


@pytest.mark.parametrize(
    ("kind", "delay", "spec", "warning"),
    [
        ("Deployment", "599", {"progressDeadlineSeconds": 600}, ""),
        (
            "Job",
            "60",
            {"activeDeadlineSeconds": 60},
            "spec.activeDeadlineSeconds=60 expires while pods are held for 1m: increase it",
        ),
        (
            "Job",
            "60",
            {"activeDeadlineSeconds": 180, "completions": 5, "parallelism": 2},
            (
                "spec.activeDeadlineSeconds=180 expires before the last of 3 rounds of pods, each "
                "held for 1m: increase it, or increase parallelism"
            ),
        ),
        ("Job", "60", {"activeDeadlineSeconds": 181, "completions": 5, "parallelism": 2}, ""),
        (
            "StatefulSet",
            "15",
            {"replicas": 3, "updateStrategy": {"type": "OnDelete"}},
            (
                "3 pods start one at a time, each held for 15s: set spec.podManagementPolicy: "
                "Parallel to hold them together"
            ),
        ),
        (
            "StatefulSet",
            "15",
            {"replicas": 3, "podManagementPolicy": "Parallel"},
            updates("spec.updateStrategy", "remove the delay if the pods must stay available"),
        ),
        (
            "DaemonSet",
            "15",
            {},
            updates(
                "spec.updateStrategy",
                "set maxSurge in spec.updateStrategy.rollingUpdate, or remove the delay",
            ),
        ),
        (
            "Deployment",
            "15",
            {"strategy": {"type": "Recreate"}},
            updates("spec.strategy", "set spec.strategy.type: RollingUpdate, with a maxSurge"),
        ),
    ],
)
def test_delay_that_disrupts_a_workload_gets_a_warning(
    kind: str, delay: str, spec: Any, warning: str
) -> None:
    result = validate_workload(kind, {"delay": delay}, {}, **spec)

    assert result.code is Code.SUCCESS
    assert list(result.warnings) == ([f"holdfast: {warning}"] if warning else [])


@pytest.mark.parametrize(
    ("delay", "concurrency", "outcome"),
    [
        ("5m", "Replace", "replaced before they start"),
        ("1h", "Forbid", "skipped"),
        ("299", "Replace", ""),
        ("5m", "Allow", ""),
    ],
)
def test_delay_that_prevents_cron_job_runs_gets_a_warning(
    delay: str, concurrency: str, outcome: str
) -> None:
    job = {"spec": {"template": {"metadata": {"annotations": {"delay": delay}}}}}
    spec = {"schedule": "*/5 * * * *", "concurrencyPolicy": concurrency, "jobTemplate": job}
    group = {"group": "batch", "version": "v1", "kind": "CronJob"}
    result = validate({"metadata": {"name": "w"}, "spec": spec}, kind=group)

    warning = (
        f"holdfast: spec.schedule starts a run every 5m, and pods are held for {delay}: with "
        f"spec.concurrencyPolicy: {concurrency} runs are {outcome}; shorten the hold"
    )
    assert list(result.warnings) == ([warning] if outcome else [])


def test_template_with_a_not_before_beyond_max_delay_gets_a_warning() -> None:
    annotations = ahead(8 * DAY)
    result = validate_workload("ReplicaSet", annotations, {})

    assert result.code is Code.SUCCESS
    problem = TOO_FAR % annotations[NOT_BEFORE]
    warning = f"holdfast: pods of this template are rejected for now: {problem}"
    assert list(result.warnings) == [warning]


def test_template_with_a_node_name_gets_a_warning() -> None:
    (warning,) = validate_workload("ReplicaSet", {"delay": "15"}, {"nodeName": "n1"}).warnings
    assert warning == (
        "holdfast: spec.template.spec.nodeName is set, so the pods cannot be held: use a "
        "nodeSelector instead"
    )
