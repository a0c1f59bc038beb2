"""What is registered, compared with what is to be. Pure: no I/O, no clock."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from webhook.registration import NOT_YET, Configuration

OWN_SUFFIX = ".holdfast.dev"
"""What the names of our webhooks end with; all others are somebody else's."""


def ours(found: Configuration) -> list[dict[str, Any]]:
    """Give the webhooks of a configuration that are ours."""
    return [one for one in found.get("webhooks") or () if one["name"].endswith(OWN_SUFFIX)]


def bundle_of(webhook: Mapping[str, Any]) -> bytes:
    """Give a webhook's caBundle, PEM; nothing where it has none that can be read."""
    try:
        return base64.b64decode(webhook["clientConfig"].get("caBundle") or "", validate=True)
    except (binascii.Error, KeyError):
        return b""


def idle(desired: Configuration) -> Configuration:
    """Make webhooks that nobody calls yet."""
    webhooks = [
        {**one, "matchConditions": [NOT_YET, *one["matchConditions"]]}
        for one in desired["webhooks"]
    ]
    return {**desired, "webhooks": webhooks}


def stale(found: Configuration, desired: Configuration) -> list[str]:
    """Find webhooks of ours, and the condition of idle ones, that are not wanted; the last first.

    An apply leaves them where somebody else has written them.
    """
    wanted = {one["name"]: one["matchConditions"] for one in desired["webhooks"]}
    paths: list[str] = []
    for place, one in enumerate(found.get("webhooks") or ()):
        if one["name"] not in wanted:
            paths += [f"/webhooks/{place}"] if one["name"].endswith(OWN_SUFFIX) else []
        elif NOT_YET not in wanted[one["name"]]:
            paths += [
                f"/webhooks/{place}/matchConditions/{at}"
                for at, condition in enumerate(one.get("matchConditions") or ())
                if condition["name"] == NOT_YET["name"]
            ]
    return paths[::-1]


def holds(found: Any, wanted: Any) -> bool:
    """Tell whether all that is wanted is there; what others have added is theirs.

    Lists of named things are compared by name, as the API server merges them; webhooks and
    conditions that were ours, and are wanted no longer, make a difference.
    """
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and holds(found[key], value) for key, value in wanted.items()
        )
    if not isinstance(wanted, list):
        return bool(found == wanted)
    if not isinstance(found, list):
        return False
    if wanted and all(isinstance(one, dict) and "name" in one for one in wanted):
        there = {one["name"]: one for one in found}
        names = {one["name"] for one in wanted}
        old = {name for name in there if name.endswith(OWN_SUFFIX)} - names
        waits = NOT_YET["name"] in there and NOT_YET["name"] not in names
        return not old and not waits and all(holds(there.get(one["name"]), one) for one in wanted)
    return len(found) == len(wanted) and all(map(holds, found, wanted))
