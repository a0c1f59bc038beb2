"""Placement rules, as they stand in the configuration file, and what each does to a pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from webhook import affinity, conditions, shapes
from webhook.framework import Args
from webhook.objects import Pod
from webhook.review import (
    Edit,
    PreferNodes,
    Requirement,
    RequireNodes,
    SelectNodes,
    SetSchedulerName,
    Tolerate,
)

Weight = Annotated[int, msgspec.Meta(ge=1, le=100)]
Seconds = Annotated[int, msgspec.Meta(ge=-affinity.INT64_MAX - 1, le=affinity.INT64_MAX)]


class NodeRequirement(Args, frozen=True, omit_defaults=True):
    """What a rule requires of a label of nodes."""

    key: shapes.Key
    """The label's key."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How its value is compared."""
    values: tuple[shapes.LabelValue, ...] = ()
    """Some for `In` and `NotIn`, one whole number for `Gt` and `Lt`, none for the others."""

    @property
    def meant(self) -> Requirement:
        """The requirement as edits have it."""
        return Requirement(self.key, self.operator, self.values)


RequiredLabel = Annotated[NodeRequirement, shapes.REQUIREMENT]


class Preference(Args, frozen=True, omit_defaults=True):
    """Nodes that a rule prefers."""

    weight: Weight
    """How much, from 1 to 100."""
    require: Annotated[tuple[RequiredLabel, ...], shapes.SOME]
    """What they have to have, all of it."""


class Tolerated(Args, frozen=True, omit_defaults=True):
    """A taint that a rule's pods bear with."""

    key: shapes.KeyOrNone = ""
    """The taint's key; empty, with `Exists`, stands for all taints."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Whether the value has to be equal, or does not matter."""
    value: shapes.LabelValue = ""
    """The taint's value."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """The taint's effect; empty stands for every one."""
    toleration_seconds: Seconds | None = None
    """How long a `NoExecute` taint is borne with; for ever without it."""


class When(Args, frozen=True, omit_defaults=True):
    """Which pods a rule is for: those whose annotation, or label, has such a value."""

    annotation: shapes.Key | None = None
    """The annotation's key."""
    label: shapes.Key | None = None
    """The label's key; exactly one of the two is named."""
    equals: str | None = None
    """The value it has; exactly one of `equals`, `in` and `exists` is named."""
    one_of: Annotated[tuple[str, ...], shapes.SOME] | None = msgspec.field(default=None, name="in")
    """The values of which it has one."""
    exists: Annotated[bool, shapes.shaped(const=True)] | None = None
    """`true`: it is there, whatever its value."""
    namespaces: Annotated[tuple[shapes.Namespace, ...], shapes.SOME] | None = None
    """Only in these namespaces; in all where it is left out."""

    @property
    def key(self) -> str:
        """The key of the annotation or label."""
        return self.annotation or self.label or ""

    @property
    def wanted(self) -> tuple[str, ...] | None:
        """The values of which one is wanted, or None where any will do."""
        return self.one_of if self.equals is None else (self.equals,)

    def matches(self, pod: Pod, namespace: str) -> bool:
        """Tell whether the rule is for a pod; an empty namespace is one that is not known."""
        if namespace and self.namespaces is not None and namespace not in self.namespaces:
            return False
        entries = pod.labels if self.annotation is None else pod.annotations
        if self.key not in entries:
            return False
        return self.wanted is None or entries[self.key] in self.wanted

    def expression(self, pod: str) -> str:
        """Give the same as a CEL expression; a pod's namespace is that of the request."""
        field = "labels" if self.annotation is None else "annotations"
        test = conditions.has_entry(field, self.key, pod, self.wanted)
        if self.namespaces is None:
            return test
        return f"{test} && request.namespace in {conditions.strings(self.namespaces)}"


class Rule(Args, frozen=True, omit_defaults=True):
    """A placement rule."""

    name: shapes.RuleName
    """What messages call it."""
    when: Annotated[When, shapes.WHEN]
    """Which pods it is for."""
    require: tuple[RequiredLabel, ...] = ()
    """Required node affinity: ANDed into what the pod itself requires."""
    prefer: tuple[Preference, ...] = ()
    """Preferred node affinity."""
    node_selector: dict[shapes.Key, shapes.LabelValue] = msgspec.field(default_factory=dict)
    """Labels that the node has to have."""
    tolerations: tuple[Annotated[Tolerated, shapes.TOLERATION], ...] = ()
    """Taints that the pod bears with."""
    scheduler_name: str = ""
    """The scheduler profile that is to place the pod; empty changes nothing."""
    on_conflict: Literal["warn", "refuse"] = "warn"
    """What becomes of a pod whose own requirements contradict the rule."""
    resolve_at_release: bool = False
    """Whether a held pod is given this at its release only, by the configuration of then.

    Not with `schedulerName`, nor with `tolerations`.
    """

    @property
    def required(self) -> tuple[Requirement, ...]:
        """All that the rule requires of a node."""
        selected = (Requirement(key, "In", (value,)) for key, value in self.node_selector.items())
        return (*(one.meant for one in self.require), *selected)

    def edits(self) -> list[Edit]:
        """Give what the rule does to a pod."""
        edits: list[Edit] = []
        if self.require:
            edits.append(RequireNodes(tuple(one.meant for one in self.require)))
        edits += [
            PreferNodes(one.weight, tuple(each.meant for each in one.require))
            for one in self.prefer
        ]
        edits += [SelectNodes(key, value) for key, value in self.node_selector.items()]
        edits += [
            Tolerate(one.key, one.operator, one.value, one.effect, one.toleration_seconds)
            for one in self.tolerations
        ]
        if self.scheduler_name:
            edits.append(SetSchedulerName(self.scheduler_name))
        return edits


class RuleBook:
    """Rules in their order, by what they look for: however many there are, few are asked."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        sought = [(rule.when.annotation is None, rule.when.key) for rule in self._rules]
        self._places = {
            each: _by_value(
                [(place, rule) for place, rule in enumerate(self._rules) if sought[place] == each]
            )
            for each in dict.fromkeys(sought)
        }

    def matching(self, pod: Pod, namespace: str) -> list[Rule]:
        """Give the rules that are for a pod; an empty namespace is one that is not known."""
        places: list[int] = []
        for (is_label, key), (others, by_value) in self._places.items():
            value = (pod.labels if is_label else pod.annotations).get(key)
            if value is not None:
                places += by_value.get(value, others)
        found = [self._rules[place] for place in sorted(places)]
        return [rule for rule in found if rule.when.matches(pod, namespace)]


def _by_value(
    rules: Iterable[tuple[int, Rule]],
) -> tuple[list[int], dict[str, list[int]]]:
    """Give the places of rules that take any value, and those of all that take a value."""
    rules = list(rules)
    named = dict.fromkeys(value for _, rule in rules for value in rule.when.wanted or ())
    by_value = {
        value: [
            place for place, rule in rules if rule.when.wanted is None or value in rule.when.wanted
        ]
        for value in named
    }
    return [place for place, rule in rules if rule.when.wanted is None], by_value


SPACE = Rule(
    name="space",
    when=When(annotation="type", equals="space"),
    require=(NodeRequirement(key="kubernetes.io/role", operator="In", values=("edge",)),),
)
"""The SpaceCloud scheduler plugin's rule: space workloads run on the nodes at the edge."""
