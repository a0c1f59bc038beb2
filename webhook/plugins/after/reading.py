"""The state of the objects that a pod waits for, read once, for commands without a watch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.webhook.errors import ClusterError, HandleError, LookupLimitError
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.plugin import Allow, Wait
from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.plugins.after import conditions as after_conditions
from holdfast.webhook.plugins.after.conditions import WaitedObject
from holdfast.webhook.plugins.after.targets import SERVICE, WaitedTarget

_MAX_AGE_SECONDS = 5.0
"""How long a lookup is cached: many listed pods wait for the same objects."""
_States = dict[ObjectKey, frozenset[str]]


class ObjectReader:
    """Reads the objects that pods wait for, through a handle."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._unreadable: set[str] = set()
        """Paths of kinds in a namespace that cannot be read, and are not requested again."""

    def permit(self, namespace: str, targets: Sequence[WaitedTarget]) -> Allow | Wait:
        """Return whether a pod still waits, and for what, as far as the user may read it."""
        states = {target: self._state(namespace, target) for target in targets}
        known_states = {target: state for target, state in states.items() if state is not None}
        unmet = [
            str(target)
            for target in known_states
            if not after_conditions.is_met(target, _of(known_states, target))
        ]
        unknown = ", ".join(str(target) for target in targets if target not in known_states)
        waits = [*unmet, *([f"(state unknown) {unknown}"] if unknown else [])]
        failed = [
            f"{target.kind.name}/{target.name} has failed"
            for target in known_states
            if after_conditions.has_failed(target, _of(known_states, target))
        ]
        if not waits:
            return Allow()
        return Wait(None, f"waits for {', '.join(waits)}", "; ".join(failed))

    def _state(self, namespace: str, target: WaitedTarget) -> _States | None:
        """Return an object's state by its key; empty if it does not exist, None if unknown.

        The state of a Service comes from a list of its EndpointSlices.
        """
        path = kind_path = target.kind.path(namespace)
        if target.kind is not SERVICE:
            path = target.kind.path(namespace, target.name)
        if kind_path in self._unreadable:
            return None
        try:
            body = self._handle.lookup.get(path, max_age=_MAX_AGE_SECONDS) or {}
        except LookupLimitError:
            return None
        except (ClusterError, HandleError):
            self._unreadable.add(kind_path)
            return None
        states: _States = {}
        objects = body.get("items") or () if target.kind is SERVICE else [body] if body else ()
        for item in objects:
            after_conditions.update(states, target.kind, _decoded(item))
        key = namespace, target.name
        return {key: states[key]} if key in states else {}


def _of(states: Mapping[WaitedTarget, _States], target: WaitedTarget) -> frozenset[str] | None:
    return next(iter(states[target].values()), None)


def _decoded(item: Mapping[str, Any]) -> WaitedObject:
    return msgspec.json.decode(msgspec.json.encode(item), type=WaitedObject)
