"""Pods of VMs, by their VMI. Pure: no I/O, no clock, no locks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.kubevirt import LauncherPod
from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.sticky import kept


def instance_key(pod: LauncherPod) -> ObjectKey:
    """Return the key of a pod's VMI, or the pod's key if it does not have a VMI."""
    owner = kubevirt.vmi_of(pod)
    return pod.metadata.namespace, pod.metadata.name if owner is None else owner.name


def cannot_provision(pod: LauncherPod) -> bool:
    """Return whether a pod that only binds volumes, without our finalizer, finds no node."""
    provisions = kubevirt.EPHEMERAL_PROVISIONING in pod.annotations and not pod.has_finalizer
    has_vmi = kubevirt.vmi_of(pod) is not None
    return provisions and has_vmi and pod.is_unschedulable and not pod.has_ended


class LauncherIndex:
    """Pods of VMs, indexed by VMI.

    An orphan is a pod that no watch reports any more. It must be read by name.
    """

    def __init__(self) -> None:
        self._pods: dict[ObjectKey, LauncherPod] = {}
        self._by_instance: dict[ObjectKey, set[ObjectKey]] = {}
        self._orphans: set[ObjectKey] = set()

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._pods

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(self._pods)

    def get(self, key: ObjectKey) -> LauncherPod | None:
        """Return a pod, or None."""
        return self._pods.get(key)

    def ended(self) -> int:
        """Return the number of pods that have ended or are being deleted."""
        return sum(pod.has_ended for pod in self._pods.values())

    def instances(self) -> list[ObjectKey]:
        """Return the keys of all VMIs with pods in the index."""
        return list(self._by_instance)

    def of(self, instance: ObjectKey) -> Sequence[LauncherPod]:
        """Return the pods of a VMI, oldest first."""
        pods = [self._pods[key] for key in self._by_instance.get(instance, ())]
        return sorted(pods, key=lambda pod: (pod.created_ms, pod.metadata.name))

    def orphans(self, instance: ObjectKey) -> Sequence[ObjectKey]:
        """Return the keys of a VMI's orphans."""
        return [key for key in self._by_instance.get(instance, ()) if key in self._orphans]

    def keep(self, pod: LauncherPod, *, orphan: bool = False) -> ObjectKey:
        """Add or update a pod, and return the key of its VMI."""
        self.forget(pod.key)
        instance = instance_key(pod)
        self._pods[pod.key] = kept.pod(pod)
        self._by_instance.setdefault(instance, set()).add(pod.key)
        if orphan:
            self._orphans.add(pod.key)
        return instance

    def update(self, pod: LauncherPod, *, belongs: bool) -> ObjectKey | None:
        """Keep or drop a pod. Return its VMI's key if more than the pod's progress has changed."""
        before = self.get(pod.key)
        instance = self.keep(pod) if belongs else self.forget(pod.key)
        after = self.get(pod.key)
        return None if before and after and _is_same(before, after) else instance

    def mark_unwatched(self, key: ObjectKey) -> ObjectKey | None:
        """Mark a pod as an orphan. Return its VMI's key, or None if the pod is unknown."""
        pod = self._pods.get(key)
        if pod is None:
            return None
        self._orphans.add(key)
        return instance_key(pod)

    def forget(self, key: ObjectKey, uid: str | None = None) -> ObjectKey | None:
        """Drop a pod, if its uid matches. Return its VMI's key, or None if no pod was dropped."""
        pod = self._pods.get(key)
        if pod is None or uid not in {None, pod.metadata.uid}:
            return None
        del self._pods[key]
        self._orphans.discard(key)
        instance = instance_key(pod)
        self._by_instance[instance].discard(key)
        if not self._by_instance[instance]:
            del self._by_instance[instance]
        return instance


def _is_same(before: LauncherPod, after: LauncherPod) -> bool:
    """Return whether a pod is unchanged, except for its progress, which its VMI reports."""
    old, new = (
        (
            pod.metadata.uid,
            pod.metadata.owner_references,
            pod.metadata.labels,
            pod.spec.node_name,
            pod.has_ended,
            pod.is_unschedulable,
        )
        for pod in (before, after)
    )
    return old == new
