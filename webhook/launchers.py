"""The pods of VMs that our finalizer keeps, by their VMI. Pure: no I/O, no clock, no locks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from webhook import vms
from webhook.objects import Names
from webhook.vms import LauncherPod


def instance_key(pod: LauncherPod) -> Names:
    """Name the VMI that a pod belongs to; one that belongs to none is settled by itself."""
    owner = vms.controller_of(pod.metadata, vms.VMI)
    return pod.metadata.namespace, pod.metadata.name if owner is None else owner.name


class Launchers:
    """What is known of kept pods.

    A stray is one of which no watch tells any more: it has to be read before it is believed.
    """

    def __init__(self) -> None:
        self._pods: dict[Names, LauncherPod] = {}
        self._by_instance: dict[Names, set[Names]] = {}
        self._strays: set[Names] = set()

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, key: Names) -> bool:
        return key in self._pods

    def __iter__(self) -> Iterator[Names]:
        return iter(self._pods)

    def ended(self) -> int:
        """Count those that have ended, or are being deleted."""
        return sum(pod.has_ended for pod in self._pods.values())

    def instances(self) -> list[Names]:
        """Name all VMIs that have kept pods."""
        return list(self._by_instance)

    def of(self, instance: Names) -> Sequence[LauncherPod]:
        """Give a VMI's pods, the oldest first."""
        found = [self._pods[key] for key in self._by_instance.get(instance, ())]
        return sorted(found, key=lambda pod: (pod.created_ms, pod.metadata.name))

    def strays(self, instance: Names) -> Sequence[Names]:
        """Name those of a VMI's pods that are strays."""
        return [key for key in self._by_instance.get(instance, ()) if key in self._strays]

    def keep(self, pod: LauncherPod, *, stray: bool = False) -> Names:
        """Note a pod as it is now, and name its VMI."""
        self.forget(pod.key)
        instance = instance_key(pod)
        self._pods[pod.key] = pod
        self._by_instance.setdefault(instance, set()).add(pod.key)
        if stray:
            self._strays.add(pod.key)
        return instance

    def lose(self, key: Names) -> Names | None:
        """Note that no watch tells of a pod any more, and name its VMI; None for no kept pod."""
        pod = self._pods.get(key)
        if pod is None:
            return None
        self._strays.add(key)
        return instance_key(pod)

    def forget(self, key: Names, uid: str | None = None) -> Names | None:
        """Drop a pod, if it is still that one, and name its VMI; None for no such pod."""
        pod = self._pods.get(key)
        if pod is None or uid not in {None, pod.metadata.uid}:
            return None
        del self._pods[key]
        self._strays.discard(key)
        instance = instance_key(pod)
        self._by_instance[instance].discard(key)
        if not self._by_instance[instance]:
            del self._by_instance[instance]
        return instance
