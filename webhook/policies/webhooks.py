"""The policy that limits the webhook configurations that the controller may write. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.webhook.framework.cel import string, strings
from holdfast.webhook.framework.profiles import Selectors
from holdfast.webhook.model import workloads
from holdfast.webhook.policies import builder
from holdfast.webhook.policies.builder import Check
from holdfast.webhook.registration import configurations

_METADATA = {"ownerReferences": "[]", "finalizers": "[]", "annotations": "{}"}
"""Metadata that an attacker with the controller's token could abuse, and its value if unset. A
nonexistent owner makes the garbage collector delete a configuration, which nobody may create again;
an annotation makes cert-manager's cainjector replace the caBundle. Labels can also make other
tools, such as Argo CD, prune a configuration."""
_OF_PODS = "webhook.name.endsWith('pods.holdfast.dev') && "
_SAME_LABELS = """\
[object, oldObject].all(one, [object, oldObject].all(other,
    one.metadata.?labels.orValue({}).all(key, key == 'app.kubernetes.io/name'
      || other.metadata.?labels[?key] == one.metadata.?labels[?key])))"""


def webhooks_policy(
    name: str, names: Sequence[str], installation: builder.InstallationNames, selectors: Selectors
) -> builder.Object:
    """Build the policy for the webhooks with these names and configured selectors.

    It limits what they can match, and rejects additions that exclude objects and that the
    controller would not revert. It cannot do more: the controller writes match conditions from its
    configuration, and the condition `false` excludes everything. Rejecting an empty list or
    `failurePolicy: Ignore` would not stop anyone who has the controller's token.
    """
    may_only, may_not = f"{installation.controller} may only", f"{installation.controller} may not"
    namespaces = list(dict.fromkeys((*configurations.EXCLUDED_NAMESPACES, installation.namespace)))
    return builder.make_policy(
        name,
        rule=builder.make_rule(
            "admissionregistration.k8s.io",
            ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
            ["CREATE", "UPDATE", "DELETE"],
        ),
        condition=builder.by_controller(installation),
        variables={
            "before": "request.operation == 'UPDATE' ? oldObject.?webhooks.orValue([]) : []"
        },
        checks=[
            *_targets(may_only, names, installation),
            _metadata(may_not),
            *_bounds(may_only, names, namespaces),
            *_additions(may_only, may_not, names, selectors, namespaces),
        ],
    )


def _targets(
    may_only: str, names: Sequence[str], installation: builder.InstallationNames
) -> list[Check]:
    return [
        Check(
            "(request.operation == 'DELETE' ? oldObject.metadata.name : object.metadata.name)\n"
            f"  == {string(installation.configuration)}",
            f"{may_only} write webhook configurations named {installation.configuration}",
        ),
        Check(
            _each_of_ours(
                names,
                "has(webhook.clientConfig.service) && !has(webhook.clientConfig.url)\n"
                "  && webhook.clientConfig.service.namespace =="
                f" {string(installation.namespace)}\n"
                f"  && webhook.clientConfig.service.name == {string(builder.SERVICE)}",
            ),
            f"{may_only} register webhooks for the Service"
            f" {installation.namespace}/{builder.SERVICE}",
        ),
    ]


def _metadata(may_not: str) -> Check:
    return Check(
        "request.operation != 'UPDATE' || ("
        + "\n  && ".join(
            f"object.metadata.?{field}.orValue({empty})"
            f" == oldObject.metadata.?{field}.orValue({empty})"
            for field, empty in _METADATA.items()
        )
        + f"\n  && {_SAME_LABELS})",
        f"{may_not} change {', '.join(_METADATA)} or labels of webhook configurations",
    )


def _bounds(may_only: str, names: Sequence[str], namespaces: list[str]) -> list[Check]:
    groups = {"": None, **{resource.group: None for resource in workloads.RESOURCES}}
    resources = ["pods", *(resource.name for resource in workloads.RESOURCES)]
    return [
        Check(
            _each_of_ours(
                names,
                "webhook.?rules.orValue([]).all(rule,\n"
                "    rule.?operations.orValue([]).all(one, one in ['CREATE', 'UPDATE'])\n"
                f"    && rule.?apiGroups.orValue([]).all(one, one in {strings(groups)})\n"
                f"    && rule.?resources.orValue([]).all(one, one in\n"
                f"      {strings(resources)}))",
            ),
            f"{may_only} register webhooks for CREATE and UPDATE of pods and workloads",
        ),
        Check(
            _each_of_ours(
                names,
                "webhook.?namespaceSelector.matchExpressions.orValue([]).exists(one,\n"
                "    one.key == 'kubernetes.io/metadata.name' && one.operator == 'NotIn'\n"
                f"    && {strings(namespaces)}.all(name, name in one.?values.orValue([])))",
            ),
            f"{may_only} register webhooks that exclude the namespaces {' and '.join(namespaces)}",
        ),
    ]


def _additions(
    may_only: str,
    may_not: str,
    names: Sequence[str],
    selectors: Selectors,
    namespaces: list[str],
) -> list[Check]:
    """Return the checks that reject additions which the controller would mistake for an admin's.

    Existing additions are allowed, because an admin may have made them.
    """
    # During a write, GKE Autopilot adds exclusions for GKE's namespaces.
    exemption = (
        "one.key == 'kubernetes.io/metadata.name' && one.operator == 'NotIn'\n"
        f"      && one.?values.orValue([]).all(name, name in {strings(namespaces)}\n"
        "        || name.matches('^(gke|gmp|kube)-'))\n    || "
    )
    conditions = (configurations.NOT_YET["name"], configurations.USES)
    return [
        Check(
            _each_webhook(
                f"webhook.name in {strings(names)}\n"
                "  || variables.before.exists(old, old.name == webhook.name)"
            ),
            f"{may_only} register webhooks named {', '.join(names)}",
        ),
        Check(
            _each_webhook(
                "webhook.?matchConditions.orValue([]).all(one,\n"
                f"    one.name in {strings(conditions)}\n"
                f"    || {_before('one in old.?matchConditions.orValue([])')})"
            ),
            f"{may_only} write the match conditions {' and '.join(conditions)}",
        ),
        *_selector(may_not, "objectSelector", selectors.objects, _OF_PODS),
        *_selector(may_not, "namespaceSelector", selectors.namespaces, exempt=exemption),
    ]


def _selector(
    may_not: str,
    selector: str,
    configured_selector: Mapping[str, Any],
    scope: str = "",
    *,
    exempt: str = "",
) -> list[Check]:
    """Return checks that a selector only has configured, exempt or existing requirements."""
    labels, expressions = f"{selector}.matchLabels", f"{selector}.matchExpressions"
    requirements = "".join(
        f"{_json([requirement['key'], requirement['operator'], *requirement.get('values', ())])}, "
        for requirement in configured_selector.get("matchExpressions", ())
    )
    tests = {
        labels: f"!webhook.?{labels}.hasValue()\n"
        f"  || {scope}webhook.{labels} == {_json(configured_selector.get('matchLabels', {}))}\n"
        f"  || {_before(f'old.?{labels} == webhook.?{labels}')}",
        expressions: f"webhook.?{expressions}.orValue([]).all(one,\n"
        f"    {exempt}{scope}([one.key, one.operator] + one.?values.orValue([]))"
        f" in [{requirements}]\n"
        f"    || {_before(f'one in old.?{expressions}.orValue([])')})",
    }
    return [
        Check(_each_webhook(test), f"{may_not} add or change {path} of webhooks")
        for path, test in tests.items()
    ]


def _json(value: Any) -> str:
    """Return a string, list or map as CEL, in the same form as the Helm chart's toJson."""
    return msgspec.json.encode(value, order="sorted").decode()


def _before(test: str) -> str:
    """Test the old webhook of the same name as `old`; false if there was none."""
    return f"variables.before.exists(old, old.name == webhook.name\n      && {test})"


def _each_of_ours(names: Sequence[str], test: str) -> str:
    """Test each webhook, except unchanged ones with other names, which an admin has written."""
    return _each_webhook(
        f"(!(webhook.name in {strings(names)}) && webhook in variables.before)\n  || ({test})"
    )


def _each_webhook(test: str) -> str:
    return f"request.operation == 'DELETE'\n|| object.?webhooks.orValue([]).all(webhook,\n  {test})"
