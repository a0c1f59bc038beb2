"""The policies that limit what users who may freeze a namespace can change in it. Pure.

Freezing requires the verb `patch` on the namespace. RBAC alone would then also permit changes of
its labels, which select policies and Pod Security levels, and of annotations such as
PodNodeSelector's. A nonexistent owner would even make the garbage collector delete the namespace. A
user who may also create roles could grant `patch` to another account without the verb `freeze`.
"""

from holdfast.webhook.framework.cel import strings
from holdfast.webhook.model.freezes import FREEZE, FREEZE_UNTIL
from holdfast.webhook.policies import builder, expressions
from holdfast.webhook.policies.builder import Check

FREEZE_POLICY = "holdfast-freeze"
FREEZE_ROLES_POLICY = "holdfast-freeze-roles"
FREEZE_VERB = "freeze"
"""The verb on holds that identifies users who may freeze."""
_FIXED = ("metadata.labels", "metadata.ownerReferences", "metadata.finalizers", "spec")
_KEYS = (FREEZE, FREEZE_UNTIL)


def _may_freeze_only(namespace: str) -> tuple[str, str]:
    """Return the condition that matches users who may freeze, but not update, a namespace.

    Accounts that may patch namespaces for another purpose are not affected.
    """
    may_update = (
        "authorizer.group('').resource('namespaces')\n"
        f"  .namespace({namespace}).name({namespace}).check('update').allowed()"
    )
    return (
        "may-freeze-only",
        f"!{may_update}\n&& {expressions.may(FREEZE_VERB, namespace, namespace)}",
    )


def freeze_policy() -> builder.Object:
    """Build the policy for the namespace itself."""
    may_not = f"with the verb {FREEZE_VERB!r} alone, you may not change"
    return builder.make_policy(
        FREEZE_POLICY,
        rule=builder.make_rule("", ["namespaces"], ["UPDATE"]),
        condition=_may_freeze_only("request.name"),
        checks=[
            Check(
                builder.entries_kept("annotations", f"key in {strings(_KEYS)}"),
                f"{may_not} annotations other than {' and '.join(_KEYS)}",
            ),
            *builder.fixed(_FIXED, may_not),
        ],
    )


def freeze_roles_policy() -> builder.Object:
    """Build the policy for roles that grant `patch` on namespaces to other accounts.

    A role's existing rules may stay: an admin may have granted the verb.
    """
    resources = ["roles", "clusterroles"]
    tests = (
        f"rule.?{field}.orValue([]).exists(one, one in {strings([name, '*'])})"
        for field, name in (("verbs", "patch"), ("resources", "namespaces"), ("apiGroups", ""))
    )
    rules = builder.part("object", "rules", empty="[]")  # a role without rules has null
    grants = f"{rules}\n  .exists(rule, " + "\n  && ".join(tests) + ")"
    rules_kept = "request.operation == 'UPDATE' && object.?rules == oldObject.?rules"
    return builder.make_policy(
        FREEZE_ROLES_POLICY,
        rule=builder.make_rule("rbac.authorization.k8s.io", resources, ["CREATE", "UPDATE"]),
        condition=_may_freeze_only("request.?namespace.orValue('')"),
        checks=[
            Check(
                f"{rules_kept}\n|| !{grants}",
                f"with the verb {FREEZE_VERB!r} alone, you may not grant the verb 'patch' on "
                "namespaces: bind the ClusterRole holdfast-freezer instead",
            )
        ],
    )
