"""Read nodes and volumes for commands."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api
from holdfast.webhook.model.kubevirt import VirtualMachine
from holdfast.webhook.model.nodes import Node, PersistentVolume, PersistentVolumeClaim
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.plugins import sticky_policy
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.report import pod_status
from holdfast.webhook.report.pod_status import HOSTNAME, NodeState, Pin

MOST_PINS = MOST_CLAIMS = 20
"""Maximum nodes and volumes to read for a pod: users may name 50,000."""
_TIME = "%Y-%m-%d at %H:%M:%S UTC"


def node_state(
    api: Api, name: str, pod: Pod | None = None, claims: Sequence[str] = ()
) -> NodeState:
    """Return the state of a node, and whether it accepts a pod with these claims.

    The state includes objects that could not be read.
    """
    try:
        node = _read(api, name)
    except ApiStatusError as exc:
        return _unreadable(name, exc)
    return _state(api, name, node, pod, claims)


def pinned(api: Api, pod: Pod, claims: Sequence[str]) -> Iterator[NodeState]:
    """Yield the states of the nodes that a pod is restricted to, as the scheduler finds them."""
    pins = pod_status.pins(pod)
    for pin in pins[:MOST_PINS]:
        if pin.by_label:
            yield from _labelled(api, pin, pod, claims)
        else:
            yield node_state(api, pin.value, pod, claims)
    if len(pins) > MOST_PINS:
        summary = f"{len(pins) - MOST_PINS:,} other nodes"
        yield NodeState(summary, "they were not checked", unchecked=True)


def bound(api: Api, name: str) -> Iterator[NodeState]:
    """Yield the state of the node to which a pod is bound, if it is missing or not ready."""
    try:
        node = _read(api, name)
    except ApiStatusError:
        return
    if node is None:
        yield pod_status.node_state(name, None)
    elif node.not_ready:
        yield pod_status.not_ready(name, node)


def recreated(api: Api, vm: VirtualMachine, args: StickyArgs) -> str:
    """Return a warning if a VM's node is newer than its record; empty if not, or if unknown."""
    name, recorded_at = sticky_policy.recorded_node(vm, args), vm.written_at(args.node_annotation)
    if not name or recorded_at is None:
        return ""
    try:
        node = _read(api, name)
    except ApiStatusError:
        return ""  # the node's state reports it
    created_at = node.metadata.creation_timestamp if node else None
    if created_at is None or created_at <= recorded_at:
        return ""
    return (
        f"{name} was created on {created_at:{_TIME}}, after it was recorded on "
        f"{recorded_at:{_TIME}}: it may be another node of that name, without the VM's disks"
    )


def _read(api: Api, name: str) -> Node | None:
    return listing.one(api, api_path("v1", "nodes", name=name), Node)


def _labelled(api: Api, pin: Pin, pod: Pod, claims: Sequence[str]) -> Iterator[NodeState]:
    label = f"{HOSTNAME}={pin.value}"
    try:
        nodes = [*listing.objects(api, api_path("v1", "nodes"), Node, {"labelSelector": label})]
    except ApiStatusError as exc:
        yield _unreadable(pin.value, exc)
        return
    for node in nodes:
        yield _state(api, node.metadata.name, node, pod, claims)
    if not nodes:
        yield NodeState(f"a node labeled {label}", "there is none", missing=True)


def _unreadable(name: str, exc: ApiStatusError) -> NodeState:
    problem = f"it cannot be read ({exc})"
    if exc.status == 403:
        problem = "you may not read nodes: it was not checked whether it exists"
    return NodeState(name, problem, unchecked=True)


def _state(
    api: Api, name: str, node: Node | None, pod: Pod | None, claims: Sequence[str]
) -> NodeState:
    state = pod_status.node_state(name, node, pod)
    if node is None or pod is None:
        return state
    remarks = []
    for claim in claims[:MOST_CLAIMS]:
        try:
            volume = _volume(api, pod.metadata.namespace, claim)
        except ApiStatusError as exc:
            remarks.append(f"the volume of claim {claim} cannot be read ({exc})")
            continue
        if volume is not None:
            state = pod_status.with_volume(state, node, claim, volume)
    if len(claims) > MOST_CLAIMS:
        remarks.append(f"{len(claims) - MOST_CLAIMS:,} other claims were not checked")
    return replace(state, remarks=tuple(remarks))


def _volume(api: Api, namespace: str, claim: str) -> PersistentVolume | None:
    """Return the volume of a claim, or None if the claim or its volume does not exist."""
    path = api_path("v1", "persistentvolumeclaims", namespace, claim)
    pvc = listing.one(api, path, PersistentVolumeClaim)
    name = pvc.spec.volume_name if pvc else ""
    if not name:
        return None
    return listing.one(api, api_path("v1", "persistentvolumes", name=name), PersistentVolume)
