"""The groups of pods that share a pace, for all profiles of a process. Pure."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.model import durations
from holdfast.webhook.model.objects import Metadata, ObjectKey, Pod, PodStatus
from holdfast.webhook.model.pace import Limits
from holdfast.webhook.plugins.pace import args as pace_args
from holdfast.webhook.plugins.pace.args import NamedPace, Paces
from holdfast.webhook.plugins.pace.group import PaceGroup, Rank

GroupKey = tuple[str, str]
"""The pace's name and its scope: a namespace, a namespace and label, or empty for all pods."""
_SWEEP_AFTER = 1_000
_MAX_QUIET = 10_000
_LABEL_LENGTH = 16
_timeout_ms = lru_cache(durations.parse_delay)  # for configured timeouts


class PacedPod(Pod, frozen=True):
    """A pod with its status."""

    status: PodStatus = PodStatus()

    @property
    def is_over(self) -> bool:
        """Whether the pod has terminated, and will never run again."""
        return self.status.phase in {"Succeeded", "Failed"}

    def is_starting(self, until: str) -> bool:
        """Return whether the pod has not reached the state `until` yet, but still may."""
        if self.metadata.deletion_timestamp or self.is_over:
            return False
        if until == "Scheduled":
            return not self.spec.node_name
        if until == "Running":
            return self.status.phase != "Running"
        conditions = self.status.conditions or ()
        return not any(
            condition.type == until and condition.status == "True" for condition in conditions
        )


class PaceMember(NamedTuple):
    """A waiting or starting pod, its group, and how long it may be starting."""

    pod: ObjectKey
    group_key: GroupKey
    group: PaceGroup
    pace: NamedPace
    limits: Limits
    timeout_ms: int

    def named(self, uid: str) -> Metadata:
        """Return the metadata that an Event needs."""
        return Metadata(namespace=self.pod[0], name=self.pod[1], uid=uid)


class PaceGroups:
    """The groups with waiting or starting pods, and the releases of others. Not thread-safe."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.paces: dict[str, tuple[NamedPace, Limits]] = {}
        self._now_ms = now_ms
        self._groups: dict[GroupKey, PaceGroup] = {}
        self._quiet: dict[GroupKey, tuple[int, array[int]]] = {}
        """The releases of groups without waiting or starting pods, and until when they count."""
        self._sweep_at = _SWEEP_AFTER

    def add(self, paces: Paces) -> None:
        """Add a profile's paces. Raises ConfigurationError if another profile's pace differs."""
        for name, pace in paces.items():
            if self.paces.setdefault(name, pace) != pace:
                raise ConfigurationError(
                    f"paces: {name!r} differs from the pace of this name in another profile, with "
                    "which it shares its slots: define both alike, or rename one"
                )

    def find(self, pod: Pod) -> PaceMember:
        """Return the group of a pod, and its pace. Raises InvalidValueError.

        All pods of an owner with inline limits share a group, so the limits can be changed while
        pods are starting.
        """
        pace, limits = pace_args.read(pod, self.paces)
        namespace = pod.metadata.namespace
        # Owner references can be edited, and change if a ReplicaSet orphans a pod whose labels no
        # longer match. The guard protects this label.
        label = pod.labels.get(pace_args.KEY) or label_of(pod, pace, limits)
        scope = {"cluster": "", "namespace": namespace, "owner": f"{namespace}/{label}"}
        key = (pace.name, scope[pace.scope])
        group = self._groups.get(key)
        if group is None:
            _, releases = self._quiet.pop(key, (0, None))
            group = self._groups[key] = PaceGroup(releases)
        group.period_ms = max(group.period_ms, limits.period_ms)
        return PaceMember(pod.key, key, group, pace, limits, _timeout_ms(pace.timeout))

    def retire(self, key: GroupKey, group: PaceGroup) -> None:
        """Drop a group without waiting or starting pods, but keep the releases that still count."""
        if not group.is_quiet or self._groups.get(key) is not group:
            return
        del self._groups[key]
        if group.releases:
            self._quiet[key] = group.releases[-1] + group.period_ms, group.releases
        if len(self._quiet) >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Drop expired releases, and the releases of groups in excess of 10,000.

        If a group is dropped before it expires, its next pod may start within the period of an
        earlier release. Namespaces with the most groups lose groups first, starting with the group
        that expires next.
        """
        now_ms, numbers = self._now_ms(), Counter[str]()

        def number(key: GroupKey) -> int:
            """Return the number of a group within its namespace."""
            namespace = key[1].partition("/")[0]
            numbers[namespace] += 1
            return numbers[namespace]

        keys = [key for key, (end_ms, _) in self._quiet.items() if end_ms > now_ms]
        keys.sort(key=lambda key: self._quiet[key][0], reverse=True)
        self._quiet = {key: self._quiet[key] for key in sorted(keys, key=number)[:_MAX_QUIET]}
        self._sweep_at = len(self._quiet) + _SWEEP_AFTER

    def recall(self) -> None:
        """Return all called pods to their queues."""
        for group in self._groups.values():
            group.recall()

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of starting and waiting pods, by pace name or `inline`."""
        counts = dict.fromkeys(self.paces, (0, 0))
        for (name, _), group in self._groups.items():
            label = name if name in self.paces else "inline"
            starting, waiting = counts.get(label, (0, 0))
            counts[label] = starting + len(group.starting), waiting + group.waiting
        return counts

    def __len__(self) -> int:
        return len(self._groups) + len(self._quiet)


def label_of(pod: Pod, pace: NamedPace, limits: Limits) -> str:
    """Return the label of a new pod: the pace's name, or a hash that pods of one owner share."""
    if pace.scope != "owner":
        return pace.name
    owners = pod.metadata.owner_references or ()
    owner = next((reference.uid for reference in owners if reference.controller), str(limits))
    return hashlib.sha256(owner.encode()).hexdigest()[:_LABEL_LENGTH]


def rank_of(pod: Pod, due_ms: int) -> Rank:
    """Return a pod's rank in the queue."""
    return due_ms, -(pod.spec.priority or 0), pod.created_ms
