"""Check whether the API server serves a KubeVirt kind.

A 404 without a Kubernetes reason may mean that a kind is not installed, or may come from a proxy.
Only API discovery can distinguish the two.
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
"""The path of the list of API groups; every account may read it."""

Read = Callable[[str, Any], Any]
"""Reads a path and decodes it to a type. Raises ClusterError."""


class _Named(msgspec.Struct):
    name: str


class _Groups(msgspec.Struct):
    groups: list[_Named]


class _Resources(msgspec.Struct):
    resources: list[_Named]


def serves(api: Api, resource: str, *, timeout: float = READ_TIMEOUT) -> bool:
    """Return whether the API server serves a KubeVirt kind. Raises ClusterError."""
    return lists(partial(listing.read, api, timeout=timeout), resource)


def lists(read: Read, resource: str) -> bool:
    """Return whether API discovery lists a KubeVirt kind.

    Returns False if KubeVirt's API group is missing, or if KubeVirt's operator has left the
    group without the kind. Raises ClusterError, also if the group is listed but cannot be found.
    """
    try:
        resources = read(kubevirt.API_PATH, _Resources).resources
    except ApiStatusError as exc:
        if exc.status != 404:
            raise
        if any(group.name == kubevirt.GROUP for group in read(GROUPS, _Groups).groups):
            raise
        return False
    return any(kind.name == resource for kind in resources)
