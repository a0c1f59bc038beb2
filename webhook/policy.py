"""Admission policies of the API server, built from checks in CEL. Pure.

An expression that fails refuses the request, so each reads what may be absent with `?`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from webhook.conditions import string, strings

API_VERSION = "admissionregistration.k8s.io/v1"

Object = dict[str, Any]

ADDED_BY_OTHERS = (
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/memory-pressure",
)
"""Taints that plugins of the API server itself have pods tolerate, at an update too.

DefaultTolerationSeconds the first two, PodTolerationRestriction the last: such an addition is made
to the controller's patch, and must not keep a pod.
"""


@dataclass(frozen=True, slots=True)
class Check:
    """A validation: what has to be true, and what is said when it is not."""

    expression: str
    message: str
    message_expression: str = ""

    def as_object(self) -> Object:
        """Write it as the API has it."""
        written = {"expression": self.expression, "message": self.message, "reason": "Forbidden"}
        if self.message_expression:
            written["messageExpression"] = self.message_expression
        return written


def manifest(objects: Iterable[Object]) -> str:
    """Write objects as YAML, expressions in blocks that can be read."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=100, explicit_start=True)


@dataclass(frozen=True, slots=True)
class Installation:
    """Where Holdfast is installed, and as whom it acts."""

    namespace: str = "holdfast-system"
    service: str = "holdfast-webhook"
    """The only Service that the controller may register."""
    controller: str = "system:serviceaccount:holdfast-system:holdfast-controller"
    """The controller's user name."""
    configurations: tuple[str, ...] = ("holdfast",)
    """The names of the webhook configurations that are Holdfast's own."""


def by_controller(where: Installation) -> tuple[str, str]:
    """Make the condition by which a policy is about the controller's own requests alone."""
    return "by-the-controller", f"request.userInfo.username == {string(where.controller)}"


def make_policy(
    name: str,
    *,
    rule: Object,
    condition: tuple[str, str],
    checks: Iterable[Check],
    variables: Mapping[str, str] | None = None,
) -> Object:
    """Make a policy that refuses where a check fails, or cannot be evaluated."""
    condition_name, condition_expression = condition
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": [rule]},
        "matchConditions": [{"name": condition_name, "expression": condition_expression}],
        "variables": [
            {"name": variable, "expression": expression}
            for variable, expression in (variables or {}).items()
        ],
        "validations": [check.as_object() for check in checks],
    }
    return _object("ValidatingAdmissionPolicy", name, spec)


def make_binding(policy: str) -> Object:
    """Make the binding by which a policy denies, everywhere."""
    spec = {"policyName": policy, "validationActions": ["Deny"]}
    return _object("ValidatingAdmissionPolicyBinding", policy, spec)


def _object(kind: str, name: str, spec: Object) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "holdfast"}},
        "spec": {key: value for key, value in spec.items() if value != []},
    }


def make_rule(group: str, resources: list[str], operations: list[str]) -> Object:
    """Make a rule; with the default written out, applying it again changes nothing."""
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": operations,
        "resources": resources,
        "scope": "*",
    }


def fixed(paths: Iterable[str], may_not: str) -> list[Check]:
    """Check that an update leaves these fields alone; `may_not` begins what is said."""
    return [
        Check(f"{_field('object', path)} == {_field('oldObject', path)}", f"{may_not} {path}")
        for path in paths
    ]


def annotations_kept(exempt: str) -> str:
    """Test that no annotation is changed, but for those whose `key` is exempt."""
    same = f"{annotation('object', 'key')} == {annotation('oldObject', 'key')}"
    return "\n&& ".join(
        f"{version}.metadata.?annotations.orValue({{}}).all(key, {exempt}\n  || {same})"
        for version in ("object", "oldObject")
    )


def tolerations_kept() -> str:
    """Test that no toleration is changed, but for those that the API server itself adds."""
    added = f"toleration.?key.orValue('') in {strings(ADDED_BY_OTHERS)}"
    before, after = (
        f"{version}.spec.?tolerations.orValue([]).filter(toleration, !({added}))"
        for version in ("oldObject", "object")
    )
    return f"{after}\n  == {before}"


def annotation(owner: str, key: str) -> str:
    """Make the expression of an annotation, which may be absent; the key is an expression, too."""
    return f"{owner}.metadata.?annotations[?{key}]"


def _field(owner: str, path: str) -> str:
    *parents, name = path.split(".")
    return f"{'.'.join([owner, *parents])}.?{name}"


class _Dumper(yaml.SafeDumper):
    """YAML with texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
