"""Reinvocation and validation."""

from typing import Any

import pytest

from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.framework.pipeline import AdmissionPipeline
from holdfast.webhook.framework.plugin import Code, Result
from holdfast.webhook.framework.profiles import Verdict
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.objects import Pod
from tests.support.builders import Document, read_review
from tests.support.fakes import apply_patch
from tests.support.matching import REQUIRED
from tests.support.vm_builders import make_launcher, make_vm, make_vmi
from tests.unit.plugins.sticky_vms import (
    KUBEVIRT,
    MIGRATION,
    RECORD,
    cluster,
    sticky,
    sticky_pipeline,
    validate,
)


def patched(pipeline: AdmissionPipeline, pod: Document) -> Document:
    verdict = pipeline.mutate(read_review(pod, userInfo=KUBEVIRT), now_ms=0)
    assert verdict.code is Code.SUCCESS
    document: Document = apply_patch(pod, patch(Pod.of(pod), verdict.edits))
    return document


def test_reinvocation_is_idempotent() -> None:
    pipeline = sticky_pipeline(cluster(make_vm(RECORD)))
    pod = patched(pipeline, make_launcher())
    assert patched(pipeline, pod) == pod
    verdict = pipeline.validate(read_review(pod, userInfo=KUBEVIRT), now_ms=0)
    assert verdict == Verdict(Code.SUCCESS, (), [], [])


def test_mutated_pods_are_valid() -> None:
    for vm in (make_vm(), make_vm(RECORD), make_vm({kubevirt.STICKY: "false"})):
        for pod in (make_launcher(), make_launcher({kubevirt.EPHEMERAL_PROVISIONING: ""})):
            for args in ("{}", "{affinity: preferred}"):
                pipeline = sticky_pipeline(cluster(vm), args)
                review = read_review(patched(pipeline, pod), userInfo=KUBEVIRT)
                assert pipeline.validate(review, now_ms=0).code is Code.SUCCESS


LOST = (
    "%s is missing from a pod of a sticky VM: another mutating webhook removed it; or the "
    "VM has just been changed, and KubeVirt's retry succeeds"
)
BOTH = 'finalizer holdfast.dev/sticky and required node affinity "metadata.name In [node-1]"'


def test_pod_without_its_finalizer_or_without_its_node_in_one_term_is_rejected() -> None:
    plugin = sticky(cluster(make_vm(RECORD)))
    assert validate(plugin, make_launcher()) == Result(Code.REJECT, (), LOST % BOTH)

    pod = patched(sticky_pipeline(cluster(make_vm(RECORD))), make_launcher())
    terms = pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    terms.append({"matchExpressions": [{"key": "a", "operator": "Exists"}]})
    reason = LOST % 'required node affinity "metadata.name In [node-1]"'
    assert validate(plugin, pod).reason == reason


def named(*nodes: str) -> Document:
    """Return a node selector term with one name requirement per node."""
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]} for node in nodes]
    return {"matchFields": fields}


def requiring(*terms: Document) -> Document:
    """Return a mutated launcher pod with these terms instead of KubeVirt's."""
    pod = make_launcher(finalizers=[kubevirt.STICKY])
    pod["spec"]["affinity"]["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": list(terms)}}
    return pod


CONTRADICTION = (
    'no node can meet the required node affinity "metadata.name In [node-1]" and '
    '"metadata.name In [node-2]": correct the VM\'s own affinity or its recorded node; or '
    "the VM has just been changed, and KubeVirt's retry succeeds"
)


def test_pod_that_requires_two_nodes_is_rejected() -> None:
    """If the record changes before a reinvocation, `mutate` adds the second node."""
    first_pod = patched(sticky_pipeline(cluster(make_vm(RECORD))), make_launcher())
    pipeline = sticky_pipeline(cluster(make_vm({**RECORD, kubevirt.STICKY_NODE: "node-2"})))
    second_pod = patched(pipeline, first_pod)

    verdict = pipeline.validate(read_review(second_pod, userInfo=KUBEVIRT), now_ms=0)
    assert verdict.reasons == [CONTRADICTION]
    assert pipeline.mutate(read_review(make_launcher(), userInfo=KUBEVIRT), now_ms=0).code is (
        Code.SUCCESS
    )


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        pytest.param(
            [named("node-2", "node-1"), named("node-1")], Code.SUCCESS, id="one satisfiable term"
        ),
        pytest.param(
            [named("node-2", "node-1"), named("node-3", "node-1"), {}],
            Code.REJECT,
            id="no satisfiable term",
        ),
        pytest.param([{}], Code.SUCCESS, id="only an empty term"),
    ],
)
def test_unsatisfiable_node_names_are_rejected(terms: list[Any], code: Code) -> None:
    assert validate(sticky(cluster(make_vm(RECORD))), requiring(*terms)).code is code


def test_unsatisfiable_node_names_are_allowed_if_preferred_or_migrating() -> None:
    pod = requiring(named("node-2", "node-3"))
    plugin = sticky(cluster(make_vm(RECORD)), affinity="preferred")
    assert validate(plugin, pod).code is Code.SUCCESS

    pod["metadata"]["labels"] |= MIGRATION
    running_plugin = sticky(cluster(make_vm(RECORD), make_vmi(phase="Running", node="node-1")))
    assert validate(running_plugin, pod).code is Code.SUCCESS


def test_message_lists_only_some_of_many_node_names() -> None:
    names = [*(f"node-{number}" for number in range(9)), "node-1"]
    reason = validate(sticky(cluster(make_vm(RECORD))), requiring(named(*names))).reason
    assert '"metadata.name In [node-2]" and 6 more: correct' in reason


def test_missing_preference_is_allowed_but_missing_finalizer_is_not() -> None:
    plugin = sticky(cluster(make_vm(RECORD)), affinity="preferred")
    assert validate(plugin, make_launcher(finalizers=[kubevirt.STICKY])).code is Code.SUCCESS
    assert validate(plugin, make_launcher()).reason == LOST % "finalizer holdfast.dev/sticky"
