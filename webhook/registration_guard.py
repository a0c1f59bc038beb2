"""What the controller may register: the policy that bounds its webhook configurations. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from webhook import registration, workloads
from webhook.conditions import string, strings
from webhook.policy import Check, Installation, Object, by_controller, make_policy, make_rule


def webhooks_policy(name: str, names: Sequence[str], where: Installation) -> Object:
    """Make the policy that bounds the webhooks which the controller registers, by `names`.

    It bounds what they can be asked about, and keeps the controller from leaving anything out by
    what it would not put back itself. More it cannot: the controller writes conditions as its
    configuration says, and a condition `false` leaves everything out. To refuse an empty list, or
    a failure that is ignored, would take nothing from who has its token.
    """
    may_only = f"{where.controller} may only"
    return make_policy(
        name,
        rule=make_rule(
            "admissionregistration.k8s.io",
            ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
            ["CREATE", "UPDATE", "DELETE"],
        ),
        condition=by_controller(where),
        variables={
            "before": "request.operation == 'UPDATE' ? oldObject.?webhooks.orValue([]) : []"
        },
        checks=[
            Check(
                "(request.operation == 'DELETE' ? oldObject.metadata.name : object.metadata.name)\n"
                f"  in {strings(where.configurations)}",
                f"{may_only} write webhook configurations of the name "
                f"{' or '.join(where.configurations)}",
            ),
            Check(
                _each_of_ours(
                    names,
                    "has(webhook.clientConfig.service) && !has(webhook.clientConfig.url)\n"
                    f"  && webhook.clientConfig.service.namespace == {string(where.namespace)}\n"
                    f"  && webhook.clientConfig.service.name == {string(where.service)}",
                ),
                f"{may_only} register webhooks of the Service {where.namespace}/{where.service}",
            ),
            *_bounds(may_only, names, where),
            *_additions(may_only, names),
        ],
    )


def _bounds(may_only: str, names: Sequence[str], where: Installation) -> list[Check]:
    """Check what webhooks are asked about, and where."""
    groups = {"": None, **{resource.group: None for resource in workloads.RESOURCES}}
    resources = ["pods", *(resource.name for resource in workloads.RESOURCES)]
    left_out = list(dict.fromkeys((*registration.EXCLUDED_NAMESPACES, where.namespace)))
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
                f"    && {strings(left_out)}.all(name, name in one.?values.orValue([])))",
            ),
            f"{may_only} register webhooks that leave the namespaces {' and '.join(left_out)} out",
        ),
    ]


def _additions(may_only: str, names: Sequence[str]) -> list[Check]:
    """Check that nothing is added which the controller takes for others', and leaves as it is.

    What is there already may stay, for an admin may have written it.
    """
    conditions = (registration.NOT_YET["name"], registration.ASKS)
    return [
        Check(
            _each_webhook(
                f"webhook.name in {strings(names)}\n"
                "  || variables.before.exists(old, old.name == webhook.name)"
            ),
            f"{may_only} register webhooks of the names {', '.join(names)}",
        ),
        Check(
            _each_webhook(
                "webhook.?matchConditions.orValue([]).all(one,\n"
                f"    one.name in {strings(conditions)}\n"
                f"    || {_before('one in old.?matchConditions.orValue([])')})"
            ),
            f"{may_only} write the conditions {' and '.join(conditions)}",
        ),
        *(
            Check(
                _each_webhook(
                    f"!webhook.?{path}.hasValue()\n"
                    f"  || {_before(f'old.?{path} == webhook.?{path}')}"
                ),
                f"{may_only} leave the {path} of webhooks out, or as it was",
            )
            for path in (
                "objectSelector.matchLabels",
                "objectSelector.matchExpressions",
                "namespaceSelector.matchLabels",
            )
        ),
    ]


def _before(test: str) -> str:
    """Test the webhook of this name as it was, `old`; false where there was none."""
    return f"variables.before.exists(old, old.name == webhook.name\n      && {test})"


def _each_of_ours(names: Sequence[str], test: str) -> str:
    """Test each webhook but those of others that are as they were: an admin has written them."""
    return _each_webhook(
        f"(!(webhook.name in {strings(names)}) && webhook in variables.before)\n  || ({test})"
    )


def _each_webhook(test: str) -> str:
    return f"request.operation == 'DELETE'\n|| object.?webhooks.orValue([]).all(webhook,\n  {test})"
