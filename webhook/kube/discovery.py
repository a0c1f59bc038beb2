"""Whether the API server serves a kind of KubeVirt's.

A 404 without a Kubernetes reason may mean that a kind is not installed, or may come from a proxy.
Only the discovery lists of the API server show which.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import READ_TIMEOUT, Api
from holdfast.webhook.model import kubevirt

GROUPS = "/apis"
"""Lists the API groups; every account may read it."""

Read = Callable[[str, Any], Any]
"""Reads a path as a type. Raises ClusterError."""


class _Named(msgspec.Struct):
    name: str


class _Groups(msgspec.Struct):
    groups: list[_Named]


class _Resources(msgspec.Struct):
    resources: list[_Named]


def serves(api: Api, resource: str, *, timeout: float = READ_TIMEOUT) -> bool:
    """Return whether the API server serves a kind of KubeVirt's. Raises ClusterError."""
    return lists(partial(listing.read, api, timeout=timeout), resource)


def lists(read: Read, resource: str) -> bool:
    """Return whether the API server lists a kind of KubeVirt's.

    It does not if KubeVirt's API group is missing, or if what KubeVirt's operator left behind of it
    names no such kind. Raises ClusterError, also if the group is listed and yet not found.
    """
    try:
        served = read(kubevirt.API_PATH, _Resources).resources
    except ApiStatusError as exc:
        if exc.status != 404:
            raise
        if any(group.name == kubevirt.GROUP for group in read(GROUPS, _Groups).groups):
            raise
        return False
    return any(kind.name == resource for kind in served)
