"""JSON patches made from edits; node affinity is in test_node_affinity.py."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.webhook.framework.json_patch import applied, patch
from holdfast.webhook.model.edits import (
    AddFinalizer,
    AddGate,
    Edit,
    RemoveAnnotation,
    SetAnnotation,
    SetSchedulerName,
    Tolerate,
)
from holdfast.webhook.model.objects import Pod
from tests.support.builders import GATE, make_pod
from tests.support.fakes import PATCH_ERRORS, apply_patch

UNREADY = "node.kubernetes.io/"
NOT_READY = {"key": UNREADY + "not-ready"}


def default(taint: str, *, operator: str = "Exists", seconds: int = 300) -> dict[str, Any]:
    """Make a toleration that the API server adds to pods by default."""
    fields = {"key": UNREADY + taint, "operator": operator, "effect": "NoExecute"}
    return {**fields, "tolerationSeconds": seconds}


def append_toleration(**fields: Any) -> dict[str, Any]:
    return {"op": "add", "path": "/spec/tolerations/-", "value": fields}


def intended(pod: Any, edits: Sequence[Edit]) -> Any:
    pod = copy.deepcopy(pod)
    metadata, spec = pod["metadata"], pod["spec"]
    for edit in edits:
        match edit:
            case AddGate(name):
                gates = spec.get("schedulingGates") or []
                if {"name": name} not in gates:
                    spec["schedulingGates"] = [*gates, {"name": name}]
            case SetAnnotation(key, value):
                metadata["annotations"] = (metadata.get("annotations") or {}) | {key: value}
            case RemoveAnnotation(key):
                (metadata.get("annotations") or {}).pop(key, None)
            case SetSchedulerName(name):
                spec["schedulerName"] = name
            case AddFinalizer(name):
                finalizers = metadata.get("finalizers") or []
                if name not in finalizers:
                    metadata["finalizers"] = [*finalizers, name]
            case Tolerate():
                tolerate(spec, edit)
    return pod


def tolerate(spec: Any, edit: Tolerate) -> None:
    fields = {"key": edit.key, "operator": edit.operator, "effect": edit.effect}
    toleration: Any = {name: text for name, text in fields.items() if text}
    if edit.seconds is not None:
        toleration["tolerationSeconds"] = edit.seconds
    tolerations = spec.get("tolerations") or []
    if toleration not in [{"operator": "Equal", **existing} for existing in tolerations]:
        spec["tolerations"] = [*tolerations, toleration]


def normalized(pod: Any) -> Any:
    """Remove null and empty fields, which the API server stores like absent ones."""
    pod = copy.deepcopy(pod)
    for section in (pod["metadata"], pod["spec"]):
        for name in [name for name, value in section.items() if not value]:
            del section[name]
    return pod


keys = st.one_of(
    st.sampled_from(
        ["holdfast.dev/held", "a/b", "a~b", "~1", "~0", "a~1/b", "", "/", "é", "0", "-"]
    ),
    st.text(max_size=6),
)
gate_names = st.sampled_from([GATE, "a.io/b", "c.io/d", "~/e", "holdfast.dev/x"])
TOLERATIONS = [
    {"key": "a"},
    {"key": "a", "operator": "Equal", "effect": "NoSchedule"},
    {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
    {"key": "a", "operator": "Exists", "effect": "NoExecute"},
]
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just("x")},
            optional={
                "annotations": st.none() | st.dictionaries(keys, st.text(max_size=6)),
                "finalizers": st.none() | st.lists(gate_names, max_size=3, unique=True),
            },
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.just([{"name": "main"}])},
            optional={
                "schedulerName": st.sampled_from(["default-scheduler", "mine"]),
                "schedulingGates": st.none()
                | st.lists(gate_names.map(lambda name: {"name": name}), max_size=4, unique_by=str),
                "tolerations": st.none() | st.lists(st.sampled_from(TOLERATIONS), max_size=3),
            },
        ),
    }
)
edit_lists = st.lists(
    st.one_of(
        st.builds(AddGate, gate_names),
        st.builds(SetAnnotation, keys, st.text(max_size=6)),
        st.builds(RemoveAnnotation, keys),
        st.builds(SetSchedulerName, st.sampled_from(["mine", "yours"])),
        st.builds(AddFinalizer, gate_names),
        st.builds(Tolerate, st.sampled_from("ab"), effect=st.sampled_from(["", "NoSchedule"])),
        st.just(Tolerate("a", "Exists", "", "NoExecute", 0)),
    ),
    max_size=6,
)


@given(pods, edit_lists)
def test_patch_produces_the_intended_pod(pod: Any, edits: list[Edit]) -> None:
    operations = patch(Pod.of(pod), edits)
    patched = apply_patch(pod, operations)

    assert normalized(intended(pod, edits)) == normalized(patched)
    assert applied(pod, operations) == patched
    assert patch(Pod.of(patched), edits) == []


@given(pods, edit_lists)
def test_patch_has_no_redundant_operation(pod: Any, edits: list[Edit]) -> None:
    operations = patch(Pod.of(pod), edits)
    expected = normalized(intended(pod, edits))
    for index in range(len(operations)):
        subset = operations[:index] + operations[index + 1 :]
        try:
            result = normalized(apply_patch(pod, subset))
        except PATCH_ERRORS:
            continue
        assert expected != result


@pytest.mark.parametrize(
    ("tolerations", "edits", "expected"),
    [
        pytest.param(
            [{"key": "edge", "value": "yes"}],
            [
                Tolerate("edge", "", "yes"),
                Tolerate("edge", "", "no", "NoSchedule"),
                Tolerate("edge", value="no", effect="NoSchedule"),
            ],
            [append_toleration(key="edge", operator="Equal", value="no", effect="NoSchedule")],
            id="another toleration; the operators of pod and edit default to Equal",
        ),
        pytest.param(
            [default("not-ready"), {"key": "a"}, default("unreachable")],
            [Tolerate(UNREADY + "unreachable", "", "", "NoExecute", 6)],
            [
                {"op": "remove", "path": "/spec/tolerations/2"},
                append_toleration(**default("unreachable", operator="Equal", seconds=6)),
            ],
            id="a default toleration is replaced",
        ),
        pytest.param(
            [default("not-ready"), default("unreachable")],
            [Tolerate(operator="Exists")],
            [
                {"op": "remove", "path": "/spec/tolerations/1"},
                {"op": "remove", "path": "/spec/tolerations/0"},
                append_toleration(operator="Exists"),
            ],
            id="a wildcard toleration replaces both defaults",
        ),
        pytest.param(
            [default("unreachable", seconds=60), default("not-ready")],
            [
                Tolerate(UNREADY + "unreachable", "Exists", "", "NoExecute", 300),
                Tolerate(UNREADY + "not-ready", "Exists", "", "NoExecute", 300),
                Tolerate(UNREADY + "not-ready", value="x", effect="NoExecute"),
                Tolerate(UNREADY + "not-ready", "Exists", "", "NoSchedule"),
            ],
            [
                append_toleration(**default("unreachable")),
                append_toleration(**NOT_READY, operator="Equal", value="x", effect="NoExecute"),
                append_toleration(**NOT_READY, operator="Exists", effect="NoSchedule"),
            ],
            id="the pod's own and requested default tolerations are kept",
        ),
    ],
)
def test_tolerations(tolerations: Any, edits: list[Edit], expected: list[dict[str, Any]]) -> None:
    pod = make_pod()
    pod["spec"]["tolerations"] = tolerations
    assert expected == patch(Pod.of(pod), edits)
    patched = applied(pod, expected)
    assert patched == apply_patch(pod, expected)
    assert patch(Pod.of(patched), edits) == []


def test_non_edit_raises_type_error() -> None:
    with pytest.raises(TypeError) as caught:
        patch(Pod.of(make_pod()), ["gate"])  # type: ignore[list-item]

    assert str(caught.value) == "str is not an edit: use holdfast.edits"
