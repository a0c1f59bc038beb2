"""Advice on a pod that is held or does not start. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.framework.plugin import Code
from holdfast.webhook.model import approvals
from holdfast.webhook.model.annotations import OWN_PREFIX, allowed_plugins
from holdfast.webhook.model.freezes import Freeze, thaw
from holdfast.webhook.report import obstacles
from holdfast.webhook.report.held_pods import PATIENCE_MS, HeldPodSummary
from holdfast.webhook.report.pace_places import PacePlace
from holdfast.webhook.report.pod_status import NodeState, PodWithStatus
from holdfast.webhook.report.trace import Trace


@dataclass(frozen=True, slots=True)
class PodFacts:
    """Facts about a pod. `trace` has the results of running its plugins again."""

    pod: PodWithStatus
    now_ms: int
    trace: Trace
    nodes: Sequence[NodeState] = ()
    vm: Sequence[str] = ()
    """Lines about the VM that the pod runs; empty for other pods."""
    freeze: Freeze | None = None
    """The freeze of its namespace."""
    template: obstacles.Template | None = None
    """The template of the StatefulSet or DaemonSet that would create the pod again."""
    place: PacePlace | None = None
    """Its place in line for its pace."""
    unserved: str = ""
    """Why pods like this one are not sent to Holdfast; empty if they are."""


def contradiction(facts: PodFacts, decider: ReleaseDecider) -> str:
    """Return the requirements of an unscheduled pod that no node can meet together."""
    pod = facts.pod
    bound = pod.spec.node_name or pod.status.phase not in {"", "Pending"}
    return "" if bound else obstacles.contradiction(pod, decider.profiles.select(pod))


def find(facts: PodFacts, held: HeldPodSummary | None, decider: ReleaseDecider) -> Iterator[str]:
    """Yield what a user can do about a pod, whether it is held or not."""
    pod = facts.pod
    name = f"{pod.metadata.name} -n {pod.metadata.namespace}"
    if held is not None:
        yield from _of_hold(facts, held, name)
    if pod.spec.node_name:
        yield from _bound(facts)
    elif pod.status.phase in {"", "Pending"}:
        yield from _of_template(facts, decider, name)
        clash = contradiction(facts, decider)
        if clash:
            yield f"change one of the requirements that exclude each other: {clash}"
        else:
            yield from _to_be_scheduled(facts, "after that, " if held else "")
    if held is None and not pod.gates:
        yield from _unheld(facts, name)


def _unheld(facts: PodFacts, name: str) -> Iterator[str]:
    pod = facts.pod
    is_concerned = any(step.code is not Code.SKIP for step in facts.trace.steps)
    if facts.unserved and is_concerned:
        yield f"to have such pods held, ask an admin of Holdfast: {facts.unserved}"
    elif pod.status.phase in {"Running", "Succeeded"} and not pod.metadata.deletion_timestamp:
        yield "nothing: Holdfast does not hold it"
    else:
        yield f"Holdfast does not hold it; check its Events: kubectl describe pod {name}"


def _of_hold(facts: PodFacts, held: HeldPodSummary, name: str) -> Iterator[str]:
    annotations = facts.pod.annotations
    has_approval = approvals.approver(annotations) or "approval" in allowed_plugins(annotations)
    denial = approvals.denial(annotations)
    needs_approval = approvals.GATE in facts.pod.gates and (denial or not has_approval)
    if needs_approval and denial:
        yield f"it was {denial}; if it is not needed, delete it: kubectl delete pod {name}"
    elif needs_approval:
        yield f"ask for its approval: holdfast approve {name}"
    elif held.due_ms is None and not held.remark:
        yield "ask the operator of that plugin"
    elif held.due_ms is not None and held.due_ms + PATIENCE_MS < facts.now_ms:
        yield "no controller releases it; run holdfast doctor to find out why"
    if facts.freeze is not None and held.due_ms in {None, facts.freeze.until_ms}:
        yield f"end the freeze: {thaw(facts.freeze)}"
    if not needs_approval:
        yield f"wait, or release it now: holdfast release {name}"


def _of_template(facts: PodFacts, decider: ReleaseDecider, name: str) -> Iterator[str]:
    if facts.template is None:
        return
    changes = obstacles.differences(facts.pod, facts.template, decider.profiles.select(facts.pod))
    if changes:
        owner = f"{facts.template.kind} {facts.template.name}"
        yield (
            f"the template of {owner} has changed; to apply {_listed(changes)}, delete the pod: "
            f"kubectl delete pod {name}"
        )


def _bound(facts: PodFacts) -> Iterator[str]:
    pod = facts.pod
    if pod.metadata.deletion_timestamp is not None and any(
        finalizer.startswith(OWN_PREFIX) for finalizer in pod.finalizers
    ):
        yield "the controller removes its finalizer; if it stays, run holdfast doctor"
    for state in facts.nodes:
        if state.problem:
            yield f"repair the node, or delete the pod: kubectl describe node {state.name}"


def _to_be_scheduled(facts: PodFacts, prefix: str) -> Iterator[str]:
    """Yield what to do about other obstacles to scheduling the pod."""
    pod = facts.pod
    other_gates = [gate for gate in pod.gates if not gate.startswith(OWN_PREFIX)]
    if other_gates:
        yield f"{prefix}the component that added {_listed(other_gates)} must remove it"
    if facts.nodes and all(state.problem and not state.unchecked for state in facts.nodes):
        if any(state.excluded for state in facts.nodes):
            yield f"{prefix}correct the pod's requirements, or the recorded node of its VM"
        else:
            yield f"{prefix}make {_listed(state.name for state in facts.nodes)} accept pods again"
    condition = pod.condition("PodScheduled")
    if condition and condition.reason == "Unschedulable":
        yield f"{prefix}fix what the scheduler reports: the nodes, or the pod's requirements"


def _listed(names: Iterable[str]) -> str:
    return " and ".join(names)
