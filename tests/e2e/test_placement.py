"""Placement on a real cluster: kube-scheduler puts pods where the rules say, and nowhere else."""

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlplane.launcher import ControlPlane
from demo.command import Command
from holdfast.webhook.framework.node_affinity import impossible
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.model.edits import Requirement
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.placement import Placement, PlacementArgs
from tests.e2e.namespace import Namespace, Object, gates, pod
from tests.support.matching import REQUIRED, admits, meets

pytestmark = pytest.mark.xdist_group("placement")

ROLE = "kubernetes.io/role"
EDGE = {"key": ROLE, "operator": "In", "values": ["edge"]}
SPACE: Object = {
    "name": "space",
    "when": {"annotation": "type", "equals": "space"},
    "require": [EDGE],
}
REPLICAS = 12
SEED = 4091
CASES = 20

LABELS: Mapping[int, Mapping[str, str]] = {
    1: {ROLE: "edge", "zone": "a", "size": "4"},
    2: {ROLE: "core", "zone": "a", "size": "12"},
    3: {ROLE: "edge", "zone": "b"},
    4: {ROLE: "core", "zone": "b", "size": "05"},
    5: {"size": "big"},
    6: {"zone": "c"},
}
EDGE_NODES = {"node-1", "node-3"}

_numbers = itertools.count(1)

Serve = Callable[..., Namespace]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A cluster whose kube-scheduler serves a second profile, spacecloud."""
    with ControlPlane(
        nodes=len(LABELS),
        node_labels=lambda index: LABELS[index],
        scheduler_profiles=("default-scheduler", "spacecloud"),
        audit=True,
    ) as cluster:
        yield cluster


@pytest.fixture
def serve(tmp_path: Path, log: Path) -> Iterator[Serve]:
    """Run `holdfast dev` with the test's profiles, and return a namespace in its cluster."""
    with ExitStack() as stack:

        def start(plane: ControlPlane, *profiles: Object) -> Namespace:
            config = tmp_path / "holdfast.yaml"
            head = {"apiVersion": "holdfast.dev/v1beta1", "kind": "HoldfastConfiguration"}
            config.write_text(json.dumps({**head, "profiles": list(profiles)}))  # is YAML too
            arguments = ("--kubeconfig", str(plane.kubeconfig), "--config", str(config))
            holdfast = stack.enter_context(Command("dev", *arguments, log=log))
            return namespace(plane, holdfast)

        yield start


def namespace(plane: ControlPlane, holdfast: Command | None = None) -> Namespace:
    return Namespace.create_new(plane, f"placement-{next(_numbers)}", holdfast)


def placing(*rules: Object, scheduler: str = "*") -> Object:
    return {
        "schedulerName": scheduler,
        "plugins": {
            "disabled": [{"name": "*"}],
            "enabled": [{"name": "delay"}, {"name": "placement"}],
        },
        "pluginConfig": [{"name": "placement", "args": {"rules": list(rules)}}],
    }


def deployment(kind: str = "space", **spec: Any) -> Object:
    labels = {"app": "orbit"}
    container = {"name": "main", "image": "busybox"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "orbit"},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {"type": kind}},
                "spec": {"schedulerName": "spacecloud", "containers": [container], **spec},
            },
        },
    }


def bound_nodes(ns: Namespace) -> set[str]:
    """Wait until the Deployment's pods are bound, and return their nodes."""

    def bound() -> list[str]:
        nodes = [manifest["spec"].get("nodeName", "") for manifest in ns.all("pods", "app=orbit")]
        return nodes if len(nodes) == REPLICAS and all(nodes) else []

    return set(ns.eventually(bound))


def schedulers(ns: Namespace) -> set[str]:
    return {manifest["spec"]["schedulerName"] for manifest in ns.all("pods", "app=orbit")}


def required_terms(manifest: Object) -> list[Any]:
    affinity = manifest["spec"].get("affinity", {}).get("nodeAffinity", {})
    return list(affinity.get(REQUIRED, {}).get("nodeSelectorTerms", ()))


# --- the space workload ------------------------------------------------------------------------


def test_space_pods_run_at_the_edge_with_their_scheduler_profile(
    plane: ControlPlane, serve: Serve
) -> None:
    ns = serve(plane, placing(SPACE))
    ns.apply(deployment())

    assert bound_nodes(ns) == EDGE_NODES
    assert schedulers(ns) == {"spacecloud"}

    other_ns = namespace(plane, ns.holdfast)
    other_ns.apply(deployment(kind="ground"))
    assert bound_nodes(other_ns) - EDGE_NODES


def test_space_pods_run_at_the_edge_with_the_default_scheduler(
    plane: ControlPlane, serve: Serve
) -> None:
    rule = {**SPACE, "schedulerName": "default-scheduler"}
    ns = serve(plane, placing(rule, scheduler="spacecloud"))
    ns.apply(deployment())

    assert bound_nodes(ns) == EDGE_NODES
    assert schedulers(ns) == {"default-scheduler"}
    profiles = {
        manifest["metadata"]["annotations"]["holdfast.dev/profile"] for manifest in ns.all("pods")
    }
    assert profiles == {"spacecloud"}


def test_rule_replaces_the_default_toleration(plane: ControlPlane, serve: Serve) -> None:
    taint = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    rule_toleration = {**taint, "tolerationSeconds": 3600}
    ns = serve(plane, placing({**SPACE, "tolerations": [rule_toleration]}))
    (stored,) = ns.apply(pod("far", {"type": "space"}))
    tolerations = [
        toleration
        for toleration in stored["spec"]["tolerations"]
        if toleration["key"] == taint["key"]
    ]
    assert tolerations == [rule_toleration]


# --- contradictions ----------------------------------------------------------------------------


def test_contradictions_are_reported_at_apply(plane: ControlPlane, serve: Serve) -> None:
    strict_rule = {
        **SPACE,
        "name": "strict",
        "when": {"label": "tier", "in": ["space"]},
        "onConflict": "reject",
    }
    ns = serve(plane, placing(SPACE, strict_rule))
    spec: Object = {"nodeSelector": {ROLE: "core"}}
    message = f'rule space: "{ROLE} In [edge]" contradicts nodeSelector "{ROLE} In [core]"'

    assert f"Warning: holdfast: {message}" in ns.warnings(pod("odd", {"type": "space"}, **spec))
    assert f"Warning: holdfast: {message}" in ns.warnings(deployment(**spec))
    manifest = pod("refused", **spec)
    manifest["metadata"]["labels"] = {"tier": "space"}
    assert message.replace("space", "strict", 1) in ns.refusal(manifest)

    stored = ns.get("pod", "odd")
    assert stored["spec"]["nodeSelector"] == {ROLE: "core"}
    assert required_terms(stored) == [{"matchExpressions": [EDGE]}]


def test_updates_of_other_fields_are_not_reviewed(plane: ControlPlane, serve: Serve) -> None:
    ns = serve(plane, placing(SPACE))
    ns.apply(deployment(), pod("space", {"type": "space"}), pod("ground"))
    bound_nodes(ns)
    before = ns.reviews()
    ns.kubectl("scale", "deployment", "orbit", f"--replicas={REPLICAS - 1}")
    ns.kubectl("annotate", "deployment", "orbit", "type=space")
    ns.kubectl("label", "pod", "space", "other=label")
    ns.kubectl("annotate", "pod", "ground", "type=space")

    assert ns.reviews() == before


def test_placement_does_not_apply_to_daemonset_pods(plane: ControlPlane, serve: Serve) -> None:
    ns = serve(plane, placing(SPACE))
    daemon_set = deployment()
    daemon_set["kind"] = "DaemonSet"
    del daemon_set["spec"]["replicas"]
    del daemon_set["spec"]["template"]["spec"]["schedulerName"]

    assert "holdfast: the pods will not be placed: the DaemonSet controller" in ns.warnings(
        daemon_set
    )

    def everywhere() -> bool:
        nodes = {manifest["spec"].get("nodeName") for manifest in ns.all("pods", "app=orbit")}
        return nodes == {f"node-{index}" for index in LABELS}

    ns.eventually(everywhere)


# --- held pods ---------------------------------------------------------------------------------


def test_rule_resolved_at_release_is_applied_with_the_release(
    plane: ControlPlane, serve: Serve
) -> None:
    rule = {**SPACE, "resolveAtRelease": True, "nodeSelector": {"zone": "b"}}
    ns = serve(plane, placing(rule))
    zone_exists = {"key": "zone", "operator": "Exists"}
    affinity = {
        "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [zone_exists]}]}}
    }
    (held_pod,) = ns.apply(pod("late", {"type": "space", "delay": "3"}, affinity=affinity))
    (unheld_pod,) = ns.apply(pod("now", {"type": "space"}, affinity=affinity))

    assert gates(held_pod) == ["holdfast.dev/delay"]
    assert required_terms(held_pod) == [{"matchExpressions": [zone_exists]}]
    assert "nodeSelector" not in held_pod["spec"]
    assert required_terms(unheld_pod) == [{"matchExpressions": [zone_exists, EDGE]}]

    ns.eventually(lambda: all(stored["spec"].get("nodeName") for stored in ns.all("pods")))
    for name in ("late", "now"):
        bound = ns.get("pod", name)
        assert bound["spec"]["nodeName"] == "node-3"
        assert required_terms(bound) == [{"matchExpressions": [zone_exists, EDGE]}]
        assert bound["spec"]["nodeSelector"] == {"zone": "b"}
    labels = 'extension_point="release",plugin="placement",profile="*",status="Success"} 1.0'
    series = f"holdfast_plugin_execution_duration_seconds_count{{{labels}"
    assert [line for line in ns.controller_metrics() if line == series]


# --- generated pods and rules, by the real scheduler -------------------------------------------


def requirement(source: random.Random) -> Object:
    key = source.choice([ROLE, "zone", "size"])
    operator = source.choice(["In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
    expression: Object = {"key": key, "operator": operator}
    if operator in {"In", "NotIn"}:
        expression["values"] = source.sample(["edge", "core", "a", "b", "c", "4", "05"], 4)
    elif operator in {"Gt", "Lt"}:
        expression |= {"key": "size", "values": [source.choice(["3", "4", "5", "11"])]}
    return expression


def possible_requirements(source: random.Random) -> list[Object]:
    while True:
        expressions = [requirement(source) for _ in range(source.randint(1, 2))]
        requirements = [
            Requirement(
                expression["key"], expression["operator"], tuple(expression.get("values", ()))
            )
            for expression in expressions
        ]
        if not impossible(requirements):
            return expressions


def term(source: random.Random) -> Object:
    selector_term: Object = {}
    if source.random() < 0.8:
        selector_term["matchExpressions"] = [
            requirement(source) for _ in range(source.randint(0, 2))
        ]
    if source.random() < 0.2:
        name = source.choice(["node-1", "node-4"])
        operator = source.choice(["In", "NotIn"])
        selector_term["matchFields"] = [
            {"key": "metadata.name", "operator": operator, "values": [name]}
        ]
    return selector_term


def generated(source: random.Random, case: int) -> Object:
    manifest = pod(f"case-{case}", {"rule": f"r{case}"})
    manifest["metadata"]["labels"] = {"case": str(case)}
    if source.random() < 0.2:
        manifest["spec"]["nodeSelector"] = {"zone": source.choice("ab")}
    if source.random() < 0.7:
        terms = [term(source) for _ in range(source.randint(1, 3))]
        manifest["spec"]["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    return manifest


def copies(manifest: Object, case: int) -> list[Object]:
    """Make one copy per node, with anti-affinity, so that they use every permitted node."""
    anti_affinity = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"case": str(case)}},
    }
    affinity = {
        **manifest["spec"].get("affinity", {}),
        "podAntiAffinity": {REQUIRED: [anti_affinity]},
    }
    spec = {**manifest["spec"], "affinity": affinity}
    name = manifest["metadata"]["name"]
    return [
        {**manifest, "metadata": {**manifest["metadata"], "name": f"{name}-{copy}"}, "spec": spec}
        for copy in range(len(LABELS))
    ]


def is_bound_or_unschedulable(manifest: Object) -> bool:
    """Return whether the scheduler has bound a pod, or found no node for it."""
    conditions = manifest["status"].get("conditions", ())
    return bool(manifest["spec"].get("nodeName")) or any(
        condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable"
        for condition in conditions
    )


def test_generated_pods_run_where_pod_and_rule_allow(plane: ControlPlane, serve: Serve) -> None:
    source = random.Random(SEED)
    requires = [possible_requirements(source) for _ in range(CASES)]
    manifests = [generated(source, case) for case in range(CASES)]
    rules = [
        {
            "name": f"r{case}",
            "when": {"annotation": "rule", "equals": f"r{case}"},
            "require": required,
        }
        for case, required in enumerate(requires)
    ]
    ns = serve(plane, placing(*rules))
    nodes = ns.all("nodes")
    ns.create_pods(
        [copy for case, manifest in enumerate(manifests) for copy in copies(manifest, case)]
    )

    def settled() -> list[Object]:
        current = ns.all("pods", "case")
        return current if all(map(is_bound_or_unschedulable, current)) else []

    pods = ns.eventually(settled)
    assert len(pods) == CASES * len(LABELS)
    outcomes = set()
    for case, manifest in enumerate(manifests):
        expected = {
            node["metadata"]["name"]
            for node in nodes
            if admits(manifest, node)
            and all(meets(node["metadata"]["labels"], expression) for expression in requires[case])
        }
        used_nodes = {
            stored["spec"].get("nodeName")
            for stored in pods
            if stored["metadata"]["labels"]["case"] == str(case)
        } - {None}
        assert used_nodes == expected, (SEED, case, manifest, requires[case])
        outcomes.add(len(expected))
    assert len(outcomes) >= 4, "the cases are too similar to be meaningful"


# --- match conditions --------------------------------------------------------------------------

TESTS: list[Object] = [{"equals": "x"}, {"in": ["x", "it's"]}, {"exists": True}]
MARKS = ["kind", "a.b/c", "type"]
PAIRS = 60
MANY = 500


def whens(namespaces: list[str]) -> list[Object]:
    """Make the rules' `when`: annotations and labels, every operator, and some namespaces."""
    return [
        {"annotation": "kind", **TESTS[0]},
        {"label": "kind", "in": ["x", "z"]},
        {"annotation": "a.b/c", **TESTS[2]},
        {"label": "a.b/c", **TESTS[0], "namespaces": namespaces},
        {"annotation": "type", **TESTS[1], "namespaces": ["elsewhere"]},
        {"annotation": "type", "equals": "y", "namespaces": namespaces},
        *({"annotation": "type", "equals": f"kind-{number}"} for number in range(MANY)),
    ]


def marked(source: random.Random) -> Object:
    """Make the metadata and spec of a pod, or of a template."""
    manifest = pod("x")
    metadata: Object = {"labels": {"app": "x"}}
    for field, values in (("annotations", ["x", "it's", "y"]), ("labels", ["x", "y"])):
        if source.random() < 0.6:
            keys = source.sample(MARKS, source.randint(0, 2))
            metadata[field] = metadata.get(field, {}) | {key: source.choice(values) for key in keys}
    if source.random() < 0.2:
        metadata.setdefault("annotations", {})["delay"] = source.choice(["0", "5"])
    if source.random() < 0.3:
        manifest["spec"]["nodeSelector"] = {"zone": source.choice("ab")}
    return {"metadata": metadata, "spec": manifest["spec"]}


def deployed(template: Object) -> Object:
    manifest = deployment()
    manifest["spec"] |= {
        "replicas": 0,
        "paused": True,  # otherwise its controller creates a ReplicaSet, which is reviewed too
        "selector": {"matchLabels": {"app": "x"}},
        "template": template,
    }
    return manifest


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(0, id="a few rules"),
        pytest.param(1_000, id="1,000 rules", marks=pytest.mark.slow),
    ],
)
def test_conditions_and_placement_agree_on_pods_and_templates(
    plane: ControlPlane, serve: Serve, more: int
) -> None:
    upcoming = f"placement-{next(_numbers) + 1}"
    others = [{"annotation": f"example.com/key-{index}", "equals": "x"} for index in range(more)]
    rules = [
        {"name": f"r{number}", "when": when, "prefer": [{"weight": 1, "require": [EDGE]}]}
        for number, when in enumerate([*whens([upcoming, "other"]), *others])
    ]
    ns = serve(plane, placing(*rules))
    assert ns.namespace == upcoming
    placement = Placement(msgspec.convert({"rules": rules}, PlacementArgs))

    def matches(manifest: Object) -> bool:
        parsed = Pod.of(
            {**manifest, "metadata": {**manifest["metadata"], "namespace": ns.namespace}}
        )
        return placement.concerns(parsed) or "delay" in parsed.annotations

    def delay(manifest: Object) -> str | None:
        return dict(manifest["metadata"].get("annotations", {})).get("delay")

    def changes(old: Object, new: Object) -> bool:
        parsed = Pod.of({**new, "metadata": {**new["metadata"], "namespace": ns.namespace}})
        return (old != new and placement.concerns(parsed)) or delay(old) != delay(new)

    source = random.Random(SEED)
    outcomes = set()
    deployments_path = f"/apis/apps/v1/namespaces/{ns.namespace}/deployments"
    with closing(Cluster.connect(plane.kubeconfig)) as cluster:

        def sent(method: str, path: str, manifest: Object, **query: str) -> bool:
            before = ns.reviews()
            cluster.request(method, path, query=query, body=msgspec.json.encode(manifest))
            return ns.reviews() > before

        for number in range(PAIRS):
            first, second = marked(source), marked(source)
            if number % 4 == 0:
                second = {**second, "metadata": first["metadata"]}
            if number % 5 == 0:
                second = first
            pod_manifest = {"apiVersion": "v1", "kind": "Pod", **first}
            pod_manifest["metadata"] = {**first["metadata"], "generateName": "x-"}
            pods_path = f"/api/v1/namespaces/{ns.namespace}/pods"
            reviewed = (
                sent("POST", pods_path, pod_manifest, dryRun="All"),
                sent("POST", deployments_path, deployed(first)),
                sent("PUT", f"{deployments_path}/orbit", deployed(second), dryRun="All"),
            )
            assert reviewed == (matches(first), matches(first), changes(first, second)), (
                SEED,
                first,
                second,
            )
            cluster.request("DELETE", f"{deployments_path}/orbit")
            outcomes.add(reviewed)
    assert len(outcomes) == 4
