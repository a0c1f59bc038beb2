"""The checks that placement rules have to pass at start. Pure.

A rule that can never match, or that no node could ever meet, is a mistake that nobody would see
later than in pods that stay Pending: it is found before anything is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from webhook import affinity, values
from webhook.errors import ConfigurationError
from webhook.review import Requirement
from webhook.rules import NodeRequirement, Rule, Tolerated, When

_VALUE_CURE = "write at most 63 letters, digits, '-', '_' and '.', no '-', '_' or '.' at an end"


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
    if rule.resolve_at_release and rule.tolerations:
        raise ConfigurationError(
            f"{where}.tolerations: cannot be added at release, where no policy on the creation of "
            "pods sees them; move them to a rule of their own, without resolveAtRelease"
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
