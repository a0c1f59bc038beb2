"""Placement rules: what is written in the file, and the checks each has to pass at start. Pure.

A rule that can never match, or that no node could ever meet, is a mistake that nobody would see
later than in pods that stay Pending: it is found before anything is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec

from webhook import affinity, conditions, values
from webhook.errors import ConfigurationError
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

_VALUE_CURE = "write at most 63 letters, digits, '-', '_' and '.', no '-', '_' or '.' at an end"


class NodeRequirement(Args, frozen=True, omit_defaults=True):
    """What a rule requires of a label of nodes."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()

    @property
    def meant(self) -> Requirement:
        """The requirement as edits have it."""
        return Requirement(self.key, self.operator, self.values)


class Preference(Args, frozen=True, omit_defaults=True):
    """Nodes that a rule prefers; all of `require` has to be met."""

    weight: Weight
    require: tuple[NodeRequirement, ...]


class Tolerated(Args, frozen=True, omit_defaults=True):
    """A taint that a rule's pods bear with."""

    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    toleration_seconds: Seconds | None = None


class When(Args, frozen=True, omit_defaults=True):
    """Which pods a rule is for: those whose annotation, or label, has such a value."""

    annotation: str | None = None
    label: str | None = None
    equals: str | None = None
    one_of: tuple[str, ...] | None = msgspec.field(default=None, name="in")
    exists: bool | None = None
    namespaces: tuple[str, ...] | None = None
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

    name: str
    when: When
    require: tuple[NodeRequirement, ...] = ()
    """Required node affinity: ANDed into what the pod itself requires."""
    prefer: tuple[Preference, ...] = ()
    """Preferred node affinity."""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels that the node has to have."""
    tolerations: tuple[Tolerated, ...] = ()
    scheduler_name: str = ""
    """The scheduler profile that is to place the pod; empty changes nothing."""
    on_conflict: Literal["warn", "refuse"] = "warn"
    """What becomes of a pod whose own requirements contradict the rule."""
    resolve_at_release: bool = False
    """Whether a held pod is given this at its release only, by the configuration of then."""

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


SPACE = Rule(
    name="space",
    when=When(annotation="type", equals="space"),
    require=(NodeRequirement(key="kubernetes.io/role", operator="In", values=("edge",)),),
)
"""The SpaceCloud scheduler plugin's rule: space workloads run on the nodes at the edge."""


# --- checks ------------------------------------------------------------------------------------


def check(rules: Sequence[Rule]) -> None:
    """Check all rules. Raises ConfigurationError, which names the path in args and the cure."""
    seen: dict[str, int] = {}
    for index, rule in enumerate(rules):
        where = f"rules[{index}]"
        if not rule.name or not values.is_label_value(rule.name):
            raise ConfigurationError(
                f"{where}.name: {values.shown(rule.name)} is no name; write a short one "
                "such as space"
            )
        if rule.name in seen:
            raise ConfigurationError(
                f"{where}.name: {values.shown(rule.name)} is the name of "
                f"rules[{seen[rule.name]}] already; give each rule its own"
            )
        seen[rule.name] = index
        _check_when(rule.when, f"{where}.when")
        _check_rule(rule, where)


def _check_rule(rule: Rule, where: str) -> None:
    if not rule.edits():
        raise ConfigurationError(
            f"{where}: does nothing; write require, prefer, nodeSelector, tolerations or "
            "schedulerName"
        )
    if rule.resolve_at_release and rule.scheduler_name:
        raise ConfigurationError(
            f"{where}.schedulerName: cannot be changed at release; move it to a rule of its own, "
            "without resolveAtRelease"
        )
    _check_requirements(rule.require, f"{where}.require")
    for index, preference in enumerate(rule.prefer):
        path = f"{where}.prefer[{index}]"
        _check_requirements(preference.require, f"{path}.require")
        if not preference.require:
            raise ConfigurationError(f"{path}.require: is empty; name at least one requirement")
        _check_possible((one.meant for one in preference.require), path)
    for key, value in rule.node_selector.items():
        _check_key(key, f"{where}.nodeSelector", "label")
        _check_value(value, f"{where}.nodeSelector")
    _check_possible(rule.required, where)
    for index, toleration in enumerate(rule.tolerations):
        _check_toleration(toleration, f"{where}.tolerations[{index}]")


def _check_when(when: When, where: str) -> None:
    if when.annotation is None and when.label is None:
        raise ConfigurationError(f"{where}: names neither annotation nor label; write one of them")
    if when.annotation is not None and when.label is not None:
        raise ConfigurationError(
            f"{where}: names both annotation and label; keep one of them, or write two rules"
        )
    kind = "label" if when.annotation is None else "annotation"
    _check_key(when.key, f"{where}.{kind}", kind)
    tests = {"equals": when.equals, "in": when.one_of, "exists": when.exists}
    named = [name for name, value in tests.items() if value is not None]
    if len(named) != 1:
        problem = f"has {' and '.join(named)}" if named else "says nothing about the value"
        raise ConfigurationError(
            f"{where}: {problem}; write exactly one of equals, in, and exists: true"
        )
    if when.exists is False:
        raise ConfigurationError(f"{where}.exists: can only be true; list the values with in")
    _check_sought(when, where, named[0])


def _check_sought(when: When, where: str, name: str) -> None:
    """Find values and namespaces that no pod can have."""
    if when.one_of == ():
        raise ConfigurationError(
            f"{where}.in: is empty, so the rule can never match; name at least one value"
        )
    if when.label is not None:
        for value in when.wanted or ():
            _check_value(value, f"{where}.{name}")
    if when.namespaces == ():
        raise ConfigurationError(
            f"{where}.namespaces: is empty, so the rule can never match; name at least one, or "
            "leave it out"
        )
    for namespace in when.namespaces or ():
        if not values.is_namespace(namespace):
            raise ConfigurationError(
                f"{where}.namespaces: {values.shown(namespace)} is no namespace's name; "
                "write one such as default"
            )


def _check_requirements(requirements: Iterable[NodeRequirement], where: str) -> None:
    for index, one in enumerate(requirements):
        path = f"{where}[{index}]"
        _check_key(one.key, f"{path}.key", "label")
        if one.operator in {"In", "NotIn"}:
            if not one.values:
                raise ConfigurationError(
                    f"{path}.values: is empty; {one.operator} needs at least one value"
                )
            for value in one.values:
                _check_value(value, f"{path}.values")
        elif one.operator in {"Gt", "Lt"}:
            _check_bound(one, f"{path}.values")
        elif one.values:
            raise ConfigurationError(f"{path}.values: {one.operator} takes none; leave values out")


def _check_bound(requirement: NodeRequirement, where: str) -> None:
    found = requirement.values
    number = affinity.integer(found[0]) if len(found) == 1 else None
    if number is None or not values.is_label_value(found[0]):
        raise ConfigurationError(
            f"{where}: {requirement.operator} needs exactly one whole number of 0 or more, "
            'such as ["8"]'
        )


def _check_possible(requirements: Iterable[Requirement], where: str) -> None:
    found = affinity.impossible(requirements)
    if found:
        listed = " and ".join(values.shown(str(one)) for one in found)
        raise ConfigurationError(f"{where}: no node can have {listed}; mend or remove one")


def _check_toleration(toleration: Tolerated, where: str) -> None:
    if toleration.key:
        _check_key(toleration.key, f"{where}.key", "taint")
    elif toleration.operator != "Exists":
        raise ConfigurationError(f"{where}.operator: must be Exists where there is no key")
    if toleration.operator == "Exists" and toleration.value:
        raise ConfigurationError(f"{where}.value: Exists takes none; leave value out")
    _check_value(toleration.value, f"{where}.value")
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        raise ConfigurationError(
            f"{where}.tolerationSeconds: goes with effect NoExecute alone; leave it out, or write "
            "that effect"
        )


def _check_key(key: str, where: str, kind: str) -> None:
    if not values.is_qualified_name(key):
        raise ConfigurationError(
            f"{where}: {values.shown(key)} is no {kind} key; write one such as example.com/kind"
        )


def _check_value(value: str, where: str) -> None:
    if not values.is_label_value(value):
        raise ConfigurationError(
            f"{where}: {values.shown(value)} is no value of a label; {_VALUE_CURE}"
        )
