"""A user's permissions for the guard, which commands check before they change anything."""

import msgspec

from holdfast.webhook import safe_json
from holdfast.webhook.errors import CommandError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api
from holdfast.webhook.policies.expressions import RELEASE_GROUP, RELEASE_RESOURCE

CONFIG_READER = "holdfast-config-reader"
"""The Role in Holdfast's namespace that grants reading the installed configuration."""
FREEZER = "holdfast-freezer"


def allowed(api: Api, attributes: dict[str, str], user: str = "") -> bool:
    """Return whether a user, by default the current one, has a permission. Raises ClusterError."""
    kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
    spec = {"resourceAttributes": attributes, **({"user": user} if user else {})}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    path = f"/apis/authorization.k8s.io/v1/{kind.lower()}s"
    response = api.request("POST", path, body=msgspec.json.encode(review))
    return bool(listing.decoded(response, path, safe_json.ANY).get("status", {}).get("allowed"))


def require_freezing(api: Api, namespace: str) -> None:
    """Check the permission to freeze a namespace, even in a dry run. Raises CommandError."""
    attributes = {"verb": "patch", "resource": "namespaces"}
    if not allowed(api, {**attributes, "namespace": namespace, "name": namespace}):
        raise CommandError(
            f"you may not freeze or thaw namespace {namespace}: the verb 'patch' on namespaces is "
            f"missing; ask a cluster admin to bind the ClusterRole {FREEZER} in this namespace"
        )


def require(api: Api, namespace: str, action: str, verb: str, role: str) -> None:
    """Check the permission for a verb on holds, even without a guard. Raises CommandError."""
    group, resource = RELEASE_GROUP, RELEASE_RESOURCE
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
    if not allowed(api, attributes):
        raise CommandError(
            f"you may not {action} in namespace {namespace}: the verb {verb!r} on "
            f"{resource}.{group} is missing; ask an admin to bind the ClusterRole {role}"
        )
