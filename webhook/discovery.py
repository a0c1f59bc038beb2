"""What the API server serves, by its own word.

A 404 that Kubernetes gives no reason for may say that a kind is not there, or be anybody's between
the API server and us. Only the lists of what is served tell the one from the other.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from webhook import vms
from webhook.cluster import READ_TIMEOUT, Api
from webhook.errors import ApiStatusError, UnreachableError

GROUPS = "/apis"
"""Where the API server lists the API groups; every account may ask."""

_NOT_FOUND = 404


class _Named(msgspec.Struct):
    name: str


class _Groups(msgspec.Struct):
    groups: list[_Named]


class _Resources(msgspec.Struct):
    resources: list[_Named]


T = TypeVar("T", _Groups, _Resources)


def serves(api: Api, resource: str, *, timeout: float = READ_TIMEOUT) -> bool:
    """Tell whether the API server knows a kind of KubeVirt's: else that was never there, or went.

    Its own API is nowhere then; or what KubeVirt's operator leaves behind of it names none. Raises
    ClusterError, also where KubeVirt's API is named and yet not there.
    """
    try:
        found = _read(api, vms.API_PATH, _Resources, timeout)
    except ApiStatusError as exc:
        if exc.status != _NOT_FOUND:
            raise
        groups = _read(api, GROUPS, _Groups, timeout).groups
        if any(group.name == vms.GROUP for group in groups):
            raise
        return False
    return any(one.name == resource for one in found.resources)


def _read(api: Api, path: str, kind: type[T], timeout: float) -> T:
    try:
        return msgspec.json.decode(api.request("GET", path, timeout=timeout), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise UnreachableError(f"the answer for {path} cannot be read: {exc}") from exc
