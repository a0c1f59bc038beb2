"""Places of held pods in line for their paces, and numbers of starting pods. Pure.

The pace plugin defines the groups and the order. Only the controller knows which pods were ready
before, so here a pod that is no longer ready counts as starting until its timeout.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.model.annotations import released_ms
from holdfast.webhook.model.objects import ObjectKey, Pod, SchedulingGate
from holdfast.webhook.model.pace import Limits
from holdfast.webhook.plugins.pace import args as pace_args
from holdfast.webhook.plugins.pace.args import NamedPace
from holdfast.webhook.plugins.pace.group import Rank
from holdfast.webhook.plugins.pace.groups import GroupKey, PacedPod, PaceGroups, PaceMember, rank_of
from holdfast.webhook.plugins.pace.plugin import Pace
from holdfast.webhook.plugins.pace.slots import GATE

_SUFFIXES = "thstndrd"
"""The suffixes of 0 to 3."""


@dataclass(frozen=True, slots=True)
class PacePlace:
    """The state of a held pod's pace; `number` is the pod's place in line, or 0."""

    pace: NamedPace
    limits: Limits
    starting: int
    number: int = 0

    @property
    def replaces(self) -> str:
        """The reason from a plugin that does not know other pods, to replace with `str(self)`."""
        return f"{Pace.name}: {self.limits.words}"

    def __str__(self) -> str:
        parts = [self.limits.words]
        if self.limits.starting is not None:
            rate = Limits(None, self.limits.releases, self.limits.period_ms).words
            parts = [f"{self.starting} of {self.limits.starting} starting", rate]
        parts.append(f"{ordinal(self.number)} in line" if self.number else "")
        name = f"{Pace.name} {self.pace.name}".rstrip()
        return f"{name}: {', '.join(filter(None, parts))}"


@dataclass(frozen=True, slots=True)
class PaceLines:
    """Finds pods' places in line; `is_frozen` returns whether a namespace is frozen now."""

    decider: ReleaseDecider
    now_ms: int
    is_frozen: Callable[[str], bool]

    def scopes(self, pods: Iterable[Pod]) -> set[str]:
        """Return the namespaces whose pods count for paces of held pods; `""` stands for all."""
        groups = self._groups()
        namespaces = set()
        for pod in pods:
            if GATE in pod.gates and (member := _find(groups, pod)):
                namespaces.add("" if member.pace.scope == "cluster" else pod.metadata.namespace)
        return namespaces

    def places(self, pods: Iterable[PacedPod], namespace: str) -> Mapping[ObjectKey, PacePlace]:
        """Return the places of held pods. `pods` are all pods of `namespace`, held or not.

        If `namespace` is empty, they are all pods of the cluster.
        """
        groups = self._groups()
        starting: Counter[GroupKey] = Counter()
        lines: dict[GroupKey, list[tuple[Rank, str]]] = defaultdict(list)
        held: list[tuple[PaceMember, str]] = []
        for pod in pods:
            member = _find(groups, pod)
            if member is None or (namespace and member.pace.scope == "cluster"):
                continue
            key = member.group_key
            if GATE not in pod.gates:
                starting[key] += self._is_starting(pod, member)
                continue
            held.append((member, pod.metadata.uid))
            if (due_ms := self._waits_since(pod)) is not None:
                lines[key].append((rank_of(pod, due_ms), pod.metadata.uid))
        numbers = dict(_numbers(lines.values()))
        return {
            held_member.pod: PacePlace(
                held_member.pace,
                held_member.limits,
                starting[held_member.group_key],
                numbers.get(uid, 0),
            )
            for held_member, uid in held
        }

    def _groups(self) -> PaceGroups:
        groups = PaceGroups(lambda: self.now_ms)
        for plugin in self.decider.profiles.plugins:
            if isinstance(plugin, Pace):
                groups.add(pace_args.check(plugin.args))
        return groups

    def _is_starting(self, pod: PacedPod, member: PaceMember) -> bool:
        began_ms = released_ms(pod.annotations, created_ms=pod.created_ms) or pod.created_ms
        return began_ms + member.timeout_ms > self.now_ms and pod.is_starting(member.pace.until)

    def _waits_since(self, pod: Pod) -> int | None:
        """Return when a pod joined the line (ms); None while another hold or a freeze applies."""
        if self.is_frozen(pod.metadata.namespace):
            return None
        other_gates = [SchedulingGate(gate) for gate in pod.gates if gate != GATE]
        if not other_gates:
            return pod.created_ms
        spec = msgspec.structs.replace(pod.spec, scheduling_gates=other_gates)
        due = self.decider.due(msgspec.structs.replace(pod, spec=spec), self.now_ms)
        return due.at_ms if due.at_ms <= self.now_ms else None


def ordinal(number: int) -> str:
    """Format a place in line: `1st`, `12th`, `23rd`."""
    digit = number % 10 if number // 10 % 10 != 1 else 0
    index = 2 * digit if digit < len(_SUFFIXES) / 2 else 0
    return f"{number}{_SUFFIXES[index : index + 2]}"


def _find(groups: PaceGroups, pod: Pod) -> PaceMember | None:
    try:
        return groups.find(pod)
    except InvalidValueError:
        return None  # it does not count for any pace


def _numbers(lines: Iterable[list[tuple[Rank, str]]]) -> Iterator[tuple[str, int]]:
    for line in lines:
        yield from ((uid, number) for number, (_, uid) in enumerate(sorted(line), 1))
