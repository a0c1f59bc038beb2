"""The policy that limits what users who may freeze a namespace may change in it. Pure.

Freezing takes the verb `patch` on the namespace. RBAC alone would thereby also permit its labels,
which select policies and Pod Security levels, annotations such as that of PodNodeSelector, and an
owner that does not exist, for which the garbage collector deletes the namespace.
"""

from holdfast.webhook.framework.cel import strings
from holdfast.webhook.model.freezes import FREEZE, FREEZE_UNTIL
from holdfast.webhook.policies import builder, expressions
from holdfast.webhook.policies.builder import Check

FREEZE_POLICY = "holdfast-freeze"
FREEZE_VERB = "freeze"
"""The verb on holds by which the role of users who freeze is recognized."""
_FIXED = ("metadata.labels", "metadata.ownerReferences", "metadata.finalizers", "spec")
_KEYS = (FREEZE, FREEZE_UNTIL)
_MAY_UPDATE = (
    "authorizer.group('').resource('namespaces')\n"
    "  .namespace(request.name).name(request.name).check('update').allowed()"
)


def freeze_policy() -> builder.Object:
    """Build the policy for users with the verb `freeze` who may not update the namespace.

    Accounts that may patch namespaces for another purpose are not affected.
    """
    may_not = f"with the verb {FREEZE_VERB!r} alone, you may not change"
    return builder.make_policy(
        FREEZE_POLICY,
        rule=builder.make_rule("", ["namespaces"], ["UPDATE"]),
        condition=(
            "may-freeze-only",
            f"!{_MAY_UPDATE}\n&& {expressions.may(FREEZE_VERB, 'request.name')}",
        ),
        checks=[
            Check(
                builder.entries_kept("annotations", f"key in {strings(_KEYS)}"),
                f"{may_not} annotations other than {' and '.join(_KEYS)}",
            ),
            *builder.fixed(_FIXED, may_not),
        ],
    )
