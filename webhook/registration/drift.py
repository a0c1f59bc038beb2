"""Compare webhook configurations with the desired ones. Pure."""

import base64
from collections.abc import Mapping
from typing import Any

from holdfast.webhook.registration.configurations import NOT_YET, Configuration

OWN_SUFFIX = ".holdfast.dev"
"""The suffix of our webhooks' names."""


def ours(found: Configuration) -> list[dict[str, Any]]:
    """Return our webhooks in a configuration."""
    return [one for one in found.get("webhooks") or () if one["name"].endswith(OWN_SUFFIX)]


def bundle_of(webhook: Mapping[str, Any]) -> bytes:
    """Return a webhook's caBundle (PEM); empty if it is missing."""
    return base64.b64decode(webhook["clientConfig"].get("caBundle") or "")


def idle(desired: Configuration) -> Configuration:
    """Return a configuration with its webhooks disabled."""
    webhooks = [
        {**one, "matchConditions": [NOT_YET, *one["matchConditions"]]}
        for one in desired["webhooks"]
    ]
    return {**desired, "webhooks": webhooks}


def stale(found: Configuration, desired: Configuration) -> list[str]:
    """Return the paths of our outdated webhooks and conditions, last first.

    An apply does not remove them if another field manager has also written them.
    """
    wanted = {one["name"]: one["matchConditions"] for one in desired["webhooks"]}
    paths: list[str] = []
    for place, one in enumerate(found.get("webhooks") or ()):
        if one["name"] not in wanted:
            paths += [f"/webhooks/{place}"] if one["name"].endswith(OWN_SUFFIX) else []
        # The webhook holds no pods until the condition that disables it is removed.
        elif NOT_YET not in wanted[one["name"]]:
            paths += [
                f"/webhooks/{place}/matchConditions/{at}"
                for at, condition in enumerate(one.get("matchConditions") or ())
                if condition["name"] == NOT_YET["name"]
            ]
    return paths[::-1]


def holds(found: Any, wanted: Any, *, longer: bool = False) -> bool:
    """Return whether `found` contains everything in `wanted`; additions by others are ignored.

    Lists of named items are compared by name, as the API server merges them. Our outdated webhooks
    and conditions count as a difference. A selector may be narrower: GKE Autopilot excludes its
    namespaces from every webhook, and restores that whenever it is removed. `longer` also accepts a
    `NotIn` with more values than ours.
    """
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found
            and (_is_as_narrow if key == "matchExpressions" else holds)(
                found[key], value, longer=longer
            )
            for key, value in wanted.items()
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
        same = all(holds(there.get(one["name"]), one, longer=longer) for one in wanted)
        return not old and not waits and same
    return len(found) == len(wanted) and all(map(holds, found, wanted))


def _is_as_narrow(found: Any, wanted: list[Any], *, longer: bool) -> bool:
    return isinstance(found, list) and all(
        any(each == one or (longer and _excludes(each, one)) for each in found) for one in wanted
    )


def _excludes(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return whether a `NotIn` excludes at least the values of another."""
    values = found.get("values") or []
    return found | {"values": []} == wanted | {"values": []} and (
        wanted["operator"] == "NotIn" and set(values) >= set(wanted["values"])
    )
