"""Other webhooks change pods before and after ours, so that ours is reinvoked."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.foreign_webhook import Object, other_webhook
from tests.e2e.namespace import gates, pod
from tests.faults.load import GATE, REQUIRED, ROLE, count_requirements, terms
from tests.faults.rows.own import create_extra_namespace, due_times, own_prefix
from tests.faults.scenario import BOUND, Scenario, Table

FAULTS = Table()

OTHERS: Object = {"matchExpressions": [{"key": "example.com/none", "operator": "DoesNotExist"}]}
"""A term that every node matches: without our requirement it would permit any node."""
TERMS = 3
"""The first webhook adds a term before ours runs, and the last one adds a term after it. Then the
first one is reinvoked and adds a third term, before ours is reinvoked."""
MUTATION = "mutation.webhook.admission.k8s.io/round_{}_"
"""Prefix of the audit annotations that name the webhooks of the first and second round."""


@FAULTS.row(
    "webhooks-reinvoke",
    broken="adds-again",
    caught_by="pods without our requirement once in each term",
)
def reinvoked(scenario: Scenario) -> None:
    """Have other webhooks add terms before and after ours, so that ours is reinvoked."""
    calls: Counter[str] = Counter()

    def change(name: str, manifest: Object, counts: Sequence[int]) -> list[Object]:
        calls[name] += 1
        if manifest["metadata"].get("name", "").startswith(own_prefix(scenario)):
            return add_term(manifest) if len(terms(manifest)) in counts else []
        if "annotations" in manifest["metadata"]:
            return [{"op": "add", "path": "/metadata/annotations/seen-by", "value": name}]
        return []

    plane, ns = scenario.testbed.plane, create_extra_namespace(scenario, "reviewed")
    names = [f"{own_prefix(scenario)}{number}" for number in range(6 if scenario.short else 40)]
    manifests = [pod(name, {"delay": "6", "type": "space"}) for name in names]

    def is_called() -> bool:
        (manifest,) = ns.create_pods(manifests[:1], dry_run=True)
        return len(terms(manifest)) == TERMS

    with (
        other_webhook(plane, "aa-first", lambda manifest: change("first", manifest, (0, 2))),
        other_webhook(plane, "zz-last", lambda manifest: change("last", manifest, (1,))),
    ):
        seconds = scenario.eventually(is_called)
        pods = ns.create_pods(manifests)
        scenario.own |= due_times(pods)
        scenario.wait(30, 6)
    scenario.check("seconds until the other webhooks were called", seconds, BOUND)
    scenario.check("other webhooks not called", 2 - len(calls))
    wrong_pods = [manifest for manifest in pods if count_requirements(manifest) != [1] * TERMS]
    scenario.check("pods without our requirement once in each term", len(wrong_pods))
    wrong_pods = [manifest for manifest in pods if gates(manifest) != [GATE]]
    scenario.check("own pods without exactly one gate", len(wrong_pods))
    first_round, second_round = rounds(plane.audit_log, ns.namespace)
    scenario.check("pods not reviewed twice", len(names) - len(first_round & second_round))

    def are_bound() -> bool:
        return all(manifest["spec"].get("nodeName") for manifest in ns.all("pods"))

    scenario.check("seconds until the pods were bound", scenario.eventually(are_bound), BOUND)
    edge_nodes = plane.kubectl("get", "nodes", "-l", f"{ROLE}=edge", "-o", "name").split()
    misplaced_pods = [
        manifest
        for manifest in ns.all("pods")
        if f"node/{manifest['spec'].get('nodeName')}" not in edge_nodes
    ]
    scenario.check("pods on excluded nodes", len(misplaced_pods))


def add_term(manifest: Object) -> list[Object]:
    """Return a patch that adds another term."""
    path = "/spec/affinity"
    if terms(manifest):
        path += f"/nodeAffinity/{REQUIRED}/nodeSelectorTerms/-"
        return [{"op": "add", "path": path, "value": OTHERS}]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [OTHERS]}}}
    return [{"op": "add", "path": path, "value": affinity}]


def rounds(log: Path, namespace: str) -> tuple[set[str], set[str]]:
    """Return the pods that our webhook reviewed in the first round, and in the second round.

    They are read from the audit log, including a rotated file.
    """
    reviewed: tuple[set[str], set[str]] = set(), set()
    in_namespace = b'"namespace":"%s"' % namespace.encode()
    for file in log.parent.glob(f"{log.stem}*{log.suffix}"):
        for line in file.read_bytes().split(b"\n"):
            if in_namespace not in line or b"mutation.webhook" not in line:
                continue
            event = json.loads(line)
            for key, value in event["annotations"].items():
                for number, names in enumerate(reviewed):
                    if key.startswith(MUTATION.format(number)) and '"holdfast"' in value:
                        names.add(event["objectRef"].get("name", ""))
    return reviewed
