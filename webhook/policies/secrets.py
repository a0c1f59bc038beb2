"""The policy that limits the Secrets and the Lease that the controller may write. Pure.

RBAC lets the controller write its two Secrets by name. With its token, an attacker could set a
nonexistent owner on a Secret, which makes the garbage collector delete it, and then create one of
the same name for a non-expiring token of another account. A finalizer on the Lease would block the
deletion of the namespace after Holdfast is removed. Labels without a limit could use up the
object's maximum size in etcd, and the controller could no longer write its data.
"""

from holdfast.webhook.framework.cel import strings
from holdfast.webhook.kube.leader_election import LEASE
from holdfast.webhook.policies import builder
from holdfast.webhook.policies.builder import Check
from holdfast.webhook.registration.secrets import TYPES

CONTROLLER_SECRETS = "holdfast-controller-secrets"
_WRITES = ("CREATE", "UPDATE")
_FIELDS = ("ownerReferences", "finalizers")
_MOST_LABELS = 64


def secrets_policy(installation: builder.InstallationNames) -> builder.Object:
    """Build the policy that limits types, owners and labels of the controller's Secrets.

    The Secrets stay mutable. Owners and finalizers of the Lease cannot change, either.
    """
    types = list(TYPES.values())
    tests = (
        f"object.metadata.?{field}.orValue([])\n  == (request.operation == 'UPDATE'"
        f" ? oldObject.metadata.?{field}.orValue([]) : [])"
        for field in _FIELDS
    )
    lease_rule = builder.make_rule("coordination.k8s.io", ["leases"], [*_WRITES])
    return builder.make_policy(
        CONTROLLER_SECRETS,
        rule=builder.make_rule("", ["secrets"], [*_WRITES]),
        also=[{**lease_rule, "resourceNames": [LEASE]}],  # not the Leases of nodes
        condition=builder.by_controller(installation),
        checks=[
            Check(
                f"request.resource.resource != 'secrets' || dyn(object).type in {strings(types)}",
                f"{installation.controller} may only write Secrets of type {' or '.join(types)}",
            ),
            Check(
                "\n&& ".join(tests),
                f"{installation.controller} may not change {' or '.join(_FIELDS)} of Secrets and"
                " Leases",
            ),
            Check(
                "!dyn(object).?immutable.orValue(false)",
                f"{installation.controller} may not make Secrets immutable",
            ),
            Check(
                f"object.metadata.?labels.orValue({{}}).size() <= {_MOST_LABELS}",
                f"{installation.controller} may not write Secrets or Leases with more than"
                f" {_MOST_LABELS} labels",
            ),
        ],
    )
