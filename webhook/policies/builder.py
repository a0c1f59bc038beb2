"""Builders for ValidatingAdmissionPolicies with CEL checks. Pure.

An error in an expression rejects the request, so optional fields are read with `?`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from holdfast.webhook.framework.cel import string, strings
from holdfast.webhook.model.freezes import OWN_NAMESPACE
from holdfast.webhook.model.limits import MAX_ENTRIES
from holdfast.webhook.registration.configurations import NAME

API_VERSION = "admissionregistration.k8s.io/v1"

Object = dict[str, Any]

ACCOUNT = "holdfast-controller"
"""The controller's ServiceAccount, by default."""
SERVICE = "holdfast-webhook"
"""The only Service that the controller may register webhooks for."""

ADDED_BY_OTHERS = (
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/memory-pressure",
)
"""Tolerations that the API server's admission plugins add to pods, even during an update.

DefaultTolerationSeconds adds the first two, PodTolerationRestriction the last. The plugins also add
them to the controller's patches, which must not fail because of this.
"""


@dataclass(frozen=True, slots=True)
class Check:
    """A validation: an expression, and the message if it is false."""

    expression: str
    message: str
    message_expression: str = ""

    def as_object(self) -> Object:
        """Return the validation as in the API."""
        validation = {"expression": self.expression, "message": self.message, "reason": "Forbidden"}
        if self.message_expression:
            validation["messageExpression"] = self.message_expression
        return validation


def manifest(objects: Iterable[Object]) -> str:
    """Return objects as YAML, with expressions as literal blocks."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=100, explicit_start=True)


@dataclass(frozen=True, slots=True)
class InstallationNames:
    """The names that identify an installation in the policies."""

    namespace: str = OWN_NAMESPACE
    account: str = ACCOUNT
    """The controller's ServiceAccount."""
    configuration: str = NAME
    """The name of both webhook configurations."""

    @property
    def controller(self) -> str:
        """The controller's user name."""
        return f"system:serviceaccount:{self.namespace}:{self.account}"

    @property
    def uninstaller(self) -> str:
        """The user name of the Helm chart's uninstall Job, which frees pods."""
        return f"system:serviceaccount:{self.namespace}:holdfast-uninstall"


def by_controller(installation: InstallationNames) -> tuple[str, str]:
    """Return the condition that only matches the controller's requests."""
    return "by-the-controller", f"request.userInfo.username == {string(installation.controller)}"


def make_policy(
    name: str,
    *,
    rule: Object,
    also: Iterable[Object] = (),
    condition: tuple[str, str],
    checks: Iterable[Check],
    variables: Mapping[str, str] | None = None,
) -> Object:
    """Build a policy that rejects a request if a check fails or cannot be evaluated.

    It applies to requests that match `rule` or one of the rules in `also`.
    """
    condition_name, condition_expression = condition
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": [rule, *also]},
        "matchConditions": [{"name": condition_name, "expression": condition_expression}],
        "variables": [
            {"name": variable, "expression": expression}
            for variable, expression in (variables or {}).items()
        ],
        "validations": [check.as_object() for check in checks],
    }
    return _object("ValidatingAdmissionPolicy", name, spec)


def make_binding(policy: str) -> Object:
    """Build the binding that enforces a policy everywhere."""
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
    """Build a rule. Its defaults are explicit, so applying it again changes nothing."""
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": operations,
        "resources": resources,
        "scope": "*",
    }


def fixed(paths: Iterable[str], may_not: str) -> list[Check]:
    """Return checks that an update does not change these fields; `may_not` starts the messages."""
    return [
        Check(f"{_field('object', path)} == {_field('oldObject', path)}", f"{may_not} {path}")
        for path in paths
    ]


def entries_kept(field: str, exempt: str) -> str:
    """Test that no entry of `annotations` or `labels` is changed, except where `key` is exempt.

    The time and cost of comparing entries grow with the square of their number; comparing whole
    maps costs next to nothing. A map with too many entries therefore must not change at all.
    """
    is_same = f"object.metadata.?{field}[?key] == oldObject.metadata.?{field}[?key]"
    entries = {
        version: f"{version}.metadata.?{field}.orValue({{}})" for version in ("object", "oldObject")
    }
    tests = [
        *(f"{entry_map}.size() <= {MAX_ENTRIES}" for entry_map in entries.values()),
        *(f"{entry_map}.all(key, {exempt}\n  || {is_same})" for entry_map in entries.values()),
    ]
    return f"{equal(f'metadata.?{field}')} || (\n" + "\n&& ".join(tests) + ")"


def equal(path: str) -> str:
    """Test that a field is not changed. Put it first, because it costs least."""
    return f"object.{path} == oldObject.{path}"


def part(owner: str, field: str, *, empty: str) -> str:
    """Return the expression for a field, or for `empty` if it is absent or null.

    dyn() avoids type errors.
    """
    return (
        f"[dyn({owner}).?{field}.orValue(null)]\n"
        f"  .map(part, part == null ? dyn({empty}) : part)[0]"
    )


def tolerations_kept() -> str:
    """Test that no toleration is changed, except those that the API server adds."""
    is_added = f"toleration.?key.orValue('') in {strings(ADDED_BY_OTHERS)}"
    old_tolerations, new_tolerations = (
        f"{version}.spec.?tolerations.orValue([]).filter(toleration, !({is_added}))"
        for version in ("oldObject", "object")
    )
    return f"{equal('spec.?tolerations')}\n|| {new_tolerations}\n  == {old_tolerations}"


def annotation(owner: str, key: str) -> str:
    """Return the expression for an optional annotation; `key` is a CEL expression, too."""
    return f"{owner}.metadata.?annotations[?{key}]"


def _field(owner: str, path: str) -> str:
    *parents, name = path.split(".")
    return f"{'.'.join([owner, *parents])}.?{name}"


class _Dumper(yaml.SafeDumper):
    """Dumps YAML with multi-line strings as literal blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
