"""`holdfast explain`: explain why a pod is held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from holdfast.webhook.cli import commands, nodes, options, targets, terminal
from holdfast.webhook.cli.freeze_lookup import FreezeLookup
from holdfast.webhook.cli.pace_lookup import pace_places
from holdfast.webhook.cli.targets import NamedTarget
from holdfast.webhook.errors import ApiStatusError, ClusterError, CommandError
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api
from holdfast.webhook.kube.lookup import MOST_OF_A_COMMAND, ClusterLookup
from holdfast.webhook.model import kubevirt, review
from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.plugins import sticky_policy
from holdfast.webhook.report import explanation, obstacles, trace
from holdfast.webhook.report.next_steps import PodFacts
from holdfast.webhook.report.pod_status import NodeState, PodWithStatus
from holdfast.webhook.report.scope import AdmissionScope
from holdfast.webhook.runtime import pipelines

_RECREATING = frozenset({"StatefulSet", "DaemonSet"})
"""Kinds that do not replace a pod of an old template until it is deleted."""

EXAMPLES = """\b
Examples:
  holdfast explain web-0
  holdfast explain deployment/web    explains each of its pods
  holdfast describe pod/web-0 -n shop"""


@commands.command(epilog=EXAMPLES)
@click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="(POD | TYPE/NAME)...",
    shell_complete=commands.complete_pods,
)
@options.installed
@options.target
def explain(
    *,
    names: tuple[str, ...],
    installed: options.Installed,
    target: options.Target,
) -> None:
    """Explain why a pod is held, and what to do about it.

    `holdfast explain` and `holdfast describe` are the same command.
    """
    named_targets = targets.parse_all(names)
    time = listing.CommandClock()
    cluster = target.connect(time.observe)
    handle = Handle()
    handle.connect(lookup=ClusterLookup(lambda: cluster, per_minute=MOST_OF_A_COMMAND))
    decider = pipelines.release_decider(installed.setup(cluster), handle=handle)
    freeze_of = FreezeLookup(cluster, cluster.namespace, time.now_ms, installed.own)
    scope = AdmissionScope(decider.profiles.selectors, freeze_of.labels_of, installed.own)
    lines: list[terminal.Styled] = []
    pods, problems = _named(cluster, cluster.namespace, named_targets)
    places = pace_places(cluster, pods.values(), decider, time.now_ms(), freeze_of)
    for key, pod in pods.items():
        facts = PodFacts(
            pod=pod,
            now_ms=time.now_ms(),
            trace=_asked_again(pod, decider, time.now_ms()),
            nodes=_nodes(cluster, pod),
            freeze=freeze_of(pod.metadata.namespace),
            vm=[*_vm(cluster, pod, decider)],
            template=_template(cluster, pod),
            place=places.get(key),
            unserved=scope.why_not_served(pod.metadata.namespace, pod.labels),
        )
        for section in explanation.explain(facts, decider):
            lines += [(section.title, "bold"), *((f"  {line}", "") for line in section.lines)]
    terminal.write(lines)
    terminal.check_outcome(problems, len(pods) + len(problems))


describe = explain
"""The same command, under the name that kubectl users try first."""


def _named(
    api: Api, namespace: str, named_targets: Sequence[NamedTarget]
) -> tuple[dict[ObjectKey, PodWithStatus], list[str]]:
    """Return the named pods, and the problems with the other arguments."""
    pods: dict[ObjectKey, PodWithStatus] = {}
    problems = []
    for target in named_targets:
        try:
            pods |= {pod.key: pod for pod in _pods(api, namespace, target)}
        except CommandError as exc:
            problems.append(str(exc))
    return pods, problems


def _pods(api: Api, namespace: str, target: NamedTarget) -> Sequence[PodWithStatus]:
    pods = target.pods(api, namespace, PodWithStatus)
    if not pods:
        raise CommandError(
            f"{target.kind} {target.name} in namespace {namespace} has no pods; see kubectl "
            f"describe {target.kind} {target.name} -n {namespace}"
        )
    return pods


def _asked_again(pod: PodWithStatus, decider: ReleaseDecider, now_ms: int) -> trace.Trace:
    """Return a trace of the plugins for the pod as it was created, as far as that is known."""
    created_pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))
    request = review.Request(
        uid="explain",
        kind=review.GroupVersionKind("Pod", "", "v1"),
        operation="CREATE",
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        object=msgspec.Raw(msgspec.json.encode(created_pod)),
        user_info=review.UserInfo(_creator(pod, decider)),
    )
    return trace.mutate(
        decider.profiles, review.PodReview(request, created_pod, created_pod), now_ms=now_ms
    )


def _creator(pod: PodWithStatus, decider: ReleaseDecider) -> str:
    """Return virt-controller's account for a VM pod; empty for other pods."""
    sticky = pipelines.sticky_plugin(decider.profiles, pod)
    if sticky is None or kubevirt.controller_of(pod.metadata, kubevirt.VMI) is None:
        return ""
    try:
        return sticky.virt_controller.account()
    except ClusterError:
        return kubevirt.CONTROLLER_ACCOUNT  # the plugin looks it up again, and reports the error


def _nodes(api: Api, pod: PodWithStatus) -> Sequence[NodeState]:
    """Return the states of the nodes to which a pod is bound or restricted."""
    if pod.spec.node_name:
        return [*nodes.bound(api, pod.spec.node_name)]
    claims = [volume.claim for volume in pod.spec.volumes or () if volume.claim]
    return [*nodes.pinned(api, pod, claims)]


def _template(api: Api, pod: PodWithStatus) -> obstacles.Template | None:
    """Return the current template of a pod's StatefulSet or DaemonSet, or None if unreadable."""
    owners = pod.metadata.owner_references or ()
    owner = next((ref for ref in owners if ref.controller and ref.kind in _RECREATING), None)
    if owner is None or pod.spec.node_name:
        return None
    resource, namespace = f"{owner.kind.lower()}s", pod.metadata.namespace
    path = api_path("apps/v1", resource, namespace, owner.name)
    try:
        workload = listing.one(api, path, dict[str, Any]) or {}
    except ApiStatusError:
        return None
    metadata = workload.get("spec", {}).get("template", {}).get("metadata")
    if metadata is None or workload["metadata"].get("uid") != owner.uid:
        return None
    return obstacles.Template(owner.kind, owner.name, metadata.get("annotations") or {})


def _vm(api: Api, pod: PodWithStatus, decider: ReleaseDecider) -> Iterator[str]:
    """Yield lines about a pod's VM and its recorded node."""
    namespace = pod.metadata.namespace
    owner = kubevirt.controller_of(pod.metadata, kubevirt.VMI)
    if owner is None:
        return
    try:
        vmi = listing.one(api, kubevirt.vmi_path(namespace, owner.name), kubevirt.Instance)
        vm_reference = kubevirt.vm_of(vmi) if vmi else None
        if vmi is None or vmi.metadata.uid != owner.uid or vm_reference is None:
            yield f"VirtualMachineInstance {owner.name} has no owning VM, so no recorded node"
            return
        vm = listing.one(
            api, kubevirt.vm_path(namespace, vm_reference.name), kubevirt.VirtualMachine
        )
    except ClusterError as exc:
        yield f"its VM cannot be read: {exc}"
        return
    args = pipelines.sticky_args(decider.profiles, pod) or sticky_policy.StickyArgs()
    node = sticky_policy.recorded_node(vm, args) if vm else ""
    message = f"returns to {node}" if node else "has no recorded node yet"
    yield f"VirtualMachine {vm_reference.name}: {message}"
    if vm and not node and pod.spec.node_name and not vmi.has_run:
        yield f"{pod.spec.node_name} is recorded once the VM runs; if it ends before, no node is"
    if vm and not pod.spec.node_name:
        yield from filter(None, [nodes.recreated(api, vm, args)])
    yield f"holdfast sticky show {vm_reference.name} -n {namespace} shows more"
