"""Placement on a real cluster: kube-scheduler puts pods where the rules say, and nowhere else."""

from __future__ import annotations

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
from tests.e2e.world import Object, World, gates, pod
from tests.matching import REQUIRED, admits, meets
from webhook.affinity import impossible
from webhook.cluster import Cluster
from webhook.objects import Pod
from webhook.plugins.placement import Placement, PlacementArgs
from webhook.review import Requirement

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

Serve = Callable[..., World]


def plane_with(*scheduler_profiles: str) -> ControlPlane:
    return ControlPlane(
        nodes=len(LABELS),
        node_labels=lambda index: LABELS[index],
        scheduler_profiles=scheduler_profiles,
        audit=True,
    )


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A cluster whose kube-scheduler serves a second profile, spacecloud."""
    with plane_with("default-scheduler", "spacecloud") as running:
        yield running


@pytest.fixture(scope="module")
def plain_plane() -> Iterator[ControlPlane]:
    """A cluster whose kube-scheduler knows the default profile alone."""
    with plane_with("default-scheduler") as running:
        yield running


@pytest.fixture
def serve(tmp_path: Path, log: Path) -> Iterator[Serve]:
    """Run `holdfast dev` with profiles of the test's own, and give a namespace beside it."""
    with ExitStack() as stack:

        def start(plane: ControlPlane, *profiles: Object) -> World:
            config = tmp_path / "holdfast.yaml"
            head = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "HoldfastConfiguration"}
            config.write_text(json.dumps({**head, "profiles": list(profiles)}))  # is YAML too
            arguments = ("--kubeconfig", str(plane.kubeconfig), "--config", str(config))
            holdfast = stack.enter_context(Command("dev", *arguments, log=log))
            return namespace(plane, holdfast)

        yield start


def namespace(plane: ControlPlane, holdfast: Command | None = None) -> World:
    return World.in_new_namespace(plane, f"placement-{next(_numbers)}", holdfast)


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
    main = {"name": "main", "image": "busybox"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "orbit"},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {"type": kind}},
                "spec": {"schedulerName": "spacecloud", "containers": [main], **spec},
            },
        },
    }


def landed(world: World) -> set[str]:
    """Wait until the Deployment's pods are bound, and name their nodes."""

    def bound() -> list[str]:
        found = [one["spec"].get("nodeName", "") for one in world.all("pods", "app=orbit")]
        return found if len(found) == REPLICAS and all(found) else []

    return set(world.eventually(bound))


def schedulers(world: World) -> set[str]:
    return {one["spec"]["schedulerName"] for one in world.all("pods", "app=orbit")}


def required_terms(seen: Object) -> list[Any]:
    affinity = seen["spec"].get("affinity", {}).get("nodeAffinity", {})
    return list(affinity.get(REQUIRED, {}).get("nodeSelectorTerms", ()))


# --- the space workload ------------------------------------------------------------------------


def test_without_holdfast_space_pods_land_anywhere(plane: ControlPlane) -> None:
    world = namespace(plane)
    world.apply(deployment())

    assert landed(world) - EDGE_NODES


def test_space_pods_land_at_the_edge_by_a_scheduler_profile_of_their_own(
    plane: ControlPlane, serve: Serve
) -> None:
    world = serve(plane, placing(SPACE))
    world.apply(deployment())

    assert landed(world) == EDGE_NODES
    assert schedulers(world) == {"spacecloud"}

    other = namespace(plane, world.holdfast)
    other.apply(deployment(kind="ground"))
    assert landed(other) - EDGE_NODES


def test_space_pods_land_at_the_edge_by_the_default_scheduler(
    plain_plane: ControlPlane, serve: Serve
) -> None:
    mapped = {**SPACE, "schedulerName": "default-scheduler"}
    world = serve(plain_plane, placing(mapped, scheduler="spacecloud"))
    world.apply(deployment())

    assert landed(world) == EDGE_NODES
    assert schedulers(world) == {"default-scheduler"}
    profiles = {one["metadata"]["annotations"]["holdfast.dev/profile"] for one in world.all("pods")}
    assert profiles == {"spacecloud"}


def test_a_dry_run_shows_where_a_pod_may_go(plane: ControlPlane, serve: Serve) -> None:
    world = serve(plane, placing(SPACE))
    (shown,) = world.apply(pod("dry", {"type": "space"}), dry_run=True)

    assert required_terms(shown) == [{"matchExpressions": [EDGE]}]
    assert world.all("pods") == []


# --- contradictions ----------------------------------------------------------------------------


def test_contradictions_are_told_where_they_are_written(plane: ControlPlane, serve: Serve) -> None:
    strict = {
        **SPACE,
        "name": "strict",
        "when": {"label": "tier", "in": ["space"]},
        "onConflict": "refuse",
    }
    world = serve(plane, placing(SPACE, strict))
    core: Object = {"nodeSelector": {ROLE: "core"}}
    told = f'rule space: "{ROLE} In [edge]" contradicts nodeSelector "{ROLE} In [core]"'

    assert f"Warning: holdfast: {told}" in world.warnings(pod("odd", {"type": "space"}, **core))
    assert f"Warning: holdfast: {told}" in world.warnings(deployment(**core))
    refused = pod("refused", **core)
    refused["metadata"]["labels"] = {"tier": "space"}
    assert told.replace("space", "strict", 1) in world.refusal(refused)

    odd = world.get("pod", "odd")
    assert odd["spec"]["nodeSelector"] == {ROLE: "core"}
    assert required_terms(odd) == [{"matchExpressions": [EDGE]}]


def test_a_contradiction_that_an_update_brings_is_told(plane: ControlPlane, serve: Serve) -> None:
    world = serve(plane, placing(SPACE))
    core: Object = {"nodeSelector": {ROLE: "core"}}
    told = f'Warning: holdfast: rule space: "{ROLE} In [edge]" contradicts nodeSelector'

    assert world.warnings(deployment(kind="ground", **core)) == ""
    assert told in world.warnings(deployment(kind="space", **core))
    assert world.warnings(deployment(kind="space")) == ""
    assert told in world.warnings(deployment(kind="space", **core))


def test_updates_that_change_no_template_and_no_key_are_not_sent(
    plane: ControlPlane, serve: Serve
) -> None:
    world = serve(plane, placing(SPACE))
    world.apply(deployment(), pod("space", {"type": "space"}), pod("ground"))
    landed(world)
    before = world.reviews()
    world.kubectl("scale", "deployment", "orbit", f"--replicas={REPLICAS - 1}")
    world.kubectl("annotate", "deployment", "orbit", "type=space")
    world.kubectl("label", "pod", "space", "other=label")
    world.kubectl("annotate", "pod", "ground", "type=space")

    assert world.reviews() == before


def test_daemon_pods_keep_their_nodes(plane: ControlPlane, serve: Serve) -> None:
    world = serve(plane, placing(SPACE))
    daemon = deployment()
    daemon["kind"] = "DaemonSet"
    del daemon["spec"]["replicas"]
    del daemon["spec"]["template"]["spec"]["schedulerName"]

    assert "holdfast: the pods will not be placed: DaemonSet pods" in world.warnings(daemon)

    def everywhere() -> bool:
        found = {one["spec"].get("nodeName") for one in world.all("pods", "app=orbit")}
        return found == {f"node-{index}" for index in LABELS}

    world.eventually(everywhere)


# --- held pods ---------------------------------------------------------------------------------


def test_a_rule_that_waits_is_written_with_the_release(plane: ControlPlane, serve: Serve) -> None:
    late = {**SPACE, "resolveAtRelease": True, "nodeSelector": {"zone": "b"}}
    world = serve(plane, placing(late))
    own = {"key": "zone", "operator": "Exists"}
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [own]}]}}}
    (made,) = world.apply(pod("late", {"type": "space", "delay": "3"}, affinity=affinity))
    (now,) = world.apply(pod("now", {"type": "space"}, affinity=affinity))

    assert gates(made) == ["holdfast.dev/delay"]
    assert required_terms(made) == [{"matchExpressions": [own]}]
    assert "nodeSelector" not in made["spec"]
    assert required_terms(now) == [{"matchExpressions": [own, EDGE]}]

    world.eventually(lambda: world.get("pod", "late")["spec"].get("nodeName"))
    for name in ("late", "now"):
        seen = world.eventually(
            lambda name=name: bound_pod(world, name)  # type: ignore[misc]
        )
        assert seen["spec"]["nodeName"] == "node-3"
        assert required_terms(seen) == [{"matchExpressions": [own, EDGE]}]
        assert seen["spec"]["nodeSelector"] == {"zone": "b"}
    measured = 'extension_point="release",plugin="placement",profile="*",status="Success"} 1.0'
    series = f"holdfast_plugin_execution_duration_seconds_count{{{measured}"
    assert [line for line in world.controller_metrics() if line == series]


def bound_pod(world: World, name: str) -> Object:
    seen = world.get("pod", name)
    return seen if seen["spec"].get("nodeName") else {}


# --- generated pods and rules, by the real scheduler -------------------------------------------


def requirement(source: random.Random) -> Object:
    key = source.choice([ROLE, "zone", "size"])
    operator = source.choice(["In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
    written: Object = {"key": key, "operator": operator}
    if operator in {"In", "NotIn"}:
        written["values"] = source.sample(["edge", "core", "a", "b", "c", "4", "05"], 4)
    elif operator in {"Gt", "Lt"}:
        written |= {"key": "size", "values": [source.choice(["3", "4", "5", "11"])]}
    return written


def possible_requirements(source: random.Random) -> list[Object]:
    while True:
        found = [requirement(source) for _ in range(source.randint(1, 2))]
        read = [
            Requirement(one["key"], one["operator"], tuple(one.get("values", ()))) for one in found
        ]
        if not impossible(read):
            return found


def term(source: random.Random) -> Object:
    made: Object = {}
    if source.random() < 0.8:
        made["matchExpressions"] = [requirement(source) for _ in range(source.randint(0, 2))]
    if source.random() < 0.2:
        name = source.choice(["node-1", "node-4"])
        operator = source.choice(["In", "NotIn"])
        made["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [name]}]
    return made


def generated(source: random.Random, case: int) -> Object:
    made = pod(f"case-{case}", {"rule": f"r{case}"})
    made["metadata"]["labels"] = {"case": str(case)}
    if source.random() < 0.2:
        made["spec"]["nodeSelector"] = {"zone": source.choice("ab")}
    if source.random() < 0.7:
        terms = [term(source) for _ in range(source.randint(1, 3))]
        made["spec"]["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    return made


def copies(manifest: Object, case: int) -> list[Object]:
    """Make as many copies as there are nodes, which cannot share one: they take all they may."""
    apart = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"case": str(case)}},
    }
    affinity = {**manifest["spec"].get("affinity", {}), "podAntiAffinity": {REQUIRED: [apart]}}
    spec = {**manifest["spec"], "affinity": affinity}
    name = manifest["metadata"]["name"]
    return [
        {**manifest, "metadata": {**manifest["metadata"], "name": f"{name}-{copy}"}, "spec": spec}
        for copy in range(len(LABELS))
    ]


def is_judged(seen: Object) -> bool:
    """Tell whether the scheduler has bound a pod, or found no node for it."""
    conditions = seen["status"].get("conditions", ())
    return bool(seen["spec"].get("nodeName")) or any(
        one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable" for one in conditions
    )


def test_the_scheduler_puts_generated_pods_on_the_nodes_of_both_pod_and_rule(
    plane: ControlPlane, serve: Serve
) -> None:
    source = random.Random(SEED)
    requires = [possible_requirements(source) for _ in range(CASES)]
    asked = [generated(source, case) for case in range(CASES)]
    rules = [
        {
            "name": f"r{case}",
            "when": {"annotation": "rule", "equals": f"r{case}"},
            "require": required,
        }
        for case, required in enumerate(requires)
    ]
    world = serve(plane, placing(*rules))
    nodes = world.all("nodes")
    world.create_pods([one for case, made in enumerate(asked) for one in copies(made, case)])

    def settled() -> list[Object]:
        seen = world.all("pods", "case")
        return seen if all(map(is_judged, seen)) else []

    seen = world.eventually(settled)
    assert len(seen) == CASES * len(LABELS)
    outcomes = set()
    for case, made in enumerate(asked):
        expected = {
            node["metadata"]["name"]
            for node in nodes
            if admits(made, node)
            and all(meets(node["metadata"]["labels"], one) for one in requires[case])
        }
        taken = {
            one["spec"].get("nodeName")
            for one in seen
            if one["metadata"]["labels"]["case"] == str(case)
        } - {None}
        assert taken == expected, (SEED, case, made, requires[case])
        outcomes.add(len(expected))
    assert len(outcomes) >= 4, "the cases are too much alike to say anything"


# --- who is sent -------------------------------------------------------------------------------

TESTS: list[Object] = [{"equals": "x"}, {"in": ["x", "it's"]}, {"exists": True}]
MARKS = ["kind", "a.b/c", "type"]
PAIRS = 120


def whens(namespaces: list[str]) -> list[Object]:
    """Make what rules are for: annotations and labels, each test, and some namespaces."""
    return [
        {"annotation": "kind", **TESTS[0]},
        {"label": "kind", "in": ["x", "z"]},
        {"annotation": "a.b/c", **TESTS[2]},
        {"label": "a.b/c", **TESTS[0], "namespaces": namespaces},
        {"annotation": "type", **TESTS[1], "namespaces": ["elsewhere"]},
    ]


def marked(source: random.Random) -> Object:
    """Make the metadata and spec of a pod, or of a template."""
    made = pod("x")
    metadata: Object = {"labels": {"app": "x"}}
    for field, values in (("annotations", ["x", "it's", "y"]), ("labels", ["x", "y"])):
        if source.random() < 0.6:
            keys = source.sample(MARKS, source.randint(0, 2))
            metadata[field] = metadata.get(field, {}) | {key: source.choice(values) for key in keys}
    if source.random() < 0.2:
        metadata.setdefault("annotations", {})["delay"] = source.choice(["0", "5"])
    if source.random() < 0.3:
        made["spec"]["nodeSelector"] = {"zone": source.choice("ab")}
    return {"metadata": metadata, "spec": made["spec"]}


def deployed(template: Object) -> Object:
    whole = deployment()
    whole["spec"] |= {
        "replicas": 0,
        "paused": True,  # else its ReplicaSet is asked about too, whenever its controller makes it
        "selector": {"matchLabels": {"app": "x"}},
        "template": template,
    }
    return whole


def test_pods_and_templates_are_sent_where_python_says_that_they_have_to_be(
    plane: ControlPlane, serve: Serve
) -> None:
    upcoming = f"placement-{next(_numbers) + 1}"
    rules = [
        {"name": f"r{number}", "when": when, "prefer": [{"weight": 1, "require": [EDGE]}]}
        for number, when in enumerate(whens([upcoming, "other"]))
    ]
    world = serve(plane, placing(*rules))
    assert world.namespace == upcoming
    placement = Placement(msgspec.convert({"rules": rules}, PlacementArgs))

    def asks(made: Object) -> bool:
        read = Pod.of({**made, "metadata": {**made["metadata"], "namespace": world.namespace}})
        return placement.concerns(read) or "delay" in read.annotations

    def delay(made: Object) -> str | None:
        return dict(made["metadata"].get("annotations", {})).get("delay")

    def changes(old: Object, new: Object) -> bool:
        read = Pod.of({**new, "metadata": {**new["metadata"], "namespace": world.namespace}})
        return (old != new and placement.concerns(read)) or delay(old) != delay(new)

    source = random.Random(SEED)
    outcomes = set()
    deployments = f"/apis/apps/v1/namespaces/{world.namespace}/deployments"
    with closing(Cluster.connect(plane.kubeconfig)) as cluster:

        def sent(method: str, path: str, made: Object, **query: str) -> bool:
            before = world.reviews()
            cluster.request(method, path, query=query, body=msgspec.json.encode(made))
            return world.reviews() > before

        for number in range(PAIRS):
            first, second = marked(source), marked(source)
            if number % 4 == 0:
                second = {**second, "metadata": first["metadata"]}
            if number % 5 == 0:
                second = first
            single = {"apiVersion": "v1", "kind": "Pod", **first}
            single["metadata"] = {**first["metadata"], "generateName": "x-"}
            pods = f"/api/v1/namespaces/{world.namespace}/pods"
            seen = (
                sent("POST", pods, single, dryRun="All"),
                sent("POST", deployments, deployed(first)),
                sent("PUT", f"{deployments}/orbit", deployed(second), dryRun="All"),
            )
            assert seen == (asks(first), asks(first), changes(first, second)), (SEED, first, second)
            cluster.request("DELETE", f"{deployments}/orbit")
            outcomes.add(seen)
    assert len(outcomes) == 4
