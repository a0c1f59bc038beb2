"""The guard's rights of a user, which commands check before they try anything."""

from __future__ import annotations

from holdfast.webhook.errors import CommandError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.client import Api
from holdfast.webhook.policies.pods import RELEASE_GROUP, RELEASE_RESOURCE


def require(api: Api, namespace: str, what: str, verb: str, role: str) -> None:
    """Require a verb on holds, also where no guard is installed. Raises CommandError."""
    group, resource = RELEASE_GROUP, RELEASE_RESOURCE
    if not listing.may(api, namespace=namespace, verb=verb, group=group, resource=resource):
        raise CommandError(
            f"you may not {what} in namespace {namespace}: the verb {verb!r} on "
            f"{resource}.{group} is missing; ask an admin to bind the ClusterRole {role}"
        )
