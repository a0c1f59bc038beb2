from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import apply_patch
from tests.unit.builders import (
    CREATED_MS,
    GATE,
    HOUR,
    MINUTE,
    SECOND,
    UID,
    Document,
    held,
    instant,
    make_delay,
    make_pod,
    read_review,
)
from tests.unit.vm_builders import owner_of
from webhook import holds, values, vms
from webhook.framework import Code, Context, Result
from webhook.holds import HELD, JITTER, NOT_BEFORE
from webhook.objects import Pod
from webhook.patch import patch
from webhook.plugins.delay import Delay
from webhook.review import AddGate, Edit, RemoveAnnotation, SetAnnotation, SetSchedulerName

DAY = 24 * HOUR
MIGRATION = {vms.MIGRATION_JOB: "7d1f"}
VMI_OWNER = [owner_of(vms.VMI, "vm", "vmi-uid")]
UNHELD = [RemoveAnnotation(HELD)]
SOON = f'annotation delay: "soon" is no duration; {values.DELAY_ACCEPTED}'
CURE = "shorten them, or ask an admin to raise maxDelay"


def ahead(milliseconds: int) -> dict[str, str]:
    return {NOT_BEFORE: instant(CREATED_MS + milliseconds)}


def mutate(pod: Any, plugin: Delay | None = None, now_ms: int = CREATED_MS) -> Result:
    found = read_review(pod)
    return (plugin or make_delay()).mutate(found.pod, Context(found, "*", now_ms))


def validate(
    pod: Any, plugin: Delay | None = None, now_ms: int = CREATED_MS, **fields: Any
) -> Result:
    found = read_review(pod, **fields)
    return (plugin or make_delay()).validate(found.pod, Context(found, "*", now_ms))


# --- mutate ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "hint"),
    [
        pytest.param({"delay": "15"}, "delay=15s", id="short key"),
        pytest.param({"holdfast.dev/delay": "90"}, "holdfast.dev/delay=1m30s", id="own key"),
        pytest.param({"delay": "168h"}, "delay=168h", id="as long as may be"),
        pytest.param({JITTER: "2s"}, "jitter=2s", id="jitter alone"),
        pytest.param(ahead(HOUR), "not-before=2026-03-01T13:00:00Z", id="not-before"),
        pytest.param(ahead(7 * DAY), "not-before=2026-03-08T12:00:00Z", id="the last not-before"),
        pytest.param(
            ahead(-10 * MINUTE), "not-before=2026-03-01T11:50:00Z", id="10 minutes ago, to be safe"
        ),
        pytest.param(
            {"delay": "1", JITTER: "1"} | ahead(0),
            "delay=1s,not-before=2026-03-01T12:00:00Z,jitter=1s",
            id="all three",
        ),
        pytest.param(
            {"delay": "15", HELD: "delay=1s"}, "delay=15s", id="a forged hint is replaced"
        ),
    ],
)
def test_pod_that_asks_is_held(annotations: dict[str, str], hint: str) -> None:
    expected: list[Edit] = [AddGate(GATE), SetAnnotation(HELD, hint)]

    assert Result(Code.SUCCESS, tuple(expected)) == mutate(make_pod(annotations))


@pytest.mark.parametrize(
    "owners",
    [
        pytest.param([], id="of nobody"),
        pytest.param([owner_of("ReplicaSet", "web", "u", api_version="apps/v1")], id="of others"),
        pytest.param([owner_of(vms.VMI, "vm", "u", controller=False)], id="not its controller"),
    ],
)
def test_migrations_label_alone_lets_nobody_off(owners: list[Document]) -> None:
    result = mutate(make_pod({"delay": "15"}, labels=MIGRATION, owners=owners))

    assert AddGate(GATE) in result.edits


@pytest.mark.parametrize(
    ("pod", "warnings"),
    [
        pytest.param(make_pod(), [], id="asks for nothing"),
        pytest.param(make_pod({HELD: "delay=15s"}), [], id="a forged hint alone"),
        pytest.param(make_pod({"delay": "0"}), [], id="a delay of nothing"),
        pytest.param(make_pod(ahead(-10 * MINUTE - 1)), [], id="not-before long past"),
        pytest.param(
            make_pod({"delay": "15"}, labels=MIGRATION, owners=VMI_OWNER), [], id="migration"
        ),
        pytest.param(
            make_pod({"delay": "soon"}, labels=MIGRATION, owners=VMI_OWNER),
            [],
            id="migration, unreadable",
        ),
        pytest.param(
            make_pod({"delay": "15"}, node="n1"),
            ["holdfast: not held: spec.nodeName is set already"],
            id="bound already",
        ),
    ],
)
def test_pod_that_is_not_held_loses_its_hint(pod: Any, warnings: list[str]) -> None:
    result = mutate(pod)

    assert (Code.SUCCESS, UNHELD, warnings) == (
        result.code,
        list(result.edits),
        list(result.warnings),
    )


REFUSALS = [
    pytest.param({"delay": "soon"}, SOON, id="unreadable"),
    pytest.param(
        {"delay": "15", "holdfast.dev/delay": "20"},
        'annotations holdfast.dev/delay="20" and delay="15" disagree; keep one of them',
        id="conflict",
    ),
    pytest.param(
        {"delay": "169h"},
        f'annotations ask for delay="169h", together longer than maxDelay=168h; {CURE}',
        id="over maxDelay",
    ),
    pytest.param(
        {"delay": "168h", JITTER: "1ms"},
        'annotations ask for delay="168h" and holdfast.dev/jitter="1ms", together longer than '
        f"maxDelay=168h; {CURE}",
        id="over maxDelay with the jitter",
    ),
    pytest.param(
        {"delay": "9223372036854775807"},
        'annotations ask for delay="9223372036854775807", together longer than maxDelay=168h; '
        + CURE,
        id="the longest of ParseInt",
    ),
]
TOO_FAR = (
    'annotation holdfast.dev/not-before: "2026-03-08T12:00:01Z" is further away than '
    "maxDelay=168h; choose an earlier time, or ask an admin to raise maxDelay"
)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [*REFUSALS, pytest.param(ahead(7 * DAY + SECOND), TOO_FAR, id="not-before too far")],
)
def test_value_that_cannot_be_followed(annotations: dict[str, str], expected: str) -> None:
    ignoring = make_delay(on_invalid="ignore")

    assert Result(Code.REFUSE, (), expected) == mutate(make_pod(annotations))
    assert Result(Code.SUCCESS, tuple(UNHELD), "", [f"holdfast: not held: {expected}"]) == mutate(
        make_pod(annotations), ignoring
    )


def test_refused_although_bound_already() -> None:
    assert Code.REFUSE is mutate(make_pod({"delay": "soon"}, node="n1")).code


def test_scheduler_name_for_held_pods() -> None:
    plugin = make_delay(scheduler_name="delayed")

    assert SetSchedulerName("delayed") in mutate(make_pod({"delay": "15"}), plugin).edits
    assert list(mutate(make_pod({"delay": "0"}), plugin).edits) == UNHELD


def test_further_keys() -> None:
    plugin = make_delay(annotations=("wait.io/for",))

    assert list(mutate(make_pod({"delay": "15"}), plugin).edits) == UNHELD
    assert SetAnnotation(HELD, "wait.io/for=15s") in (
        mutate(make_pod({"wait.io/for": "15"}), plugin).edits
    )


@pytest.mark.parametrize("gates", [[], [GATE], ["a.io/b"]], ids=["none", "ours", "another's"])
def test_reinvocation_changes_nothing_more(gates: list[str]) -> None:
    pod = make_pod({"delay": "15"}, gates=gates)
    once = apply_patch(pod, patch(Pod.of(pod), mutate(pod).edits))

    assert once["spec"]["schedulingGates"].count({"name": GATE}) == 1
    assert patch(Pod.of(once), mutate(once).edits) == []


# --- validate ----------------------------------------------------------------------------------

LOST = (
    "gate holdfast.dev/delay is gone although the pod asks to be held; another mutating webhook "
    "removed it or added the annotation after Holdfast had seen the pod"
)


WRONG_CLOCK = (
    "gate holdfast.dev/delay is missing: by this admission server's clock, 2026-03-01T13:00:00Z, "
    "the not-before is long past; the API server created the pod at 2026-03-01T12:00:00Z, before "
    "it; set the clock of the server's node"
)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(make_pod(), Result(Code.SKIP), id="asks for nothing"),
        pytest.param(held({"delay": "15"}), Result(), id="held"),
        pytest.param(make_pod({"delay": "15"}), Result(Code.REFUSE, (), LOST), id="gate lost"),
        pytest.param(
            make_pod({"delay": "15"}, gates=["a.io/b"]),
            Result(Code.REFUSE, (), LOST),
            id="gate lost, another's there",
        ),
        pytest.param(make_pod({"delay": "0"}), Result(), id="a delay of nothing"),
        pytest.param(
            make_pod(ahead(1)), Result(Code.REFUSE, (), LOST), id="lost, not-before ahead"
        ),
        pytest.param(make_pod(ahead(-1)), Result(), id="not-before just past, by our clock"),
        pytest.param(make_pod({"delay": "15"}, node="n1"), Result(), id="bound already"),
        pytest.param(
            make_pod({"delay": "15"}, labels=MIGRATION, owners=VMI_OWNER),
            Result(Code.SKIP),
            id="migration",
        ),
        pytest.param(
            make_pod({"delay": "soon"}, labels=MIGRATION, owners=VMI_OWNER),
            Result(Code.SKIP),
            id="migration, unreadable",
        ),
        pytest.param(
            make_pod({"delay": "soon"}, labels=MIGRATION),
            Result(Code.REFUSE, (), SOON),
            id="a migration's label alone",
        ),
        pytest.param(make_pod({"delay": "soon"}), Result(Code.REFUSE, (), SOON), id="unreadable"),
        pytest.param(
            held(ahead(7 * DAY + SECOND)), Result(Code.REFUSE, (), TOO_FAR), id="not-before too far"
        ),
    ],
)
def test_validate_at_create(pod: Any, expected: Result) -> None:
    assert expected == validate(pod)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        *[pytest.param(one.values[0], Result(Code.REFUSE, (), str(one.values[1])), id=str(one.id))
          for one in REFUSALS],
        pytest.param({"delay": "15"}, Result(), id="a gate that is gone already"),
        pytest.param(ahead(30 * DAY), Result(), id="a not-before that is far away"),
        pytest.param({}, Result(Code.SKIP), id="all removed"),
    ],
)  # fmt: skip
def test_validate_at_update(annotations: dict[str, str], expected: Result) -> None:
    found = validate(make_pod(annotations), operation="UPDATE", old=held({"delay": "15"}))

    assert expected == found


@pytest.mark.parametrize(
    ("annotations", "code"), [({"delay": "soon"}, Code.SKIP), ({"delay": "15"}, Code.SUCCESS)]
)
def test_nothing_is_refused_where_invalid_is_ignored(
    annotations: dict[str, str], code: Code
) -> None:
    assert Result(code) == validate(make_pod(annotations), make_delay(on_invalid="ignore"))


@pytest.mark.parametrize(
    ("annotations", "told"),
    [
        pytest.param({"delay": "169h"}, "together longer than maxDelay=168h", id="delay"),
        pytest.param(ahead(7 * DAY + SECOND), "is further away than maxDelay=168h", id="time"),
    ],
)
def test_what_has_the_gate_already_is_not_held_for_longer_than_may_be(
    annotations: dict[str, str], told: str
) -> None:
    """Ignored, it would be held all the same, for all that time."""
    plugin, pod = make_delay(on_invalid="ignore"), make_pod(annotations, gates=[GATE])

    for found in (mutate(pod, plugin), validate(pod, plugin)):
        assert found.code is Code.REFUSE
        assert told in found.reason
    stored = validate(pod, plugin, operation="UPDATE", old=pod)
    assert stored.code is not Code.REFUSE


LONG, LONGER = {"delay": "169h"}, {"delay": "9999999999"}


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        pytest.param({"delay": "15"}, LONGER, True, id="from what may be"),
        pytest.param(LONG, LONGER, True, id="from what is too long already"),
        pytest.param({"delay": "soon"}, LONG, True, id="from what cannot be read"),
        pytest.param({}, LONG, True, id="from nothing"),
        pytest.param({"delay": "15"}, {"delay": "15", JITTER: "168h"}, True, id="by the jitter"),
        pytest.param(LONG, {**LONG, JITTER: "0"}, False, id="as long as before"),
        pytest.param(LONGER, LONG, False, id="less, though too long"),
        pytest.param(LONG, {"delay": "15"}, False, id="what may be"),
        pytest.param({"delay": "15"}, {"delay": "soon"}, False, id="what cannot be read"),
    ],
)
def test_held_pod_is_not_made_to_wait_longer_than_may_be(
    old: dict[str, str], new: dict[str, str], refused: bool
) -> None:
    """Nor by an update, which would have it held all that time, whatever is ignored."""
    ignoring = make_delay(on_invalid="ignore")
    found = validate(held(new), ignoring, operation="UPDATE", old=held(old))
    assert (found.code is Code.REFUSE) == refused

    unheld = validate(make_pod(new), ignoring, operation="UPDATE", old=make_pod(old))
    assert unheld.code is not Code.REFUSE


def test_too_long_a_template_is_ignored_though_it_has_the_gate() -> None:
    """Its pods are not: they are refused."""
    found = {"metadata": {"name": "w"}, "spec": {"template": held(LONG)}}
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    assert validate(found, make_delay(on_invalid="ignore"), kind=kind).code is Code.SKIP


def test_what_cannot_be_read_is_ignored_with_the_gate_too() -> None:
    """The controller releases it at once."""
    plugin, pod = make_delay(on_invalid="ignore"), make_pod({"delay": "soon"}, gates=[GATE])

    assert mutate(pod, plugin).code is Code.SUCCESS
    assert validate(pod, plugin).code is Code.SKIP


@pytest.mark.parametrize("on_invalid", ["reject", "ignore"])
def test_a_clock_that_is_ahead_lets_no_pod_through(on_invalid: str) -> None:
    """The pod was created an hour ago by our clock, and now by the API server's."""
    plugin, pod = make_delay(on_invalid=on_invalid), make_pod(ahead(30 * MINUTE))
    now_ms = CREATED_MS + HOUR

    assert list(mutate(pod, plugin, now_ms).edits) == UNHELD
    assert Result(Code.REFUSE, (), WRONG_CLOCK) == validate(pod, plugin, now_ms)


def test_a_clock_that_is_behind_refuses_no_pod_that_has_its_gate() -> None:
    pod = held(ahead(30 * MINUTE))

    assert Result() == validate(pod, now_ms=CREATED_MS - 400 * DAY)


# --- templates ---------------------------------------------------------------------------------


def workload(kind: str, group: str, template: Any, **spec: Any) -> dict[str, Any]:
    return {
        "pod": {"metadata": {"name": "w"}, "spec": {"template": template} | spec},
        "kind": {"group": group, "version": "v1", "kind": kind},
    }


def template(annotations: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}, "spec": spec}


@pytest.mark.parametrize(
    ("found", "warnings"),
    [
        pytest.param(workload("DaemonSet", "apps", template({"delay": "15"})), [], id="plain"),
        pytest.param(
            workload("Deployment", "apps", template({"delay": "1h"}), progressDeadlineSeconds=600),
            [
                (
                    "holdfast: spec.progressDeadlineSeconds=600 runs on while pods are held for "
                    "1h; make it longer than that"
                )
            ],
            id="Deployment",
        ),
        pytest.param(
            workload("Deployment", "apps", template({"delay": "599"}), progressDeadlineSeconds=600),
            [],
            id="Deployment that suffers not",
        ),
        pytest.param(
            workload("Job", "batch", template({"delay": "60"}), activeDeadlineSeconds=60),
            [
                (
                    "holdfast: spec.activeDeadlineSeconds=60 runs on while pods are held for 1m; "
                    "make it longer than that"
                )
            ],
            id="Job",
        ),
        pytest.param(
            workload("StatefulSet", "apps", template({"delay": "15"}), replicas=3),
            [
                (
                    "holdfast: 3 pods start one after the other, each held for 15s; "
                    "spec.podManagementPolicy: Parallel holds them together"
                )
            ],
            id="StatefulSet",
        ),
        pytest.param(
            workload(
                "StatefulSet",
                "apps",
                template({"delay": "15"}),
                replicas=3,
                podManagementPolicy="Parallel",
            ),
            [],
            id="parallel StatefulSet",
        ),
        pytest.param(
            workload("ReplicaSet", "apps", template({"delay": "15"}, nodeName="n1")),
            ["holdfast: spec.template.spec.nodeName is set, so the pods cannot be held"],
            id="nodeName",
        ),
        pytest.param(
            workload("Job", "batch", template({"delay": "0"}), activeDeadlineSeconds=1),
            [],
            id="a delay of nothing",
        ),
    ],
)
def test_template_that_will_suffer_is_warned_of(found: Any, warnings: list[str]) -> None:
    result = validate(found["pod"], kind=found["kind"])

    assert (Code.SUCCESS, warnings) == (result.code, list(result.warnings))


def test_template_with_an_unreadable_value_is_refused() -> None:
    found = workload("Deployment", "apps", template({"delay": "soon"}))

    assert Result(Code.REFUSE, (), SOON) == validate(found["pod"], kind=found["kind"])


# --- due ---------------------------------------------------------------------------------------


def test_due_follows_the_configured_keys() -> None:
    pod = Pod.of(held({"wait.io/for": "20", "delay": "1h", JITTER: "1m"}))
    share = holds.jitter_share_ms(UID, MINUTE)

    assert holds.Due(CREATED_MS + 20 * SECOND + share) == (
        make_delay(annotations=("wait.io/for",)).due(pod)
    )


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [({}, False), ({"other": "1"}, False), ({"delay": "x"}, True), ({JITTER: ""}, True)],
    ids=["none", "another's", "delay", "jitter"],
)
def test_concerns(annotations: dict[str, str], expected: bool) -> None:
    assert expected == make_delay().concerns(Pod.of(make_pod(annotations)))
