"""Placement rules from the configuration file, and their edits. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Literal

import msgspec

from holdfast.webhook.framework import arg_types, cel, node_affinity
from holdfast.webhook.framework.plugin import Args
from holdfast.webhook.model.edits import (
    Edit,
    PreferNodes,
    Requirement,
    RequireNodes,
    SelectNodes,
    SetSchedulerName,
    Tolerate,
)
from holdfast.webhook.model.objects import Pod

Weight = Annotated[int, msgspec.Meta(ge=1, le=100)]
_MANY_TESTS = 20
"""Number of tests, one per key and list of namespaces, above which `expression` uses tables."""

Seconds = Annotated[int, msgspec.Meta(ge=-node_affinity.INT64_MAX - 1, le=node_affinity.INT64_MAX)]


class NodeRequirement(Args, frozen=True, omit_defaults=True):
    """A requirement on a label of nodes."""

    key: arg_types.Key
    """The label's key."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How the value is compared."""
    values: tuple[arg_types.LabelValue, ...] = ()
    """One or more for `In` and `NotIn`, one whole number for `Gt` and `Lt`, otherwise none."""

    @property
    def as_edit(self) -> Requirement:
        """The requirement, for an edit."""
        return Requirement(self.key, self.operator, self.values)


RequiredLabel = Annotated[NodeRequirement, arg_types.REQUIREMENT]


class Preference(Args, frozen=True, omit_defaults=True):
    """Nodes that a rule prefers."""

    weight: Weight
    """The weight, from 1 to 100."""
    require: Annotated[tuple[RequiredLabel, ...], arg_types.SOME]
    """The requirements; a preferred node meets all of them."""


class RuleToleration(Args, frozen=True, omit_defaults=True):
    """A toleration that a rule adds."""

    key: arg_types.KeyOrNone = ""
    """The taint's key; empty with `Exists` matches all taints."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """Whether the value has to be equal, or is ignored."""
    value: arg_types.LabelValue = ""
    """The taint's value."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """The taint's effect; empty matches all effects."""
    toleration_seconds: Seconds | None = None
    """How long a `NoExecute` taint is tolerated; forever if unset."""


class When(Args, frozen=True, omit_defaults=True):
    """Which pods a rule selects, by an annotation or a label."""

    annotation: arg_types.Key | None = None
    """The annotation's key."""
    label: arg_types.Key | None = None
    """The label's key. Set either `annotation` or `label`."""
    equals: str | None = None
    """The value. Set exactly one of `equals`, `in` and `exists`."""
    one_of: Annotated[tuple[str, ...], arg_types.SOME] | None = msgspec.field(
        default=None, name="in"
    )
    """The accepted values."""
    exists: Annotated[bool, arg_types.shaped(const=True)] | None = None
    """`true`: any value."""
    namespaces: Annotated[tuple[arg_types.Namespace, ...], arg_types.SOME] | None = None
    """The namespaces; all if unset."""

    @property
    def key(self) -> str:
        """The key of the annotation or label."""
        return self.annotation or self.label or ""

    @property
    def accepted(self) -> tuple[str, ...] | None:
        """The accepted values; None accepts any."""
        return self.one_of if self.equals is None else (self.equals,)

    def matches(self, pod: Pod, namespace: str) -> bool:
        """Return whether the rule selects a pod; an empty namespace is unknown and may match."""
        if namespace and self.namespaces is not None and namespace not in self.namespaces:
            return False
        entries = pod.labels if self.annotation is None else pod.annotations
        if self.key not in entries:
            return False
        return self.accepted is None or entries[self.key] in self.accepted


_Keys = Mapping[str, Mapping[tuple[str, ...] | None, Iterable[When]]]
"""Selections, by key and namespaces."""


def expression(whens: Iterable[When], pod: str) -> str:
    """Return a CEL expression that is true if any of these selects the pod.

    The pod's namespace is that of the request. The expression tests each path and each key once,
    because API servers limit its length.
    """
    fields: dict[str, dict[str, dict[tuple[str, ...] | None, list[When]]]] = {}
    for when in whens:
        keys = fields.setdefault("labels" if when.annotation is None else "annotations", {})
        keys.setdefault(when.key, {}).setdefault(when.namespaces, []).append(when)
    count = sum(len(by_namespaces) for keys in fields.values() for by_namespaces in keys.values())
    write = _by_tables if count > _MANY_TESTS else _one_by_one
    field_tests = [
        f"{cel.optional(f'{pod}.metadata.{field}')}.optMap(entries, {write(keys)}).orValue(false)"
        for field, keys in fields.items()
    ]
    return " || ".join(field_tests) or "false"


def _one_by_one(keys: _Keys) -> str:
    tests = []
    for key, by_namespaces in keys.items():
        name = cel.string(key)
        accepted = [_test(f"entries[{name}]", *item) for item in by_namespaces.items()]
        tests.append(f"{name} in entries && ({' || '.join(accepted)})")
    return " || ".join(tests)


def _by_tables(keys: _Keys) -> str:
    """Return a CEL expression that looks up keys in tables.

    API servers need time proportional to the square of the number of tests to compile them. There
    is one table for all namespaces, and one for each list of namespaces. Each maps a key to its
    accepted values; an empty list accepts any value.
    """
    tables: dict[tuple[str, ...] | None, list[str]] = {None: []}
    for key, by_namespaces in keys.items():
        for namespaces, whens in by_namespaces.items():
            values = _values(whens) or ()
            tables.setdefault(namespaces, []).append(f"{cel.string(key)}: {cel.strings(values)}")
    by_namespace: dict[str, list[int]] = {}
    for index, namespaces in enumerate(tables):
        for namespace in namespaces or ():
            by_namespace.setdefault(namespace, []).append(index)
    pairs = ", ".join(f"{cel.string(name)}: {indexes}" for name, indexes in by_namespace.items())
    applicable = f"([0] + {{{pairs}}}[?request.namespace].orValue([]))" if pairs else "[0]"
    literal = ", ".join(f"{{{', '.join(entries)}}}" for entries in tables.values())
    accepts = "(tables[at][key] == [] || entries[key] in tables[at][key])"
    scan = f"exists(key, key in entries && key in tables[at] && {accepts})"
    # Iterating over the entries is faster, but takes minutes for a pod with 100,000 labels.
    cheaper = f"size(entries) < size(tables[at]) ? entries.{scan} : tables[at].{scan}"
    return f"[[{literal}]].exists(tables, {applicable}.exists(at, {cheaper}))"


def _test(value: str, namespaces: Iterable[str] | None, whens: Iterable[When]) -> str:
    """Return a CEL expression that is true if any of these accepts the value.

    All of them have the same namespaces.
    """
    values = _values(whens)
    tests = [] if values is None else [f"{value} in {cel.strings(values)}"]
    if namespaces is not None:
        tests.append(f"request.namespace in {cel.strings(namespaces)}")
    return " && ".join(tests) or "true"


def _values(whens: Iterable[When]) -> Collection[str] | None:
    """Return the values that any of these accepts; None if one accepts all values."""
    accepted = [when.accepted for when in whens]
    if None in accepted:
        return None
    return dict.fromkeys(value for values in accepted for value in values or ())


class Rule(Args, frozen=True, omit_defaults=True):
    """A placement rule."""

    name: arg_types.RuleName
    """The rule's name, used in messages."""
    when: Annotated[When, arg_types.WHEN]
    """The pods that the rule selects."""
    require: tuple[RequiredLabel, ...] = ()
    """Required node affinity, ANDed with the pod's own."""
    prefer: tuple[Preference, ...] = ()
    """Preferred node affinity."""
    node_selector: dict[arg_types.Key, arg_types.LabelValue] = msgspec.field(default_factory=dict)
    """Labels that the node must have."""
    tolerations: tuple[Annotated[RuleToleration, arg_types.TOLERATION], ...] = ()
    """Tolerations added to the pod, in place of the API server's default ones."""
    scheduler_name: str = ""
    """The `schedulerName` that the pod gets; empty changes nothing."""
    on_conflict: Literal["warn", "reject"] = "warn"
    """Whether a pod whose own requirements contradict the rule gets a warning, or is rejected."""
    resolve_at_release: bool = False
    """Whether the rule is applied to a held pod at its release, as it is configured then.

    Cannot be combined with `schedulerName` or `tolerations`.
    """

    @property
    def required(self) -> tuple[Requirement, ...]:
        """All requirements on the node."""
        selected = (Requirement(key, "In", (value,)) for key, value in self.node_selector.items())
        return (*(requirement.as_edit for requirement in self.require), *selected)

    def edits(self) -> list[Edit]:
        """Return the rule's edits."""
        edits: list[Edit] = []
        if self.require:
            edits.append(RequireNodes(tuple(requirement.as_edit for requirement in self.require)))
        edits += [
            PreferNodes(
                preference.weight, tuple(requirement.as_edit for requirement in preference.require)
            )
            for preference in self.prefer
        ]
        edits += [SelectNodes(key, value) for key, value in self.node_selector.items()]
        edits += [
            Tolerate(
                toleration.key,
                toleration.operator,
                toleration.value,
                toleration.effect,
                toleration.toleration_seconds,
            )
            for toleration in self.tolerations
        ]
        if self.scheduler_name:
            edits.append(SetSchedulerName(self.scheduler_name))
        return edits


class RuleBook:
    """Rules, indexed by key and value; the cost per pod does not grow with their number."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        criteria = [(rule.when.annotation is None, rule.when.key) for rule in self._rules]
        self._places = {
            criterion: _by_value(
                [
                    (index, rule)
                    for index, rule in enumerate(self._rules)
                    if criteria[index] == criterion
                ]
            )
            for criterion in dict.fromkeys(criteria)
        }

    def matching(self, pod: Pod, namespace: str) -> list[Rule]:
        """Return the rules that select a pod, in order; an empty namespace is unknown."""
        indexes: list[int] = []
        for (is_label, key), (any_value, by_value) in self._places.items():
            value = (pod.labels if is_label else pod.annotations).get(key)
            if value is not None:
                indexes += by_value.get(value, any_value)
        if not indexes:
            return []
        candidates = [self._rules[index] for index in sorted(indexes)]
        return [rule for rule in candidates if rule.when.matches(pod, namespace)]


def _by_value(
    rules: Iterable[tuple[int, Rule]],
) -> tuple[list[int], dict[str, list[int]]]:
    """Return the indexes of rules that accept any value, and of rules that accept each value."""
    rules = list(rules)
    values = dict.fromkeys(value for _, rule in rules for value in rule.when.accepted or ())
    by_value = {
        value: [
            index
            for index, rule in rules
            if rule.when.accepted is None or value in rule.when.accepted
        ]
        for value in values
    }
    return [index for index, rule in rules if rule.when.accepted is None], by_value


SPACE = Rule(
    name="space",
    when=When(annotation="type", equals="space"),
    require=(NodeRequirement(key="kubernetes.io/role", operator="In", values=("edge",)),),
)
"""The SpaceCloud scheduler plugin's rule: space workloads run on edge nodes."""
