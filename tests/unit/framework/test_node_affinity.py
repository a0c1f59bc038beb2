from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.webhook.framework import node_affinity
from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.model.edits import Edit, PreferNodes, Requirement, RequireNodes, SelectNodes
from holdfast.webhook.model.nodes import Node
from holdfast.webhook.model.objects import Pod
from tests.support.builders import make_pod
from tests.support.fakes import apply_patch
from tests.support.generated import as_json, edit_lists, nodes, pods, requirements
from tests.support.matching import PREFERRED, REQUIRED, admits, is_tightening, meets

NODE = "/spec/affinity/nodeAffinity"
TERMS = f"{NODE}/{REQUIRED}/nodeSelectorTerms"

EDGE = Requirement("role", "In", ("edge",))
DISK = Requirement("disk", "Exists")
NODE_1 = Requirement("metadata.name", "In", ("node-1",), is_field=True)
EDGE_JSON = {"key": "role", "operator": "In", "values": ["edge"]}
DISK_JSON = {"key": "disk", "operator": "Exists"}
NODE_1_JSON = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
NODE_2 = Requirement("metadata.name", "In", ("node-2",), is_field=True)
NODE_2_JSON = {**NODE_1_JSON, "values": ["node-2"]}
PREFERRED_EDGE = {"weight": 5, "preference": {"matchExpressions": [EDGE_JSON]}}


def with_affinity(affinity: Any) -> Any:
    pod = make_pod()
    pod["spec"]["affinity"] = affinity
    return pod


def requiring(*terms: Any) -> Any:
    return with_affinity({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}})


def add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


# --- requirements ------------------------------------------------------------------------------


def test_several_requirements_and_fields() -> None:
    pod = requiring({"matchExpressions": [EDGE_JSON]}, {"matchFields": [NODE_1_JSON]})
    edits = [RequireNodes((EDGE, NODE_1)), RequireNodes((EDGE, DISK))]

    assert patch(Pod.of(pod), edits) == [
        add(f"{TERMS}/0/matchExpressions/-", DISK_JSON),
        add(f"{TERMS}/0/matchFields", [NODE_1_JSON]),
        add(f"{TERMS}/1/matchExpressions", [EDGE_JSON, DISK_JSON]),
    ]


@pytest.mark.parametrize(
    ("present", "path", "value"),
    [
        pytest.param({}, f"{NODE}/{PREFERRED}", [PREFERRED_EDGE], id="none"),
        pytest.param(
            {PREFERRED: [{**PREFERRED_EDGE, "weight": 6}]},
            f"{NODE}/{PREFERRED}/-",
            PREFERRED_EDGE,
            id="with another weight",
        ),
    ],
)
def test_preferred_is_appended_once(present: Any, path: str, value: Any) -> None:
    edits = [PreferNodes(5, (EDGE,)), PreferNodes(5, (EDGE,))]

    assert [add(path, value)] == patch(Pod.of(with_affinity({"nodeAffinity": present})), edits)


def test_preferred_term_is_deduplicated_regardless_of_order() -> None:
    edits = [PreferNodes(5, (NODE_1, EDGE, DISK)), PreferNodes(5, (EDGE, NODE_1, DISK))]
    patched = apply_patch(make_pod(), patch(Pod.of(make_pod()), edits[:1]))

    assert len(patch(Pod.of(make_pod()), edits)[0]["value"]["nodeAffinity"][PREFERRED]) == 1
    assert patch(Pod.of(patched), edits) == []


def test_empty_requirement_changes_nothing() -> None:
    assert patch(Pod.of(make_pod()), [RequireNodes(())]) == []


# --- generated pods, rules and nodes -----------------------------------------------------------


def satisfies(node: Any, edits: list[Edit]) -> bool:
    """Return whether a node meets all edits, by the independent matcher."""
    labels = node["metadata"]["labels"]
    name = {"metadata.name": node["metadata"]["name"]}
    for edit in edits:
        match edit:
            case RequireNodes(required):
                if not all(meets(name if r.is_field else labels, as_json(r)) for r in required):
                    return False
            case SelectNodes(key, value):
                if labels.get(key) != value:
                    return False
    return True


@given(pods, edit_lists, nodes)
def test_patched_pod_fits_nodes_that_pod_and_edits_allow(
    pod: Any, edits: list[Edit], nodes: list[Any]
) -> None:
    patched = apply_patch(pod, patch(Pod.of(pod), edits))

    for node in nodes:
        assert (admits(pod, node) and satisfies(node, edits)) == admits(patched, node)


@given(pods, nodes)
def test_unmet_requirements_explain_why_a_node_does_not_fit(pod: Any, nodes: list[Any]) -> None:
    terms = node_affinity.terms(Pod.of(pod))
    for node in nodes if terms is None or any(terms) else ():
        unmet = node_affinity.unmet(Pod.of(pod), msgspec.convert(node, Node))
        assert admits(pod, node) == (not unmet)
        name = {"metadata.name": node["metadata"]["name"]}
        for requirement in unmet:
            assert not meets(
                name if requirement.is_field else node["metadata"]["labels"], as_json(requirement)
            )


@given(pods, edit_lists)
def test_patch_is_a_valid_update_of_a_gated_pod_and_is_applied_once(
    pod: Any, edits: list[Edit]
) -> None:
    operations = patch(Pod.of(pod), edits)
    patched = apply_patch(pod, operations)
    anti_affinity = (pod["spec"].get("affinity") or {}).get("podAntiAffinity")
    set_paths = [operation["path"] for operation in operations if operation["path"][-1] != "-"]

    assert is_tightening(pod, patched)
    assert patch(Pod.of(patched), edits) == []
    assert anti_affinity == (patched["spec"].get("affinity") or {}).get("podAntiAffinity")
    assert {operation["op"] for operation in operations} <= {"add"}
    assert len({*set_paths}) == len(set_paths)


# --- impossible requirements -------------------------------------------------------------------


def require(operator: str, *values: str, key: str = "k") -> Requirement:
    return Requirement(key, operator, values)


@pytest.mark.parametrize(
    ("requirements", "possible"),
    [
        pytest.param([require("Gt", "9223372036854775807")], False, id="above int64"),
        pytest.param([NODE_1, NODE_2], False, id="two names"),
        pytest.param(
            [require("Gt", "4"), require("Lt", "6"), require("NotIn", "5")], True, id="met by 05"
        ),
        pytest.param(
            [NODE_1, require("In", "a", key="metadata.name")], True, id="label and field alike"
        ),
    ],
)
def test_impossible(requirements: list[Requirement], possible: bool) -> None:
    found = node_affinity.impossible([require("In", "x", key="other"), *requirements])

    assert list(found) == ([] if possible else requirements)


BOTH_NODES = {"matchFields": [NODE_1_JSON, NODE_2_JSON], "matchExpressions": [EDGE_JSON]}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(make_pod(), [], id="no requirements"),
        pytest.param(requiring(), [], id="no term"),
        pytest.param(
            requiring({"matchExpressions": [NODE_1_JSON, NODE_2_JSON]}), [], id="a label alone"
        ),
        pytest.param(requiring(BOTH_NODES), [NODE_1, NODE_2], id="two names"),
        pytest.param(requiring(BOTH_NODES, {}), [NODE_1, NODE_2], id="and an empty term"),
        pytest.param(requiring(BOTH_NODES, {"matchFields": [NODE_1_JSON]}), [], id="another term"),
    ],
)
def test_nowhere(pod: Any, expected: list[Requirement]) -> None:
    assert list(node_affinity.nowhere(Pod.of(pod))) == expected


LABELS = [None, "", "a", "b", "4", "04", "5", "05", "06", "12", "13", "0", "other"]


@given(st.lists(requirements(("0", "3", "4", "5", "11")), max_size=5))
def test_impossible_requirements_are_met_by_no_label(found: list[Requirement]) -> None:
    """The labels can meet any of these requirements that can be met together."""
    groups = {
        requirement.key: [other for other in found if other.key == requirement.key]
        for requirement in found
    }
    unmet = [
        group
        for key, group in groups.items()
        if not any(
            all(
                meets({} if value is None else {key: value}, as_json(requirement))
                for requirement in group
            )
            for value in [*LABELS, "6", "7", "1", "01", "001", "005", "0012"]
        )
    ]

    assert (unmet[0] if unmet else []) == list(node_affinity.impossible(found))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", 5),
        ("+5", 5),
        ("-5", -5),
        ("005", 5),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("-9223372036854775808", -(2**63)),
        ("", None),
        (" 5", None),
        ("1_0", None),
        ("\u0665", None),
        ("5.0", None),
        ("0" * 60 + "5", 5),
    ],
)
def test_integer(text: str, expected: int | None) -> None:
    assert expected == node_affinity.integer(text)
