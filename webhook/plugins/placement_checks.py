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
    indexes: dict[str, int] = {}
    for index, rule in enumerate(rules):
        path = f"rules[{index}]"
        if not rule.name or not syntax.is_label_value(rule.name):
            raise ConfigurationError(
                f"{path}.name: {messages.quote(rule.name)} is not a valid name: use a short one "
                "like space"
            )
        if rule.name in indexes:
            raise ConfigurationError(
                f"{path}.name: {messages.quote(rule.name)} is also the name of "
                f"rules[{indexes[rule.name]}]: use a unique name"
            )
        indexes[rule.name] = index
        _check_when(rule.when, f"{path}.when")
        _check_rule(rule, path)


def _check_rule(rule: Rule, path: str) -> None:
    if not rule.edits():
        raise ConfigurationError(
            f"{path}: has no effect: add require, prefer, nodeSelector, tolerations or "
            "schedulerName"
        )
    if rule.resolve_at_release and rule.scheduler_name:
        raise ConfigurationError(
            f"{path}.schedulerName: cannot be changed at release: move it to a rule without "
            "resolveAtRelease"
        )
    if rule.resolve_at_release and rule.tolerations:
        raise ConfigurationError(
            f"{path}.tolerations: cannot be added at release, because admission policies for new "
            "pods would not see them: move them to a rule without resolveAtRelease"
        )
    _check_requirements(rule.require, f"{path}.require")
    for index, preference in enumerate(rule.prefer):
        preference_path = f"{path}.prefer[{index}]"
        _check_requirements(preference.require, f"{preference_path}.require")
        if not preference.require:
            raise ConfigurationError(
                f"{preference_path}.require: must not be empty: add a requirement"
            )
        _check_possible(
            (requirement.as_edit for requirement in preference.require), preference_path
        )
    for key, value in rule.node_selector.items():
        _check_key(key, f"{path}.nodeSelector", "label")
        _check_value(value, f"{path}.nodeSelector")
    _check_possible(rule.required, path)
    for index, toleration in enumerate(rule.tolerations):
        _check_toleration(toleration, f"{path}.tolerations[{index}]")


def _check_when(when: When, path: str) -> None:
    if when.annotation is None and when.label is None:
        raise ConfigurationError(f"{path}: must have either annotation or label: add one")
    if when.annotation is not None and when.label is not None:
        raise ConfigurationError(
            f"{path}: must not have both annotation and label: remove one, or write two rules"
        )
    kind = "label" if when.annotation is None else "annotation"
    _check_key(when.key, f"{path}.{kind}", kind)
    tests = {"equals": when.equals, "in": when.one_of, "exists": when.exists}
    test_names = [name for name, value in tests.items() if value is not None]
    if len(test_names) != 1:
        problem = f"has {' and '.join(test_names)}" if test_names else "has no test of the value"
        raise ConfigurationError(
            f"{path}: {problem}: use exactly one of equals, in, and exists: true"
        )
    if when.exists is False:
        raise ConfigurationError(f"{path}.exists: must be true: to select values, use in")
    _check_sought(when, path, test_names[0])


def _check_sought(when: When, path: str, name: str) -> None:
    """Reject values and namespaces that no pod can have."""
    if when.one_of == ():
        raise ConfigurationError(f"{path}.in: must not be empty: add a value")
    if when.label is not None:
        for value in when.accepted or ():
            _check_value(value, f"{path}.{name}")
    if when.namespaces == ():
        raise ConfigurationError(
            f"{path}.namespaces: must not be empty: add a namespace, or remove the key"
        )
    for namespace in when.namespaces or ():
        if not syntax.is_namespace(namespace):
            raise ConfigurationError(
                f"{path}.namespaces: {messages.quote(namespace)} is not a valid namespace: use a "
                "name like default"
            )


def _check_requirements(requirements: Iterable[NodeRequirement], list_path: str) -> None:
    for index, requirement in enumerate(requirements):
        path = f"{list_path}[{index}]"
        _check_key(requirement.key, f"{path}.key", "label")
        if requirement.operator in {"In", "NotIn"}:
            if not requirement.values:
                raise ConfigurationError(
                    f"{path}.values: must not be empty: {requirement.operator} needs a value"
                )
            for value in requirement.values:
                _check_value(value, f"{path}.values")
        elif requirement.operator in {"Gt", "Lt"}:
            _check_bound(requirement, f"{path}.values")
        elif requirement.values:
            raise ConfigurationError(
                f"{path}.values: {requirement.operator} takes no values: remove the key"
            )


def _check_bound(requirement: NodeRequirement, path: str) -> None:
    values = requirement.values
    number = node_affinity.integer(values[0]) if len(values) == 1 else None
    if number is None or not syntax.is_label_value(values[0]):
        raise ConfigurationError(
            f"{path}: {requirement.operator} needs exactly one whole number of 0 or more: use a "
            'list like ["8"]'
        )


def _check_possible(requirements: Iterable[Requirement], path: str) -> None:
    contradicting = node_affinity.impossible(requirements)
    if contradicting:
        quoted = " and ".join(messages.quote(str(requirement)) for requirement in contradicting)
        raise ConfigurationError(f"{path}: no node can meet {quoted}: change or remove one")


def _check_toleration(toleration: RuleToleration, path: str) -> None:
    if toleration.key:
        _check_key(toleration.key, f"{path}.key", "taint")
    elif toleration.operator != "Exists":
        raise ConfigurationError(
            f"{path}.operator: must be Exists if there is no key: change it, or add a key"
        )
    if toleration.operator == "Exists" and toleration.value:
        raise ConfigurationError(f"{path}.value: Exists takes no value: remove the key")
    _check_value(toleration.value, f"{path}.value")
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        raise ConfigurationError(
            f"{path}.tolerationSeconds: needs effect NoExecute: set it, or remove the key"
        )


def _check_key(key: str, path: str, kind: str) -> None:
    if not syntax.is_qualified_name(key):
        raise ConfigurationError(
            f"{path}: {messages.quote(key)} is not a valid {kind} key: use one like "
            "example.com/kind"
        )


def _check_value(value: str, path: str) -> None:
    if not syntax.is_label_value(value):
        raise ConfigurationError(
            f"{path}: {messages.quote(value)} is not a valid label value: {_VALUE_FIX}"
        )
