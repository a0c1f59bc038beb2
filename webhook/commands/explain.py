"""`holdfast explain`: why a pod waits, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from webhook import explanation, inspection, reading, review, trace, vms, wiring
from webhook.cluster import Api, pod_path
from webhook.commands import options, terminal
from webhook.errors import ClusterError, CommandError
from webhook.framework import Handle
from webhook.inspection import NodeState, PodWithStatus
from webhook.lookup import ClusterLookup
from webhook.pipeline import Pipeline

EXAMPLES = """\b
Examples:
  holdfast explain web-0
  holdfast explain web-0 -n shop --config holdfast.yaml"""


@click.command(epilog=EXAMPLES)
@click.argument("pod")
@options.namespace
@options.config
@options.target
def explain(
    *, pod: str, namespace: str | None, config_path: Path | None, target: options.Target
) -> None:
    """Say in words why a pod waits: what it asks, who decided, and what to do.

    The plugins are asked again, by the configuration that --config names, or by the defaults.
    """
    time = reading.Time()
    cluster = target.connect(time.take)
    handle = Handle()
    handle.connect(lookup=ClusterLookup(lambda: cluster))
    pipeline = wiring.pipeline(wiring.Setup(config_path), wiring.unobserved, handle)
    found = _pod(cluster, namespace or cluster.namespace, pod)
    facts = explanation.Facts(
        pod=found,
        now_ms=time.now_ms(),
        trace=_asked_again(found, pipeline, time.now_ms()),
        nodes=_nodes(cluster, found),
        vm=[*_vm(cluster, found, pipeline)],
    )
    lines: list[terminal.Styled] = []
    for section in explanation.explain(facts, pipeline):
        lines += [(section.title, "bold"), *((f"  {line}", "") for line in section.lines)]
    terminal.write(lines)


def _pod(api: Api, namespace: str, name: str) -> PodWithStatus:
    found = reading.one(api, pod_path(namespace, name), PodWithStatus)
    if found is None:
        raise CommandError(
            f"there is no pod {namespace}/{name}; see kubectl get pods -n {namespace}"
        )
    return found


def _asked_again(pod: PodWithStatus, pipeline: Pipeline, now_ms: int) -> trace.Trace:
    """Ask the plugins about the pod, as its creator sent it as far as that can be known."""
    created = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))
    of_vm = vms.controller_of(pod.metadata, vms.VMI) is not None
    args = wiring.sticky_args(pipeline, pod) or vms.StickyArgs()
    request = review.Request(
        uid="explain",
        kind=review.GroupVersionKind("Pod", "", "v1"),
        operation="CREATE",
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        object=msgspec.Raw(msgspec.json.encode(created)),
        user_info=review.UserInfo(args.account if of_vm else ""),
    )
    return trace.mutate(pipeline, review.PodReview(request, created, created), now_ms=now_ms)


def _nodes(api: Api, pod: PodWithStatus) -> Sequence[NodeState]:
    """Look at the nodes that a pod is tied to; who may not see nodes is told so."""
    if pod.spec.node_name:
        return []
    return [reading.node_state(api, name) for name in inspection.pinned_nodes(pod)]


def _vm(api: Api, pod: PodWithStatus, decider: Pipeline) -> Iterator[str]:
    """Say which VM a pod runs, and what is recorded of its node."""
    namespace = pod.metadata.namespace
    owner = vms.controller_of(pod.metadata, vms.VMI)
    if owner is None:
        return
    try:
        vmi = reading.one(api, vms.vmi_path(namespace, owner.name), vms.Instance)
        above = vms.controller_of(vmi.metadata, vms.VM) if vmi else None
        if vmi is None or vmi.metadata.uid != owner.uid or above is None:
            yield f"VirtualMachineInstance {owner.name}, which no VM owns: nothing to come back to"
            return
        vm = reading.one(api, vms.vm_path(namespace, above.name), vms.VirtualMachine)
    except ClusterError as exc:
        yield f"its VM cannot be looked at: {exc}"
        return
    args = wiring.sticky_args(decider, pod) or vms.StickyArgs()
    node = vms.recorded_node(vm, args) if vm else ""
    recorded = f"comes back to {node}" if node else "has no node recorded yet"
    yield f"VirtualMachine {above.name}: {recorded}"
    yield f"holdfast sticky show {above.name} -n {namespace} says more"
