"""The conditions that objects meet, as the API server reports them. Pure."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TypeVar

import msgspec

from holdfast.webhook import safe_json
from holdfast.webhook.model.objects import ApiStruct, Metadata, ObjectKey
from holdfast.webhook.plugins.after.targets import (
    EXISTS,
    ROLLED_OUT,
    SERVICE,
    WaitedKind,
    WaitedTarget,
)

_MAX_CONDITIONS = 100
"""Maximum number of conditions kept per object; no controller sets that many."""
_LONGEST = 253 + 1 + 63
"""Maximum length of a condition that a pod can wait for."""
_MAX_SHARED = 10
"""Maximum conditions of a shared state: larger ones are rare, and would outlive their objects."""
_FAILED = "Failed"
_SERVICE_LABEL = "kubernetes.io/service-name"


class _ObjectMetadata(Metadata, frozen=True):
    generation: int = 0


class WaitedObject(ApiStruct, frozen=True):
    """An object of any kind. Each part is decoded only for kinds that define it."""

    metadata: _ObjectMetadata = _ObjectMetadata()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")
    endpoints: msgspec.Raw = msgspec.Raw(b"[]")


class _ObjectCondition(ApiStruct, frozen=True):
    type: str = ""
    status: str = ""


class _ObjectConditions(ApiStruct, frozen=True):
    conditions: list[_ObjectCondition] | None = None


class _Partition(ApiStruct, frozen=True):
    partition: int | None = None


class _UpdateStrategy(ApiStruct, frozen=True):
    type: str = ""
    rolling_update: _Partition | None = None


class _RolloutSpec(ApiStruct, frozen=True):
    replicas: int | None = None
    update_strategy: _UpdateStrategy = _UpdateStrategy()


class _Rollout(ApiStruct, frozen=True):
    observed_generation: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    desired_number_scheduled: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0


class _EndpointConditions(ApiStruct, frozen=True):
    ready: bool | None = None


class _ServiceEndpoint(ApiStruct, frozen=True):
    conditions: _EndpointConditions = _EndpointConditions()


_CONDITIONS = msgspec.json.Decoder(_ObjectConditions)
_ROLLOUT_SPEC = msgspec.json.Decoder(_RolloutSpec)
_ROLLOUT = msgspec.json.Decoder(_Rollout)
_ENDPOINTS = msgspec.json.Decoder(list[_ServiceEndpoint] | None)
Decoded = TypeVar("Decoded")


def _decoded(
    source: msgspec.Raw, decoder: msgspec.json.Decoder[Decoded], default: Decoded
) -> Decoded:
    """Decode a part of an object, or return the default: custom kinds may have anything there."""
    try:
        return safe_json.decode(decoder, source)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return default


def update(
    states: dict[ObjectKey, frozenset[str]],
    kind: WaitedKind,
    obj: WaitedObject,
    *,
    deleted: bool = False,
) -> tuple[ObjectKey, frozenset[str] | None]:
    """Record the conditions that an object meets; return its key for users, and its old state.

    An EndpointSlice has the key of its Service. The state of a Service is the names of its slices
    with a ready endpoint.
    """
    key = _key(kind, obj)
    old_state = states.get(key)
    if kind is SERVICE:
        slices = (old_state or frozenset()) - {obj.metadata.name}
        if not deleted and _has_ready_endpoint(obj):
            slices |= {obj.metadata.name}
        states[key] = slices
    elif deleted:
        states.pop(key, None)
    else:
        state = _conditions(kind, obj)
        states[key] = _shared(state) if len(state) <= _MAX_SHARED else state
    return key, old_state


def service_of(obj: WaitedObject) -> ObjectKey:
    """Return the key of the Service to which a slice belongs."""
    return obj.metadata.namespace, (obj.metadata.labels or {}).get(_SERVICE_LABEL, "")


def drop_slice(
    states: dict[ObjectKey, frozenset[str]], service: ObjectKey, endpoint_slice: WaitedObject
) -> frozenset[str]:
    """Drop a slice from its former Service; return the Service's old state."""
    old_state = states.get(service, frozenset())
    states[service] = old_state - {endpoint_slice.metadata.name}
    return old_state


def is_met(target: WaitedTarget, state: frozenset[str] | None) -> bool:
    """Return whether a state meets the target's condition; a missing object's state is None."""
    if target.kind is SERVICE:
        return bool(state)
    return state is not None and target.condition in state


def has_failed(target: WaitedTarget, state: frozenset[str] | None) -> bool:
    """Return whether the target is a Job that will never complete."""
    is_job = target.kind.qualified == "jobs.batch" and target.condition != _FAILED
    return is_job and _FAILED in (state or ())


def _key(kind: WaitedKind, obj: WaitedObject) -> ObjectKey:
    return service_of(obj) if kind is SERVICE else (obj.metadata.namespace, obj.metadata.name)


def _conditions(kind: WaitedKind, obj: WaitedObject) -> frozenset[str]:
    conditions = {EXISTS}
    if kind.selectable:
        reported = _decoded(obj.status, _CONDITIONS, _ObjectConditions()).conditions or ()
        # A custom kind may report any number, of any length.
        met = (
            condition.type
            for condition in reported
            if condition.status == "True" and len(condition.type) <= _LONGEST
        )
        conditions |= {*islice(met, _MAX_CONDITIONS)}
    elif kind.condition == ROLLED_OUT and _is_rolled_out(kind, obj):
        conditions.add(ROLLED_OUT)
    return frozenset(conditions)


@lru_cache(maxsize=1_024)
def _shared(state: frozenset[str]) -> frozenset[str]:
    """Intern a state, because most objects of a kind have the same one."""
    return state


def _is_rolled_out(kind: WaitedKind, obj: WaitedObject) -> bool:
    """Return whether `kubectl rollout status` would succeed; with OnDelete, if all are ready."""
    spec = _decoded(obj.spec, _ROLLOUT_SPEC, _RolloutSpec())
    status = _decoded(obj.status, _ROLLOUT, _Rollout())
    if status.observed_generation < obj.metadata.generation:
        return False
    if kind.resource == "daemonsets":
        desired_ready = desired_updated = status.desired_number_scheduled
        ready, updated = status.number_available, status.updated_number_scheduled
    else:
        desired_ready = 1 if spec.replicas is None else spec.replicas
        rolling_update = spec.update_strategy.rolling_update or _Partition()
        desired_updated = desired_ready - (rolling_update.partition or 0)
        ready, updated = status.ready_replicas, status.updated_replicas
    return ready >= desired_ready and (
        spec.update_strategy.type == "OnDelete" or updated >= desired_updated
    )


def _has_ready_endpoint(endpoint_slice: WaitedObject) -> bool:
    """Return whether a slice has a ready endpoint; per the API, a missing `ready` means true."""
    endpoints = _decoded(endpoint_slice.endpoints, _ENDPOINTS, None) or ()
    return any(endpoint.conditions.ready is not False for endpoint in endpoints)
