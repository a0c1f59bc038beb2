"""Whether the API server serves a kind of KubeVirt's.

A 404 without a Kubernetes reason may mean that a kind is not installed, or may come from a proxy.
Only the discovery lists of the API server show which.
"""

import msgspec

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import READ_TIMEOUT, Api
from holdfast.webhook.model import kubevirt

GROUPS = "/apis"
"""Lists the API groups; every account may read it."""


class _Named(msgspec.Struct):
    name: str


class Groups(msgspec.Struct):
    """The API groups that are served."""

    groups: list[_Named]

    @property
    def has_kubevirt(self) -> bool:
        """Whether KubeVirt's group is one of them."""
        return any(group.name == kubevirt.GROUP for group in self.groups)


class _Resources(msgspec.Struct):
    resources: list[_Named]


def serves(api: Api, resource: str, *, timeout: float = READ_TIMEOUT) -> bool:
    """Return whether the API server serves a kind of KubeVirt's.

    It does not if KubeVirt's API group is missing, or if what KubeVirt's operator left behind of it
    names no such kind. Raises ClusterError, also if the group is listed and yet not found.
    """
    try:
        served = listing.read(api, kubevirt.API_PATH, _Resources, timeout=timeout).resources
    except ApiStatusError as exc:
        if exc.status != 404:
            raise
        if listing.read(api, GROUPS, Groups, timeout=timeout).has_kubevirt:
            raise
        return False
    return any(kind.name == resource for kind in served)
