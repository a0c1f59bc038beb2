"""Other webhooks change pods before ours and after it, so that ours is asked again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.others import Object, other_webhook
from tests.e2e.world import gates, pod
from tests.faults.load import GATE, ROLE
from tests.faults.rows.own import due_times, mine
from tests.faults.scene import BOUND, Fault, Scene

OTHERS: Object = {"matchExpressions": [{"key": "example.com/none", "operator": "DoesNotExist"}]}
"""A term that every node meets: beside ours it would let a pod go anywhere."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERMS = 3
"""The first one adds a term before ours is asked, the last one another after it, and the first one
a third when it is asked again, just before ours is."""
MUTATION = "mutation.webhook.admission.k8s.io/round_{}_"
"""How the API server's annotations begin that name who was asked, for the first and second time."""


def reinvoked(scene: Scene) -> None:
    """Have other webhooks add terms before ours and after it, so that ours is asked again."""
    calls: Counter[str] = Counter()

    def changed(name: str, seen: Object, counts: Sequence[int]) -> list[Object]:
        calls[name] += 1
        if seen["metadata"].get("name", "").startswith(mine(scene)):
            return further(seen) if len(terms(seen)) in counts else []
        if "annotations" in seen["metadata"]:
            return [{"op": "add", "path": "/metadata/annotations/seen-by", "value": name}]
        return []

    plane, name = scene.arena.plane, f"{scene.world.namespace}-{scene.mark}-asked"
    scene.apart.append(name)
    world = type(scene.world).in_new_namespace(plane, name)
    names = [f"{mine(scene)}{number}" for number in range(6 if scene.short else 40)]
    wanted = [pod(one, {"delay": "6", "type": "space"}) for one in names]

    def is_called() -> bool:
        (seen,) = world.create_pods(wanted[:1], dry_run=True)
        return len(terms(seen)) == TERMS

    with (
        other_webhook(plane, "aa-first", lambda seen: changed("first", seen, (0, 2))),
        other_webhook(plane, "zz-last", lambda seen: changed("last", seen, (1,))),
    ):
        called = scene.eventually(is_called)
        made = world.create_pods(wanted)
        scene.own |= due_times(made)
        scene.go_on(30, 6)
    scene.check("seconds until others were called", called, BOUND)
    scene.check("other webhooks that were not called", 2 - len(calls))
    amiss = [one for one in made if ours(one) != [1] * TERMS]
    scene.check("pods without our requirement once in each term", len(amiss))
    twice = [one for one in made if gates(one) != [GATE]]
    scene.check("own pods with other than one gate", len(twice))
    asked = rounds(plane.audit_log, name)
    scene.figures["asked twice"] = len(asked[0] & asked[1])
    scene.check(
        "pods about which Holdfast was not asked twice", len(names) - len(asked[0] & asked[1])
    )

    def bound() -> bool:
        return all(one["spec"].get("nodeName") for one in world.all("pods"))

    scene.check("seconds until they were bound", scene.eventually(bound), BOUND)
    labelled = plane.kubectl("get", "nodes", "-l", f"{ROLE}=edge", "-o", "name").split()
    astray = [
        one for one in world.all("pods") if f"node/{one['spec'].get('nodeName')}" not in labelled
    ]
    scene.check("pods on nodes that we exclude", len(astray))


def terms(seen: Object) -> list[Object]:
    """Read a pod's required terms."""
    affinity = seen["spec"].get("affinity", {}).get("nodeAffinity", {})
    return list(affinity.get(REQUIRED, {}).get("nodeSelectorTerms", ()))


def further(seen: Object) -> list[Object]:
    """Make the patch that adds a term beside those that are there."""
    path = "/spec/affinity"
    if terms(seen):
        path += f"/nodeAffinity/{REQUIRED}/nodeSelectorTerms/-"
        return [{"op": "add", "path": path, "value": OTHERS}]
    value = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [OTHERS]}}}
    return [{"op": "add", "path": path, "value": value}]


def ours(seen: Object) -> list[int]:
    """Count in each of a pod's terms how often it has our requirement."""
    return [
        sum(one["key"] == ROLE for one in term.get("matchExpressions", ())) for term in terms(seen)
    ]


def rounds(log: Path, namespace: str) -> tuple[set[str], set[str]]:
    """Name the namespace's pods about which ours was asked, and those for the second time.

    By the API server's own account, of which it has put aside a file at most.
    """
    asked: tuple[set[str], set[str]] = set(), set()
    own = b'"namespace":"%s"' % namespace.encode()
    for file in log.parent.glob(f"{log.stem}*{log.suffix}"):
        for line in file.read_bytes().split(b"\n"):
            if own not in line or b"mutation.webhook" not in line:
                continue
            event = json.loads(line)
            for key, value in event["annotations"].items():
                for number, names in enumerate(asked):
                    if key.startswith(MUTATION.format(number)) and '"holdfast"' in value:
                        names.add(event["objectRef"].get("name", ""))
    return asked


FAULTS = [
    Fault(
        "webhooks-reinvoke",
        7,
        reinvoked,
        broken="adds-again",
        caught_by="pods without our requirement once in each term",
        means="Asked again, Holdfast adds what is missing, and nothing that is there: one gate, "
        "and its requirement once in every term, in those that others added after it too.",
    ),
]
