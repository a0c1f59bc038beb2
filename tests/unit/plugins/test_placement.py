import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.webhook.config import config
from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.framework.plugin import Code, Context, Plugin, Result
from holdfast.webhook.model import messages, review
from holdfast.webhook.model.edits import (
    Edit,
    PreferNodes,
    RemoveAnnotation,
    Requirement,
    RequireNodes,
    SelectNodes,
    SetAnnotation,
    SetSchedulerName,
    Tolerate,
)
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins import placement
from holdfast.webhook.plugins.delay import Delay
from holdfast.webhook.plugins.placement import PLACED, Placement, PlacementArgs
from holdfast.webhook.registration import configurations
from holdfast.webhook.runtime import pipelines
from tests.support import config_cases
from tests.support.builders import (
    CREATED_MS,
    GATE,
    make_pipeline,
    make_pod,
    make_profiles,
    read_review,
)
from tests.support.config_cases import EDGE, ROLE, SPACE, role, rule
from tests.support.counting import counted
from tests.support.fakes import apply_patch
from tests.support.matching import REQUIRED, admits, meets
from tests.support.scripted import profiles_of
from tests.unit.framework.test_node_affinity import KEYS, WORDS, affinities, is_tightening
from tests.unit.framework.test_node_affinity import nodes as node_lists
from tests.unit.framework.test_node_affinity import pods as generated_pods

EDGE_NODES = RequireNodes((Requirement(ROLE, "In", ("edge",)),))
SPACE_POD = {"type": "space"}
KNOWN: dict[str, type[Plugin]] = {"delay": Delay, "placement": Placement}
DAEMON_OWNER = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "name": "agent",
    "uid": "d",
    "controller": True,
}


def place(*rules: Any) -> Placement:
    return Placement(msgspec.convert({"rules": list(rules)}, PlacementArgs))


def space(annotations: Any = None, **spec: Any) -> Any:
    pod = make_pod(SPACE_POD if annotations is None else annotations)
    pod["spec"] |= spec
    return pod


def affine(*terms: Any) -> Any:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def requiring(*requirements: Any) -> Any:
    return affine({"matchExpressions": list(requirements)})


def mutate(pod: Any, *rules: Any, held: bool = False, **fields: Any) -> Result:
    found = read_review(pod, **fields)
    context = Context(found, "*", CREATED_MS)
    if held:
        context.mark_held()
    result = place(*rules or [SPACE]).mutate(found.pod, context)
    return unrecorded(result)


def release(pod: Any, *rules: Any) -> Result:
    return unrecorded(place(*rules).at_release(Pod.of(pod)))


def unrecorded(result: Result) -> Result:
    """Drop the record of applied rules, which has its own tests."""
    return replace(result, edits=tuple(one for one in result.edits if not is_record(one)))


def is_record(edit: Edit) -> bool:
    return isinstance(edit, SetAnnotation | RemoveAnnotation) and edit.key == PLACED


def validate(pod: Any, *rules: Any, **fields: Any) -> Result:
    found = read_review(pod, **fields)
    return place(*rules or [SPACE]).validate(found.pod, Context(found, "*", CREATED_MS))


def validate_template(
    pod: Any, *rules: Any, kind: str = "Deployment", operation: str = "CREATE"
) -> Result:
    template = {"metadata": {"name": "w"}, "spec": {"template": pod}}
    group = {"group": "apps", "version": "v1", "kind": kind}
    return validate(template, *rules, kind=group, operation=operation)


def only_warning(text: str) -> Result:
    return Result(Code.SUCCESS, (), "", [text])


# --- arguments ---------------------------------------------------------------------------------


def startup_error(*rules: Any) -> str:
    """Return the error at startup for these rules."""
    args = {"name": "placement", "args": {"rules": list(rules)}}
    read = msgspec.convert(
        {"profiles": [{"pluginConfig": [args], "plugins": {"enabled": [{"name": "placement"}]}}]},
        config.Configuration,
    )
    with pytest.raises(ConfigurationError) as caught:
        pipelines.build_profiles(read, KNOWN, source="h.yaml")
    return str(caught.value).removeprefix("h.yaml: profiles[0].pluginConfig[0].args.")


@pytest.mark.parametrize(("when", "expected"), config_cases.WHEN)
def test_invalid_when(when: Any, expected: str) -> None:
    assert f"rules[0].when{expected}" == startup_error(rule(when=when))


def test_duplicate_rule_name_is_rejected() -> None:
    other = rule(name="other")

    assert startup_error(SPACE, other, SPACE) == (
        'rules[2].name: "space" is also the name of rules[0]: use a unique name'
    )


@pytest.mark.parametrize("name", ["", "a b", "x" * 64], ids=["empty", "blank", "long"])
def test_invalid_rule_name(name: str) -> None:
    assert "is not a valid name: use a short one like space" in startup_error(rule(name=name))


@pytest.mark.parametrize(("fields", "expected"), config_cases.RULES)
def test_invalid_rule(fields: Any, expected: str) -> None:
    assert f"rules[1]{expected}" == startup_error(rule(name="first"), rule(**fields))


@pytest.mark.parametrize(("fields", "expected"), config_cases.SHAPES)
def test_malformed_rule(fields: Any, expected: str) -> None:
    assert startup_error(rule(**fields)).startswith(expected)


def test_default_rule_is_for_space_workloads() -> None:
    assert msgspec.convert({"rules": [SPACE]}, PlacementArgs) == PlacementArgs()


def test_no_rules() -> None:
    plugin = Placement(PlacementArgs(rules=()))

    assert plugin.match("object") == "false"
    assert not plugin.concerns(Pod.of(space()))


# --- matching ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "pod", "expected"),
    [
        pytest.param(
            {"label": "a", "exists": True},
            "object.spec.template",
            "object.?spec.?template.?metadata.?labels"
            ".optMap(entries, 'a' in entries && (true)).orValue(false)",
            id="a template, exists",
        ),
        pytest.param(
            {"annotation": "a", "equals": "it's", "namespaces": ["x", "y"]},
            "object",
            "object.?metadata.?annotations.optMap(entries, 'a' in entries && (entries['a'] in "
            "['it\\'s'] && request.namespace in ['x', 'y'])).orValue(false)",
            id="namespaces, a quote",
        ),
    ],
)
def test_match(when: Any, pod: str, expected: str) -> None:
    assert expected == place(rule(when=when)).match(pod)


def test_match_merges_rules_with_the_same_key() -> None:
    whens: list[Any] = [
        {"annotation": "type", "in": ["a", "space"]},
        {"annotation": "type", "exists": True, "namespaces": ["x"]},
        {"annotation": "type", "equals": "b", "namespaces": ["x"]},
        {"label": "c", "exists": True},
        {"label": "c", "equals": "d"},
        {"annotation": "e", "equals": ""},
    ]
    plugin = place(SPACE, *(rule(name=f"r{at}", when=when) for at, when in enumerate(whens)))

    assert plugin.match("object") == (
        "object.?metadata.?annotations.optMap(entries, 'type' in entries && "
        "(entries['type'] in ['space', 'a'] || request.namespace in ['x']) || "
        "'e' in entries && (entries['e'] in [''])).orValue(false) || "
        "object.?metadata.?labels.optMap(entries, 'c' in entries && (true)).orValue(false)"
    )


def test_match_of_many_keys_uses_lookup_tables() -> None:
    """API servers need quadratic time to compile one comparison per key."""
    whens: list[Any] = [{"annotation": f"k{at}", "equals": "v"} for at in range(19)]
    whens.append({"annotation": "k0", "equals": "w", "namespaces": ["x", "y"]})
    whens.append({"annotation": "k1", "exists": True, "namespaces": ["y"]})
    found = place(*(rule(name=f"r{at}", when=when) for at, when in enumerate(whens))).match(
        "object"
    )

    everywhere = ", ".join(f"'k{at}': ['v']" for at in range(19))
    test = (
        "exists(key, key in entries && key in tables[at] && "
        "(tables[at][key] == [] || entries[key] in tables[at][key]))"
    )
    assert found == (
        "object.?metadata.?annotations.optMap(entries, "
        f"[[{{{everywhere}}}, {{'k0': ['w']}}, {{'k1': []}}]].exists(tables, "
        "([0] + {'x': [1], 'y': [1, 2]}[?request.namespace].orValue([])).exists(at, "
        f"size(entries) < size(tables[at]) ? entries.{test} : tables[at].{test}))).orValue(false)"
    )


LIMIT = configurations.MAX_EXPRESSION_CHARACTERS


@pytest.mark.parametrize(
    ("rules", "keys", "namespaces", "longest"),
    [
        pytest.param(500, 1, 0, LIMIT / 4, id="500 rules for one key"),
        pytest.param(117, 1, 0, LIMIT / 4, id="117 rules"),
        pytest.param(38, 1, 50, LIMIT * 2 / 3, id="38 rules with 50 namespaces each"),
        pytest.param(1_000, 1_000, 0, LIMIT / 3, id="1,000 rules for different keys"),
        pytest.param(1_000, 1, 1, LIMIT * 2 / 3, id="1,000 rules for different namespaces"),
    ],
)
def test_match_conditions_stay_below_the_limit(
    rules: int, keys: int, namespaces: int, longest: float
) -> None:
    whens: list[Any] = [
        {"annotation": f"type-{at % keys}", "equals": f"kind-{at}"} for at in range(rules)
    ]
    for at, when in enumerate(whens if namespaces else ()):
        when["namespaces"] = [f"namespace-{at}-{each}" for each in range(namespaces)]
    plugin = place(*(rule(name=f"r{at}", when=when) for at, when in enumerate(whens)))

    found = configurations.expressions(profiles_of(plugin))
    assert max(map(len, found.values())) < longest


def test_rules_with_too_long_match_conditions_are_rejected() -> None:
    values = [f"{number:060}" for number in range(2_000)]
    rules = [rule(name=f"r{at}", when={"label": "a", "in": values[at::40]}) for at in range(40)]
    profile = {"pluginConfig": [{"name": "placement", "args": {"rules": rules}}]}
    with pytest.raises(ConfigurationError) as error:
        make_profiles(f"profiles: [{json.dumps(profile)}]")

    assert str(error.value).startswith(
        "test.yaml: profiles: 40 placement rules make the match condition of webhook "
    )
    assert str(error.value).endswith(
        " characters long, but API servers accept 100,000: use fewer rules, values and namespaces, "
        "or let rules share keys and lists of namespaces"
    )


@pytest.mark.parametrize(
    ("when", "annotations", "labels", "expected"),
    [
        pytest.param({"annotation": "a", "equals": "x"}, {"a": "x"}, {}, True, id="equals"),
        pytest.param({"annotation": "a", "equals": ""}, {"a": ""}, {}, True, id="empty"),
        pytest.param({"annotation": "a", "equals": ""}, {}, {}, False, id="empty is not absent"),
        pytest.param({"annotation": "a", "equals": "x"}, {}, {"a": "x"}, False, id="a label only"),
        pytest.param({"label": "a", "in": ["x", "y"]}, {}, {"a": "y"}, True, id="in"),
        pytest.param({"label": "a", "exists": True}, {}, {"a": ""}, True, id="exists"),
        pytest.param({"label": "a", "exists": True}, {}, {"b": ""}, False, id="does not exist"),
    ],
)
def test_concerns(when: Any, annotations: Any, labels: Any, expected: bool) -> None:
    plugin = place(rule(when=when))

    assert plugin.concerns(Pod.of(make_pod(annotations, labels=labels))) is expected


@pytest.mark.parametrize(
    ("own", "requested", "concerned", "placed"),
    [
        pytest.param("space", "space", True, True, id="matching"),
        pytest.param("", "space", True, True, id="matching, from the request"),
        pytest.param("default", "default", False, False, id="other"),
        pytest.param("", "default", True, False, id="other, from the request"),
    ],
)
def test_namespaces(own: str, requested: str, concerned: bool, placed: bool) -> None:
    limited = rule(when={"annotation": "type", "exists": True, "namespaces": ["space"]})
    pod = make_pod(SPACE_POD, namespace=own)

    assert place(limited).concerns(Pod.of(pod)) is concerned
    assert (mutate(pod, limited, namespace=requested).code is Code.SUCCESS) is placed


def test_plugin_attributes() -> None:
    assert (place(SPACE).gate, place(SPACE).may_block, tuple(place(SPACE).keys)) == ("", False, ())
    assert not place(SPACE).defers_to_release
    assert place(LATE).defers_to_release


# --- mutate ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param([SPACE], [EDGE_NODES], id="require"),
        pytest.param(
            [rule(require=[], prefer=[{"weight": 7, "require": [EDGE]}])],
            [PreferNodes(7, EDGE_NODES.requirements)],
            id="prefer",
        ),
        pytest.param(
            [rule(require=[], nodeSelector={"a": "1", "b": "2"})],
            [SelectNodes("a", "1"), SelectNodes("b", "2")],
            id="nodeSelector",
        ),
        pytest.param(
            [
                rule(
                    require=[],
                    tolerations=[
                        {"key": "e", "value": "x", "effect": "NoExecute", "tolerationSeconds": 0}
                    ],
                )
            ],
            [Tolerate("e", "Equal", "x", "NoExecute", 0)],
            id="a toleration with all fields",
        ),
        pytest.param(
            [rule(require=[], schedulerName="default-scheduler")],
            [SetSchedulerName("default-scheduler")],
            id="schedulerName",
        ),
        pytest.param(
            [SPACE, rule(name="b", nodeSelector={"a": "1"}), rule(name="c", schedulerName="x")],
            [EDGE_NODES, EDGE_NODES, SelectNodes("a", "1"), EDGE_NODES, SetSchedulerName("x")],
            id="several rules, in order",
        ),
    ],
)
def test_edits(rules: list[Any], expected: list[Edit]) -> None:
    assert Result(Code.SUCCESS, tuple(expected), "", []) == mutate(space(), *rules)


def owned(**replaced: Any) -> Any:
    pod = space()
    pod["metadata"]["ownerReferences"] = [DAEMON_OWNER | replaced]
    return pod


NAMED = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
NOT_NAMED = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}
EXPRESSIONS = {"matchExpressions": [{"key": "arch", "operator": "Exists"}]}


def pinned(terms: list[Any], **owner: Any) -> Any:
    pod = owned(**({"apiVersion": "apps.kruise.io/v1alpha1"} | owner))
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod["spec"]["affinity"] = {"nodeAffinity": required}
    return pod


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pinned([NAMED, EXPRESSIONS]), id="one alternative of two"),
        pytest.param(pinned([NOT_NAMED]), id="any other node"),
        pytest.param(
            pinned([NAMED], apiVersion="kubevirt.io/v1", kind="VirtualMachineInstance"), id="VM"
        ),
    ],
)
def test_pod_that_may_run_on_several_nodes_is_placed(pod: Any) -> None:
    assert mutate(pod).edits == (EDGE_NODES,)


BOUND = "holdfast: not placed: spec.nodeName is already set: use a nodeSelector instead"
PINNED = "holdfast: not placed: its node affinity already names its node"
DAEMON = (
    "holdfast: not placed: the DaemonSet controller assigns its pods to nodes: set node affinity "
    "in its template instead"
)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(space(nodeName="n1"), BOUND, id="bound"),
        pytest.param(owned(), DAEMON, id="of a DaemonSet"),
        pytest.param(pinned([NAMED]), PINNED, id="of a DaemonSet of another group"),
        pytest.param(pinned([NAMED, {**NAMED, **EXPRESSIONS}]), PINNED, id="two alternatives"),
    ],
)
def test_bound_or_pinned_pod_is_not_placed(pod: Any, expected: str) -> None:
    rejecting = rule(onConflict="reject")

    assert only_warning(expected) == mutate(pod)
    assert only_warning(expected) == mutate(pod | {}, rejecting)


@pytest.mark.parametrize(
    "replaced",
    [
        {"controller": False},
        {"controller": None},
        {"kind": "ReplicaSet"},
        {"apiVersion": "x.io/v1"},
    ],
    ids=["not the controller", "controller unset", "another kind", "another group"],
)
def test_owners_other_than_a_daemon_set_are_ignored(replaced: Any) -> None:
    assert mutate(owned(**replaced)).edits == (EDGE_NODES,)


# --- contradictions ----------------------------------------------------------------------------

IN_EDGE = f'"{ROLE} In [edge]"'


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(
            {"nodeSelector": {ROLE: "core"}},
            f'rule space: {IN_EDGE} contradicts nodeSelector "{ROLE} In [core]"',
            id="nodeSelector",
        ),
        pytest.param(
            requiring(role("core")),
            f'rule space: {IN_EDGE} contradicts node affinity "{ROLE} In [core]"',
            id="a term",
        ),
        pytest.param(
            affine(
                {},
                {"matchExpressions": [role("core")]},
                {"matchExpressions": [role(operator="DoesNotExist")]},
            ),
            f'rule space: {IN_EDGE} contradicts node affinity "{ROLE} In [core]"',
            id="every term, ignoring an empty one",
        ),
        pytest.param(
            {"nodeSelector": {ROLE: "a\n\u202e" + "b" * 200}},
            f'rule space: {IN_EDGE} contradicts nodeSelector "{ROLE} In [a\\n\\u202e'
            + "b" * 28
            + '…" '
            "(227 characters)",
            id="hostile value is escaped",
        ),
    ],
)
def test_contradiction(spec: Any, expected: str) -> None:
    pod = space(**spec)
    warned = Result(Code.SUCCESS, (EDGE_NODES,), "", [f"holdfast: {expected}"])
    rejected = Result(Code.REJECT, (), expected)

    assert warned == mutate(pod)
    assert rejected == mutate(pod, rule(onConflict="reject"))
    assert only_warning(f"holdfast: {expected}") == validate_template(pod)
    assert rejected == validate_template(pod, rule(onConflict="reject"))


def test_two_requirements_contradict_only_together() -> None:
    bounded = {"key": "size", "operator": "In", "values": ["2", "9"]}
    spec = requiring({"key": "size", "operator": "Gt", "values": ["5"]})
    below = {"key": "size", "operator": "Lt", "values": ["9"]}

    (warning,) = mutate(space(**spec), rule(require=[bounded, below])).warnings

    assert warning == (
        'holdfast: rule space: "size In [2, 9]" and "size Lt [9]" contradict node affinity "size '
        'Gt [5]"'
    )


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="requires nothing"),
        pytest.param({"nodeSelector": {ROLE: "edge"}}, id="requires the same"),
        pytest.param(
            affine({"matchExpressions": [role("core")]}, {"matchExpressions": [role("edge")]}),
            id="one satisfiable term",
        ),
        pytest.param(affine({}), id="already unsatisfiable: empty term"),
        pytest.param(
            requiring(role("a"), role("b")), id="already unsatisfiable: contradicts itself"
        ),
    ],
)
def test_no_contradiction(spec: Any) -> None:
    assert Result(Code.SUCCESS, (EDGE_NODES,), "", []) == mutate(
        space(**spec), rule(onConflict="reject")
    )


def test_two_rules_that_contradict_each_other() -> None:
    core = rule(name="core", require=[role("core")])
    text = f'rule core: "{ROLE} In [core]" contradicts rule space {IN_EDGE}'

    assert list(mutate(space(), SPACE, core).warnings) == [f"holdfast: {text}"]
    assert mutate(space(), SPACE, core | {"onConflict": "reject"}).reason == text


def test_only_the_first_conflicting_label_is_reported() -> None:
    spec = {"nodeSelector": {"zone": "a", ROLE: "core"}}
    zoned = rule(require=[EDGE], nodeSelector={"zone": "b"})

    assert list(mutate(space(**spec), zoned).warnings) == [
        f'holdfast: rule space: {IN_EDGE} contradicts nodeSelector "{ROLE} In [core]"'
    ]


@pytest.mark.timeout(60)
def test_hostile_pod_is_reviewed_quickly() -> None:
    """With pairwise comparisons, each pod would take minutes."""
    labels = {str(number): "x" for number in range(20_000)}
    any_term = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    same = [role(f"core-{number}") for number in range(20_000)]

    assert mutate(space(nodeSelector=labels, **affine(*[any_term] * 300))).warnings == []
    assert len(mutate(space(**affine({"matchExpressions": same}))).warnings) == 0
    assert len(mutate(space(**requiring(*[role("core")] * 20_000))).warnings) == 1


def labelled(count: int) -> list[Any]:
    """Return rules for the same pods, each of which requires a different label."""
    exists = [{"key": f"l{number}", "operator": "Exists"} for number in range(count)]
    return [rule(name=f"r{number}", require=[one]) for number, one in enumerate(exists)]


def alternatives(count: int) -> Any:
    return affine(*({"matchExpressions": [role(f"x{number}")]} for number in range(count)))


@pytest.mark.parametrize("last", [[], [rule(name="late")]], ids=["no conflict", "a conflict"])
def test_work_grows_linearly_with_the_rules(last: list[Any]) -> None:
    found = read_review(space(**alternatives(100)))

    def work(count: int) -> int:
        plugin = place(*labelled(count), *last)
        with counted() as steps:
            result = plugin.mutate(found.pod, Context(found, "*", CREATED_MS))
            assert len(result.warnings) == len(last)
            plugin.validate(found.pod, Context(found, "*", CREATED_MS))
        return steps[0]

    assert work(32) <= 4 * work(8)


def test_too_many_added_requirements_are_rejected() -> None:
    reason = (
        "the placement rules add 10,010 requirements to the 1,001 terms of "
        "spec.affinity.nodeAffinity, more than the limit of 10,000: remove terms"
    )
    rules = labelled(10)
    late = [one | {"resolveAtRelease": True} for one in rules]
    pod = space(**alternatives(1_001))

    assert Result(Code.REJECT, (), reason) == mutate(pod, *rules)
    assert Result(Code.REJECT, (), reason) == mutate(pod, *late, held=True)
    assert Result(Code.REJECT, (), reason) == validate_template(pod, *rules)
    assert Result(Code.REJECT, (), reason) == release(pod, *late)
    for allowed in (space(**alternatives(1_000)), space(**affine(*[{}] * 2_000))):
        assert mutate(allowed, *rules).code is Code.SUCCESS
        assert release(allowed, *late).code is Code.SUCCESS


@pytest.mark.parametrize(
    ("own", "warned"),
    [
        pytest.param({"tolerationSeconds": 6}, "6 s", id="shorter"),
        pytest.param({"key": "", "tolerationSeconds": 6}, "6 s", id="all taints"),
        pytest.param({"tolerationSeconds": 300}, "", id="the default, which is replaced"),
        pytest.param({"tolerationSeconds": 7200}, "", id="longer"),
        pytest.param({}, "", id="without limit"),
        pytest.param({"key": "other", "tolerationSeconds": 6}, "", id="another taint"),
        pytest.param({"operator": "Equal", "value": "x", "tolerationSeconds": 6}, "", id="a value"),
    ],
)
def test_pod_with_a_shorter_toleration_gets_a_warning(own: dict[str, Any], warned: str) -> None:
    taint = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    rules = [rule(require=[], tolerations=[{**taint, "tolerationSeconds": 3600}])]
    pod = space(tolerations=[{**taint, **own}])
    warning = (
        "holdfast: rule space: the pod's own toleration of "
        f'"node.kubernetes.io/unreachable" lasts {warned} and comes first: it counts instead of '
        "the rule's (3600 s)"
    )
    expected = [warning] if warned else []
    assert expected == list(mutate(pod, *rules).warnings)
    assert expected == list(mutate(stored(pod, *rules), *rules).warnings)


def test_only_the_first_rejecting_rule_is_reported() -> None:
    spec = {"nodeSelector": {ROLE: "core", "zone": "a"}}
    first = rule(name="first", onConflict="reject")
    second = rule(name="second", require=[], nodeSelector={"zone": "a"}, onConflict="reject")

    assert mutate(space(**spec), first, second).reason == (
        f'rule first: {IN_EDGE} contradicts nodeSelector "{ROLE} In [core]"'
    )


def test_warnings_are_short() -> None:
    longest = rule(name="n" * 20, require=[role("e" * 60)])
    (warning,) = mutate(space(nodeSelector={ROLE: "c" * 60}), longest).warnings

    assert len(mutate(space(nodeSelector={ROLE: "core"})).warnings[0]) <= 120
    assert len(warning) <= review.WARNING_LENGTH


# --- held pods ---------------------------------------------------------------------------------

LATE = rule(name="late", resolveAtRelease=True, nodeSelector={"zone": "a"})
LATE_EDITS = (EDGE_NODES, SelectNodes("zone", "a"))


def gated(**spec: Any) -> Any:
    return space(schedulingGates=[{"name": GATE}], **spec)


@pytest.mark.parametrize(
    ("pod", "held", "expected"),
    [
        pytest.param(space(), True, (EDGE_NODES,), id="held by a plugin"),
        pytest.param(gated(), False, (EDGE_NODES,), id="has a Holdfast gate"),
        pytest.param(
            space(schedulingGates=[{"name": "a.io/b"}]),
            False,
            (EDGE_NODES, *LATE_EDITS),
            id="has a third-party gate",
        ),
        pytest.param(space(), False, (EDGE_NODES, *LATE_EDITS), id="not held"),
    ],
)
def test_late_rules_are_deferred_while_the_pod_is_held(
    pod: Any, held: bool, expected: tuple[Edit, ...]
) -> None:
    assert Result(Code.SUCCESS, expected, "", []) == mutate(pod, SPACE, LATE, held=held)


def test_contradiction_of_a_deferred_rule_is_reported_at_creation() -> None:
    pod = gated(nodeSelector={"zone": "b"})
    text = 'rule late: "zone In [a]" contradicts nodeSelector "zone In [b]"'

    assert Result(Code.SUCCESS, (), "", [f"holdfast: {text}"]) == mutate(pod, LATE)
    assert Result(Code.REJECT, (), text) == mutate(pod, LATE | {"onConflict": "reject"})
    assert Result(Code.SUCCESS, LATE_EDITS, "", [text]) == release(pod, LATE)


@pytest.mark.parametrize(
    ("pod", "rules", "expected"),
    [
        pytest.param(gated(), [SPACE, LATE], LATE_EDITS, id="only the deferred rule"),
        pytest.param(gated(), [SPACE], None, id="no deferred rule"),
        pytest.param(
            gated(annotations={"type": "ground"}),
            [LATE],
            None,
            id="rule no longer matches",
        ),
        pytest.param(
            gated(),
            [LATE | {"when": {"annotation": "type", "exists": True, "namespaces": ["other"]}}],
            None,
            id="another namespace",
        ),
        pytest.param(gated(nodeName="n1"), [LATE], None, id="bound"),
    ],
)
def test_at_release(pod: Any, rules: list[Any], expected: tuple[Edit, ...] | None) -> None:
    assert place(*rules).concerns_at_release(Pod.of(pod)) or expected is None
    assert release(pod, *rules) == (
        Result(Code.SKIP) if expected is None else Result(edits=expected, warnings=[])
    )


# --- validate ----------------------------------------------------------------------------------


def missing(what: str = IN_EDGE) -> Result:
    return Result(
        Code.REJECT,
        (),
        f"rule space: the pod lacks the node requirement {what}: another mutating webhook "
        f"removed it, or made the rule match after Holdfast ran: {messages.CALL_LAST}",
    )


@pytest.mark.parametrize(
    ("pod", "rules", "expected"),
    [
        pytest.param(make_pod(), [SPACE], Result(Code.SKIP), id="no matching rule"),
        pytest.param(space(**requiring(EDGE)), [SPACE], Result(), id="required"),
        pytest.param(space(), [SPACE], missing(), id="nothing required"),
        pytest.param(
            space(**affine({}, {"matchExpressions": [EDGE]})), [SPACE], Result(), id="empty term"
        ),
        pytest.param(space(**affine({})), [SPACE], Result(), id="only an empty term"),
        pytest.param(
            space(**affine({"matchExpressions": [EDGE]}, {"matchExpressions": [role("core")]})),
            [SPACE],
            missing(),
            id="one term without it",
        ),
        pytest.param(space(nodeSelector={ROLE: "edge"}), [SPACE], Result(), id="in nodeSelector"),
        pytest.param(
            space(),
            [rule(nodeSelector={"zone": "a"})],
            missing(f'{IN_EDGE} and "zone In [a]"'),
            id="both",
        ),
        pytest.param(owned(), [SPACE], Result(Code.SKIP), id="of a DaemonSet"),
        pytest.param(gated(), [rule(resolveAtRelease=True)], Result(), id="deferred to release"),
        pytest.param(space(), [rule(resolveAtRelease=True)], missing(), id="not held"),
        pytest.param(
            space(), [rule(require=[], schedulerName="x")], Result(), id="schedulerName is a hint"
        ),
        pytest.param(
            space(nodeSelector={ROLE: "core"}, **requiring(EDGE)),
            [rule(onConflict="reject")],
            Result(),
            id="contradictions are left to mutate",
        ),
    ],
)
def test_validate(pod: Any, rules: list[Any], expected: Result) -> None:
    assert expected == validate(pod, *rules)


def stored(pod: Any, *rules: Any) -> Any:
    profile = {"plugins": ({"disabled": [{"name": "delay"}]}), "pluginConfig": []}
    args = {"name": "placement", "args": {"rules": list(rules)}}
    text = json.dumps([profile | {"pluginConfig": [args]}])
    edits = make_pipeline(f"profiles: {text}", known=KNOWN).mutate(read_review(pod), now_ms=0).edits
    return apply_patch(pod, patch(Pod.of(pod), edits))


def record(pod: Any) -> list[str]:
    return [one.partition("@")[0] for one in pod["metadata"]["annotations"][PLACED].split(",")]


def test_rules_that_placed_a_pod_are_recorded() -> None:
    made = stored(gated(), SPACE, LATE)
    stripped = {**made, "spec": space()["spec"]}

    assert record(made) == ["space"]
    assert record(
        apply_patch(made, patch(Pod.of(made), place(LATE).at_release(Pod.of(made)).edits))
    ) == ["space", "late"]
    assert validate(made, SPACE, LATE) == Result()
    assert validate(stripped, SPACE) == missing()


def test_forged_record_is_discarded() -> None:
    forged = {PLACED: "space@00000000,other@00000000"}

    assert record(stored(space(SPACE_POD | forged), SPACE)) == ["space"]
    assert (
        PLACED not in stored(gated(annotations=SPACE_POD | forged), LATE)["metadata"]["annotations"]
    )


def test_pod_placed_by_another_version_of_a_rule_is_admitted() -> None:
    """During a rollout, replicas with old and new rules serve at the same time."""
    before, after = SPACE, rule(require=[role("edge", "far-edge")])
    changing = "holdfast: rule space is being changed: the pod was placed by another version of it"

    assert validate(stored(space(), before), after) == Result(warnings=(changing,))
    assert validate(stored(space(), after), before) == Result(warnings=(changing,))
    assert validate(stored(space(), rule(name="other")), after) == missing(
        f'"{ROLE} In [edge, far-edge]"'
    )


def test_updates_are_skipped() -> None:
    assert Result(Code.SKIP) == validate(space(), operation="UPDATE", old=space())


@pytest.mark.parametrize(
    ("pod", "kind", "expected"),
    [
        pytest.param({"metadata": {}}, "Deployment", Result(Code.SKIP), id="no matching rule"),
        pytest.param(
            {"metadata": {"annotations": SPACE_POD}},
            "DaemonSet",
            only_warning(
                "holdfast: the pods will not be placed: the DaemonSet controller assigns its pods "
                "to nodes: set node affinity in its template instead"
            ),
            id="of a DaemonSet",
        ),
        pytest.param(
            {"metadata": {"annotations": SPACE_POD}, "spec": {"nodeName": "n1"}},
            "Deployment",
            only_warning(
                "holdfast: the pods will not be placed: spec.nodeName is already set: use a "
                "nodeSelector instead"
            ),
            id="bound",
        ),
    ],
)
def test_validate_template(pod: Any, kind: str, expected: Result) -> None:
    assert expected == validate_template(pod, kind=kind)
    assert expected == validate_template(pod, kind=kind, operation="UPDATE")


# --- generated rules, pods and nodes -----------------------------------------------------------

some_values = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3)
written_requirements = st.one_of(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(KEYS),
            "operator": st.sampled_from(["In", "NotIn"]),
            "values": some_values,
        }
    ),
    st.fixed_dictionaries(
        {"key": st.sampled_from(KEYS), "operator": st.sampled_from(["Exists", "DoesNotExist"])}
    ),
    st.fixed_dictionaries(
        {
            "key": st.sampled_from(KEYS),
            "operator": st.sampled_from(["Gt", "Lt"]),
            "values": st.sampled_from(["4", "5", "11"]).map(lambda value: [value]),
        }
    ),
)
rule_parts = st.fixed_dictionaries(
    {"require": st.lists(written_requirements, min_size=1, max_size=3)},
    optional={
        "nodeSelector": st.dictionaries(st.sampled_from(KEYS), st.sampled_from(WORDS), max_size=1),
        "prefer": st.lists(
            st.fixed_dictionaries(
                {
                    "weight": st.integers(1, 100),
                    "require": st.lists(written_requirements, min_size=1, max_size=1),
                }
            ),
            max_size=1,
        ),
    },
)
rule_lists = st.lists(rule_parts, min_size=1, max_size=2)


def named(parts: list[Any]) -> list[Any]:
    return [rule(**part, name=f"r{index}") for index, part in enumerate(parts)]


def allowed_by(rules: list[Any], node: Any) -> bool:
    labels = node["metadata"]["labels"]
    return all(
        all(meets(labels, one) for one in each["require"])
        and all(labels.get(key) == value for key, value in each.get("nodeSelector", {}).items())
        for each in rules
    )


@given(generated_pods, rule_lists, node_lists)
def test_placed_pod_fits_exactly_the_nodes_that_pod_and_rules_allow(
    pod: Any, parts: list[Any], nodes: list[Any]
) -> None:
    rules = named(parts)
    pod["metadata"]["annotations"] = SPACE_POD
    try:
        result = mutate(pod, *rules)
    except ConfigurationError:
        assert not any(allowed_by(rules, node) for node in nodes)
        return
    patched = apply_patch(pod, patch(Pod.of(pod), result.edits))

    admitted = [admits(patched, node) for node in nodes]
    if placement._is_pinned(Pod.of(pod)):
        assert patched == pod
        return
    assert [admits(pod, node) and allowed_by(rules, node) for node in nodes] == admitted
    assert not (result.warnings and any(admitted))
    assert patch(Pod.of(patched), mutate(patched, *rules).edits) == []
    assert is_tightening(pod, patched)
    assert validate(patched, *rules).code is Code.SUCCESS


@given(generated_pods, st.lists(rule_parts, min_size=1, max_size=6))
def test_warning_names_the_first_rule_that_leaves_no_alternative(
    pod: Any, parts: list[Any]
) -> None:
    pod["metadata"]["annotations"] = SPACE_POD
    rules = named(parts)
    try:
        reported = [list(mutate(pod, *rules[: count + 1]).warnings) for count in range(len(rules))]
    except ConfigurationError:
        assume(False)
    if placement._is_pinned(Pod.of(pod)):
        return
    first = next((count for count, warnings in enumerate(reported) if warnings), len(rules))

    assert reported[first:] == reported[first : first + 1] * (len(rules) - first)
    for (warning,) in reported[first:]:
        assert warning.startswith(f"holdfast: rule r{first}: ")


@given(affinities, rule_parts, node_lists)
def test_release_and_creation_write_the_same_edits(
    affinity: Any, part: Any, nodes: list[Any]
) -> None:
    pod = gated(affinity=affinity)
    early, late = rule(**part), rule(**part, resolveAtRelease=True)
    try:
        at_creation = mutate(pod, early).edits
    except ConfigurationError:
        assume(False)
    at_release = release(pod, late).edits

    assert list(at_creation) == list(at_release)
    assert mutate(pod, late).edits == ()
