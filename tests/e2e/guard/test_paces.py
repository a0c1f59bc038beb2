"""Only users with the verb release may change the state that a pace counts."""

import copy
from collections.abc import Mapping, Sequence

import pytest

from tests.e2e.guard.changes import annotation, remove, write
from tests.e2e.guard.cluster import Guarded
from tests.e2e.guard.objects import FOREIGN_GATE, PACE, RELEASED
from tests.e2e.kubectl_user import Operation, refusal
from tests.e2e.namespace import Namespace, pod

pytestmark = pytest.mark.xdist_group("guard")

PACE_CHANGES: Mapping[str, Sequence[Operation]] = {
    "label removed": [remove("/metadata/labels/holdfast.dev~1pace")],
    "all labels removed": [remove("/metadata/labels")],
    "label changed": [write("/metadata/labels/holdfast.dev~1pace", "b")],
    "another pace": [annotation(PACE, "9")],
    "no pace": [annotation(PACE, None)],
    "an earlier release": [annotation(RELEASED, "2020-01-01T00:00:00Z")],
    "no release": [annotation(RELEASED, None)],
}


def test_developer_cannot_change_pace_accounting(guarded: Guarded, ns: Namespace) -> None:
    """Neither on a released pod, nor by labelling another one."""
    paced = pod("paced", {PACE: "jvm", RELEASED: "2026-01-01T00:00:00Z", "team": "a"})
    paced["metadata"]["labels"] = {PACE: "jvm", "app": "web"}
    ns.apply(paced, pod("other", {PACE: "jvm", RELEASED: "2026-01-01T00:00:00Z"}))
    jane, amy = guarded.user(ns, "jane"), guarded.user(ns, "amy")

    messages = [refusal(jane.patch, "paced", change) for change in PACE_CHANGES.values()]
    messages.append(refusal(jane.patch, "other", [write("/metadata/labels", {PACE: "jvm"})]))
    expected = "'holdfast-pace' denied request: a pace counts"
    assert [message for message in messages if expected not in message] == []
    jane.patch("paced", [annotation("team", "b"), write("/metadata/labels/app", "db")])
    jane.patch("other", [annotation(RELEASED, None)])
    ns.eventually(lambda: not refusal(amy.patch, "paced", PACE_CHANGES["label removed"]))


def test_developer_cannot_create_an_ungated_pod_with_the_pace_label(
    guarded: Guarded, ns: Namespace
) -> None:
    """In a namespace that the webhook does not review, nothing else removes the label."""
    counted = pod("counted", {PACE: "jvm"})
    counted["metadata"]["labels"] = {PACE: "jvm"}
    unnamed = copy.deepcopy(counted)
    unnamed["metadata"]["generateName"] = f"{unnamed['metadata'].pop('name')}-"
    waiting = copy.deepcopy(counted)
    waiting["spec"]["schedulingGates"] = [{"name": FOREIGN_GATE}, {"name": PACE}]
    foreign_gated = copy.deepcopy(counted)
    foreign_gated["spec"]["schedulingGates"] = [{"name": FOREIGN_GATE}]
    jane, amy = guarded.user(ns, "jane"), guarded.user(ns, "amy")
    for manifest in (counted, unnamed, foreign_gated):
        assert "'holdfast-pace' denied request: a pace counts" in refusal(jane.create, manifest)
    jane.create(waiting, pod("unlabelled", {PACE: "jvm"}))
    ns.eventually(lambda: not refusal(amy.create, unnamed))
