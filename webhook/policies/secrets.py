"""The policy that limits the Secrets that the controller may write. Pure.

RBAC lets the controller write its two Secrets by name. With a stolen token, a Secret of one of
these names could hold a token of another account, which does not expire: first the garbage
collector deletes the present one, through an owner that does not exist.
"""

from holdfast.webhook.framework.cel import strings
from holdfast.webhook.policies import builder
from holdfast.webhook.policies.builder import Check
from holdfast.webhook.registration.secrets import TYPES

CONTROLLER_SECRETS = "holdfast-controller-secrets"
_FIELDS = ("ownerReferences", "finalizers")


def secrets_policy(where: builder.InstallationNames) -> builder.Object:
    """Build the policy for the controller's Secrets: types, owners, and that they stay mutable."""
    types = list(TYPES.values())
    kept = (
        f"object.metadata.?{field}.orValue([])\n  == (request.operation == 'UPDATE'"
        f" ? oldObject.metadata.?{field}.orValue([]) : [])"
        for field in _FIELDS
    )
    return builder.make_policy(
        CONTROLLER_SECRETS,
        rule=builder.make_rule("", ["secrets"], ["CREATE", "UPDATE"]),
        condition=builder.by_controller(where),
        checks=[
            Check(
                f"object.type in {strings(types)}",
                f"{where.controller} may only write Secrets of type {' or '.join(types)}",
            ),
            Check(
                "\n&& ".join(kept),
                f"{where.controller} may not change {' or '.join(_FIELDS)} of Secrets",
            ),
            Check(
                "!object.?immutable.orValue(false)",
                f"{where.controller} may not make Secrets immutable",
            ),
        ],
    )
