"""Compare webhook configurations with the desired ones. Pure."""

import base64
from collections.abc import Mapping
from typing import Any

from holdfast.webhook.registration.configurations import NOT_YET, Configuration

OWN_SUFFIX = ".holdfast.dev"
"""The suffix of our webhooks' names."""


def ours(configuration: Configuration) -> list[dict[str, Any]]:
    """Return our webhooks in a configuration."""
    return [
        webhook
        for webhook in configuration.get("webhooks") or ()
        if webhook["name"].endswith(OWN_SUFFIX)
    ]


def bundle_of(webhook: Mapping[str, Any]) -> bytes:
    """Return a webhook's caBundle (PEM); empty if it is missing."""
    return base64.b64decode(webhook["clientConfig"].get("caBundle") or "")


def idle(desired: Configuration) -> Configuration:
    """Return a configuration with its webhooks disabled."""
    webhooks = [
        {**webhook, "matchConditions": [NOT_YET, *webhook["matchConditions"]]}
        for webhook in desired["webhooks"]
    ]
    return {**desired, "webhooks": webhooks}


def stale(live: Configuration, desired: Configuration) -> list[str]:
    """Return the paths of our outdated webhooks and conditions, last first.

    An apply does not remove them if another field manager has also written them.
    """
    conditions = {webhook["name"]: webhook["matchConditions"] for webhook in desired["webhooks"]}
    paths: list[str] = []
    for index, webhook in enumerate(live.get("webhooks") or ()):
        if webhook["name"] not in conditions:
            paths += [f"/webhooks/{index}"] if webhook["name"].endswith(OWN_SUFFIX) else []
        # The webhook holds no pods until the condition that disables it is removed.
        elif NOT_YET not in conditions[webhook["name"]]:
            paths += [
                f"/webhooks/{index}/matchConditions/{condition_index}"
                for condition_index, condition in enumerate(webhook.get("matchConditions") or ())
                if condition["name"] == NOT_YET["name"]
            ]
    return paths[::-1]


def holds(live: Any, desired: Any, *, longer: bool = False) -> bool:
    """Return whether `live` contains everything in `desired`; additions by others are ignored.

    Lists of named items are compared by name, as the API server merges them. Our outdated webhooks
    and conditions count as a difference. A selector may be narrower: GKE Autopilot excludes its
    namespaces from every webhook, and restores that whenever it is removed. `longer` also accepts a
    `NotIn` with more values than ours.
    """
    if isinstance(desired, dict):
        return isinstance(live, dict) and all(
            key in live
            and (_is_as_narrow if key == "matchExpressions" else holds)(
                live[key], value, longer=longer
            )
            for key, value in desired.items()
        )
    if not isinstance(desired, list):
        return bool(live == desired)
    if not isinstance(live, list):
        return False
    if desired and all(isinstance(item, dict) and "name" in item for item in desired):
        by_name = {item["name"]: item for item in live}
        names = {item["name"] for item in desired}
        old = {name for name in by_name if name.endswith(OWN_SUFFIX)} - names
        waits = NOT_YET["name"] in by_name and NOT_YET["name"] not in names
        same = all(holds(by_name.get(item["name"]), item, longer=longer) for item in desired)
        return not old and not waits and same
    return len(live) == len(desired) and all(map(holds, live, desired))


def _is_as_narrow(live: Any, desired: list[Any], *, longer: bool) -> bool:
    return isinstance(live, list) and all(
        any(
            live_requirement == requirement or (longer and _excludes(live_requirement, requirement))
            for live_requirement in live
        )
        for requirement in desired
    )


def _excludes(live: dict[str, Any], desired: dict[str, Any]) -> bool:
    """Return whether a `NotIn` excludes at least the values of another."""
    values = live.get("values") or []
    return live | {"values": []} == desired | {"values": []} and (
        desired["operator"] == "NotIn" and set(values) >= set(desired["values"])
    )
