"""The guard's rights of a user, which commands check before they try anything."""

import msgspec

from holdfast.webhook.errors import CommandError
from holdfast.webhook.kube.client import Api
from holdfast.webhook.policies.pods import RELEASE_GROUP, RELEASE_RESOURCE

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def require(api: Api, namespace: str, what: str, verb: str, role: str) -> None:
    """Require a verb on holds, also where no guard is installed. Raises CommandError."""
    group, resource = RELEASE_GROUP, RELEASE_RESOURCE
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = api.request("POST", _REVIEWS, body=msgspec.json.encode(review))
    if not msgspec.json.decode(answer).get("status", {}).get("allowed"):
        raise CommandError(
            f"you may not {what} in namespace {namespace}: the verb {verb!r} on "
            f"{resource}.{group} is missing; ask an admin to bind the ClusterRole {role}"
        )
