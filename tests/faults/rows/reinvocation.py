"""Other webhooks change pods before ours and after it, so that ours is asked again."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.foreign_webhook import Object, other_webhook
from tests.e2e.namespace import gates, pod
from tests.faults.load import GATE, ROLE
from tests.faults.rows.own import due_times, mine
from tests.faults.scenario import BOUND, Scenario, Table

FAULTS = Table(7)

OTHERS: Object = {"matchExpressions": [{"key": "example.com/none", "operator": "DoesNotExist"}]}
"""A term that every node meets: as an alternative to ours it would permit any node."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERMS = 3
"""The first one adds a term before ours is asked, the last one another after it, and the first one
a third when it is asked again, just before ours is."""
MUTATION = "mutation.webhook.admission.k8s.io/round_{}_"
"""How the API server's annotations begin that name who was asked, for the first and second time."""


@FAULTS.row(
    "webhooks-reinvoke",
    broken="adds-again",
    caught_by="pods without our requirement once in each term",
)
def reinvoked(scenario: Scenario) -> None:
    """Have other webhooks add terms before ours and after it, so that ours is asked again."""
    calls: Counter[str] = Counter()

    def changed(name: str, seen: Object, counts: Sequence[int]) -> list[Object]:
        calls[name] += 1
        if seen["metadata"].get("name", "").startswith(mine(scenario)):
            return further(seen) if len(terms(seen)) in counts else []
        if "annotations" in seen["metadata"]:
            return [{"op": "add", "path": "/metadata/annotations/seen-by", "value": name}]
        return []

    plane, name = scenario.testbed.plane, f"{scenario.ns.namespace}-{scenario.mark}-asked"
    scenario.apart.append(name)
    ns = type(scenario.ns).create_new(plane, name)
    names = [f"{mine(scenario)}{number}" for number in range(6 if scenario.short else 40)]
    wanted = [pod(one, {"delay": "6", "type": "space"}) for one in names]

    def is_called() -> bool:
        (seen,) = ns.create_pods(wanted[:1], dry_run=True)
        return len(terms(seen)) == TERMS

    with (
        other_webhook(plane, "aa-first", lambda seen: changed("first", seen, (0, 2))),
        other_webhook(plane, "zz-last", lambda seen: changed("last", seen, (1,))),
    ):
        called = scenario.eventually(is_called)
        made = ns.create_pods(wanted)
        scenario.own |= due_times(made)
        scenario.go_on(30, 6)
    scenario.check("seconds until others were called", called, BOUND)
    scenario.check("other webhooks that were not called", 2 - len(calls))
    amiss = [one for one in made if ours(one) != [1] * TERMS]
    scenario.check("pods without our requirement once in each term", len(amiss))
    twice = [one for one in made if gates(one) != [GATE]]
    scenario.check("own pods with other than one gate", len(twice))
    asked = rounds(plane.audit_log, name)
    scenario.figures["asked twice"] = len(asked[0] & asked[1])
    scenario.check(
        "pods about which Holdfast was not asked twice", len(names) - len(asked[0] & asked[1])
    )

    def bound() -> bool:
        return all(one["spec"].get("nodeName") for one in ns.all("pods"))

    scenario.check("seconds until they were bound", scenario.eventually(bound), BOUND)
    labelled = plane.kubectl("get", "nodes", "-l", f"{ROLE}=edge", "-o", "name").split()
    astray = [
        one for one in ns.all("pods") if f"node/{one['spec'].get('nodeName')}" not in labelled
    ]
    scenario.check("pods on nodes that we exclude", len(astray))


def terms(seen: Object) -> list[Object]:
    """Read a pod's required terms."""
    affinity = seen["spec"].get("affinity", {}).get("nodeAffinity", {})
    return list(affinity.get(REQUIRED, {}).get("nodeSelectorTerms", ()))


def further(seen: Object) -> list[Object]:
    """Make the patch that adds a term alongside those that are there."""
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
    """Return the namespace's pods that our webhook was asked about, and those it was asked twice.

    The API server's audit log says so; at most one file of it has been rotated.
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
