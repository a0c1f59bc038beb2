"""Startup checks of placement rules. Pure.

Without them, Pending pods would be the only symptom of a rule that can never match, or that no node
can meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.framework import node_affinity
from holdfast.webhook.model import messages, syntax
from holdfast.webhook.model.edits import Requirement
from holdfast.webhook.plugins.placement_rules import NodeRequirement, Rule, RuleToleration, When

_VALUE_FIX = "use up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"


def check(rules: Sequence[Rule]) -> None:
    """Check all rules. Raises ConfigurationError, which names the path in args and the fix."""
    seen: dict[str, int] = {}
    for index, rule in enumerate(rules):
        where = f"rules[{index}]"
        if not rule.name or not syntax.is_label_value(rule.name):
            raise ConfigurationError(
                f"{where}.name: {messages.quote(rule.name)} is not a valid name: use a short one "
                "like space"
            )
        if rule.name in seen:
            raise ConfigurationError(
                f"{where}.name: {messages.quote(rule.name)} is also the name of "
                f"rules[{seen[rule.name]}]: use a unique name"
            )
        seen[rule.name] = index
        _check_when(rule.when, f"{where}.when")
        _check_rule(rule, where)


def _check_rule(rule: Rule, where: str) -> None:
    if not rule.edits():
        raise ConfigurationError(
            f"{where}: has no effect: add require, prefer, nodeSelector, tolerations or "
            "schedulerName"
        )
    if rule.resolve_at_release and rule.scheduler_name:
        raise ConfigurationError(
            f"{where}.schedulerName: cannot be changed at release: move it to a rule without "
            "resolveAtRelease"
        )
    if rule.resolve_at_release and rule.tolerations:
        raise ConfigurationError(
            f"{where}.tolerations: cannot be added at release, because admission policies for new "
            "pods would not see them: move them to a rule without resolveAtRelease"
        )
    _check_requirements(rule.require, f"{where}.require")
    for index, preference in enumerate(rule.prefer):
        path = f"{where}.prefer[{index}]"
        _check_requirements(preference.require, f"{path}.require")
        if not preference.require:
            raise ConfigurationError(f"{path}.require: must not be empty: add a requirement")
        _check_possible((one.as_edit for one in preference.require), path)
    for key, value in rule.node_selector.items():
        _check_key(key, f"{where}.nodeSelector", "label")
        _check_value(value, f"{where}.nodeSelector")
    _check_possible(rule.required, where)
    for index, toleration in enumerate(rule.tolerations):
        _check_toleration(toleration, f"{where}.tolerations[{index}]")


def _check_when(when: When, where: str) -> None:
    if when.annotation is None and when.label is None:
        raise ConfigurationError(f"{where}: must have either annotation or label: add one")
    if when.annotation is not None and when.label is not None:
        raise ConfigurationError(
            f"{where}: must not have both annotation and label: remove one, or write two rules"
        )
    kind = "label" if when.annotation is None else "annotation"
    _check_key(when.key, f"{where}.{kind}", kind)
    tests = {"equals": when.equals, "in": when.one_of, "exists": when.exists}
    named = [name for name, value in tests.items() if value is not None]
    if len(named) != 1:
        problem = f"has {' and '.join(named)}" if named else "has no test of the value"
        raise ConfigurationError(
            f"{where}: {problem}: use exactly one of equals, in, and exists: true"
        )
    if when.exists is False:
        raise ConfigurationError(f"{where}.exists: must be true: to select values, use in")
    _check_sought(when, where, named[0])


def _check_sought(when: When, where: str, name: str) -> None:
    """Reject values and namespaces that no pod can have."""
    if when.one_of == ():
        raise ConfigurationError(f"{where}.in: must not be empty: add a value")
    if when.label is not None:
        for value in when.accepted or ():
            _check_value(value, f"{where}.{name}")
    if when.namespaces == ():
        raise ConfigurationError(
            f"{where}.namespaces: must not be empty: add a namespace, or remove the key"
        )
    for namespace in when.namespaces or ():
        if not syntax.is_namespace(namespace):
            raise ConfigurationError(
                f"{where}.namespaces: {messages.quote(namespace)} is not a valid namespace: use a "
                "name like default"
            )


def _check_requirements(requirements: Iterable[NodeRequirement], where: str) -> None:
    for index, one in enumerate(requirements):
        path = f"{where}[{index}]"
        _check_key(one.key, f"{path}.key", "label")
        if one.operator in {"In", "NotIn"}:
            if not one.values:
                raise ConfigurationError(
                    f"{path}.values: must not be empty: {one.operator} needs a value"
                )
            for value in one.values:
                _check_value(value, f"{path}.values")
        elif one.operator in {"Gt", "Lt"}:
            _check_bound(one, f"{path}.values")
        elif one.values:
            raise ConfigurationError(
                f"{path}.values: {one.operator} takes no values: remove the key"
            )


def _check_bound(requirement: NodeRequirement, where: str) -> None:
    found = requirement.values
    number = node_affinity.integer(found[0]) if len(found) == 1 else None
    if number is None or not syntax.is_label_value(found[0]):
        raise ConfigurationError(
            f"{where}: {requirement.operator} needs exactly one whole number of 0 or more: use a "
            'list like ["8"]'
        )


def _check_possible(requirements: Iterable[Requirement], where: str) -> None:
    found = node_affinity.impossible(requirements)
    if found:
        listed = " and ".join(messages.quote(str(one)) for one in found)
        raise ConfigurationError(f"{where}: no node can meet {listed}: change or remove one")


def _check_toleration(toleration: RuleToleration, where: str) -> None:
    if toleration.key:
        _check_key(toleration.key, f"{where}.key", "taint")
    elif toleration.operator != "Exists":
        raise ConfigurationError(
            f"{where}.operator: must be Exists if there is no key: change it, or add a key"
        )
    if toleration.operator == "Exists" and toleration.value:
        raise ConfigurationError(f"{where}.value: Exists takes no value: remove the key")
    _check_value(toleration.value, f"{where}.value")
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        raise ConfigurationError(
            f"{where}.tolerationSeconds: needs effect NoExecute: set it, or remove the key"
        )


def _check_key(key: str, where: str, kind: str) -> None:
    if not syntax.is_qualified_name(key):
        raise ConfigurationError(
            f"{where}: {messages.quote(key)} is not a valid {kind} key: use one like "
            "example.com/kind"
        )


def _check_value(value: str, where: str) -> None:
    if not syntax.is_label_value(value):
        raise ConfigurationError(
            f"{where}: {messages.quote(value)} is not a valid label value: {_VALUE_FIX}"
        )
