"""Holdfast's objects, gates, finalizers and records, which `holdfast uninstall` removes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.webhook.cli import inspection, rights, terminal
from holdfast.webhook.cli.configured import FILE
from holdfast.webhook.config import config
from holdfast.webhook.controller.pending import with_due
from holdfast.webhook.controller.releaser import has_room, release_patch
from holdfast.webhook.errors import ApiStatusError, ConfigurationError
from holdfast.webhook.kube import discovery, listing, patching
from holdfast.webhook.kube.api import Api
from holdfast.webhook.model import approvals, kubevirt
from holdfast.webhook.model.annotations import OWN_PREFIX, Due
from holdfast.webhook.model.edits import Operation
from holdfast.webhook.model.kubevirt import VirtualMachine
from holdfast.webhook.model.limits import MAX_GATES
from holdfast.webhook.model.objects import ApiObject, Pod
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.plugins.after.targets import AFTER
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.registration import configurations
from holdfast.webhook.report import table
from holdfast.webhook.report.doctor.installation import CONTROLLER
from holdfast.webhook.report.doctor.rollouts import WEBHOOK
from holdfast.webhook.runtime import dev

RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_MOST_NAMED = 3
_NAME = "app.kubernetes.io/name"
_OF_OTHERS = (
    ("v1", "persistentvolumeclaims"),
    ("apps/v1", "statefulsets"),
    ("apps/v1", "deployments"),
    ("apps/v1", "daemonsets"),
    ("batch/v1", "cronjobs"),
    ("v1", "pods"),
)
"""Kinds that count as workloads of others in a namespace."""
_ENDLESS = {approvals.GATE, AFTER}
"""Gates of pods without a due time."""


def pods(api: Api) -> list[Pod]:
    """Return the pods with gates or finalizers of Holdfast. Raises ClusterError."""
    candidates = listing.objects(api, listing.pods_path(""), Pod)
    return [pod for pod in candidates if own(pod.gates) or own(pod.finalizers)]


def landed(api: Api) -> list[Pod]:
    """Return bound VM pods with Holdfast's finalizer, whose node is not recorded yet.

    Other pods do not count: a user may have added the finalizer. Raises ClusterError.
    """
    launchers = listing.objects(
        api, listing.pods_path(""), Pod, {"labelSelector": kubevirt.LAUNCHERS}
    )
    return [pod for pod in launchers if kubevirt.STICKY in pod.finalizers and pod.spec.node_name]


def waiting(held_pods: Sequence[Pod]) -> str:
    """Return a message about the held pods, and those of them that may wait forever."""
    text = f"waiting for {table.counted(len(held_pods), 'held pod')} ({named(held_pods)})"
    if endless := [pod for pod in held_pods if not _ENDLESS.isdisjoint(pod.gates)]:
        text += (
            f"; {len(endless)} of them {'has' if len(endless) == 1 else 'have'} no due time"
            f" ({named(endless)}): approve or release them, or use --release now"
        )
    return text


def is_own(api: Api, namespace: str) -> bool:
    """Return whether a namespace has Holdfast's label or a Deployment, or is being deleted.

    After an interrupted uninstall, a terminating namespace may have lost its Deployments. Raises
    ClusterError.
    """
    path = api_path("v1", "namespaces", name=namespace)
    document: dict[str, Any] | None = listing.one(api, path, dict)
    if document is None:
        return False
    metadata = document["metadata"]
    name = (metadata.get("labels") or {}).get(_NAME)
    return (
        name == "holdfast"
        or "deletionTimestamp" in metadata
        or any(
            inspection.deployment(api, namespace, component) is not None
            for component in (WEBHOOK, CONTROLLER)
        )
    )


def foreign(api: Api, namespace: str) -> str:
    """Return the TYPE/NAME of an object of others in a namespace; empty if there is none.

    Raises ClusterError.
    """
    for group, plural in _OF_OTHERS:
        path = api_path(group, plural, namespace)
        objects = listing.objects(api, path, ApiObject, {"labelSelector": f"{_NAME}!=holdfast"})
        if obj := next(objects, None):
            return typed(f"{path}/{obj.metadata.name}")
    return ""


def bound_namespaces(api: Api) -> set[str]:
    """Return the namespaces of ServiceAccounts with the controller's role. Raises ClusterError."""
    path = f"{RBAC}/clusterrolebindings/{CONTROLLER}"
    binding: dict[str, Any] = listing.one(api, path, dict) or {}
    subjects = binding.get("subjects") or ()
    return {subject["namespace"] for subject in subjects if subject["kind"] == "ServiceAccount"}


def is_dev_registered(api: Api) -> bool:
    """Return whether `holdfast dev` has registered webhooks, which uninstall keeps."""
    paths = configurations.paths(dev.NAME)
    return any(listing.one(api, path, msgspec.Raw) is not None for path in paths)


def configured(api: Api, namespace: str) -> Iterator[config.Configuration]:
    """Yield the current and earlier configurations that are valid. Raises ClusterError."""
    for config_map in listing.objects(api, api_path("v1", "configmaps", namespace), dict[str, Any]):
        text = (config_map.get("data") or {}).get(FILE)
        if text is None:
            continue
        try:
            yield config.parse(text.encode(), FILE)
        except ConfigurationError as exc:  # no replica can have used it
            terminal.report(f"ignoring an invalid configuration: {exc}")


def recorded_vms(api: Api, keys: Sequence[str]) -> list[VirtualMachine]:
    """Return the VMs with one of these annotations; none without KubeVirt. Raises ClusterError."""
    try:
        vms = list(listing.objects(api, kubevirt.vm_path("", ""), VirtualMachine))
    except ApiStatusError as exc:
        if exc.status == 404 and not discovery.serves(api, "virtualmachines"):
            return []
        raise
    return [vm for vm in vms if set(keys) & vm.annotations.keys()]


def typed(path: str) -> str:
    """Return the TYPE/NAME of an object from its API path, as kubectl prints it."""
    *root, plural, name = path.split("/")
    group = f".{root[2]}" if root[1] == "apis" else ""
    singular = f"{plural[:-3]}y" if plural.endswith("ies") else plural[:-1]
    return f"{singular}{group}/{name}"


def own(names: Iterable[str]) -> list[str]:
    """Return Holdfast's gates or finalizers among these names."""
    return [name for name in names if name.startswith(OWN_PREFIX)]


def clearing(pod: Pod, now_ms: int) -> list[Operation]:
    """Return a patch that releases an unchanged pod and removes Holdfast's finalizers."""
    indexes = [index for index, name in enumerate(pod.finalizers) if own([name])]
    # from the end, to keep the other indexes valid
    removals: list[Operation] = [
        {"op": "remove", "path": f"/metadata/finalizers/{index}"} for index in reversed(indexes)
    ]
    if len(indexes) > MAX_GATES:  # a user added them, and the API server accepts 10,000 operations
        foreign_finalizers = [name for name in pod.finalizers if not own([name])]
        removals = [{"op": "replace", "path": "/metadata/finalizers", "value": foreign_finalizers}]
    if own(pod.gates):
        pending = with_due(pod, Due(now_ms))
        pending = pending._replace(annotated=pending.annotated and has_room(pod))
        return [*release_patch(pending, now_ms), *removals]
    return patching.guarded(pod.metadata.uid, pod.metadata.resource_version, removals)


def vm_keys(configs: Iterable[config.Configuration]) -> list[str]:
    """Return the annotations that Holdfast writes on VMs: the defaults and the configured ones.

    `holdfast.dev/sticky` is not included: users write it.
    """
    configured_keys = [
        plugin.args.get("nodeAnnotation")
        for configuration in configs
        for profile in configuration.profiles
        for plugin in profile.plugin_config
        if plugin.name == "sticky"
    ]
    default_keys = (kubevirt.STICKY_NODE, kubevirt.STICKY_NODE_UID)
    return list(
        dict.fromkeys([*default_keys, *(key for key in configured_keys if isinstance(key, str))])
    )


def rest(namespace: str) -> list[str]:
    """Return the paths to remove last, in order: policies, namespace, RBAC objects."""
    accounts = (CONTROLLER, f"{CONTROLLER}-after", f"{CONTROLLER}-kubevirt", WEBHOOK)
    roles = (*accounts, rights.FREEZER, pod_policies.APPROVER, pod_policies.RELEASER)
    return [
        *(
            f"{_ADMISSION}/{kind}/{name}"
            for name in pod_policies.POLICIES
            for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies")
        ),
        api_path("v1", "namespaces", name=namespace),
        *(f"{RBAC}/clusterrolebindings/{name}" for name in accounts),
        *(f"{RBAC}/clusterroles/{name}" for name in roles),
    ]


def named(pod_list: Sequence[Pod]) -> str:
    """Return some of the pods' names, for a message."""
    return table.some(["/".join(pod.key) for pod in pod_list], _MOST_NAMED)
