"""The grammar of `holdfast.dev/after`, and the kinds and conditions of objects. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

import msgspec

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model import messages, syntax
from holdfast.webhook.model.annotations import DOMAIN
from holdfast.webhook.model.objects import ApiStruct, Metadata, ObjectKey

AFTER = f"{DOMAIN}/after"
MAX_OBJECTS = 32
"""Objects that one pod may wait for."""
MAX_CHARACTERS = 20_000
"""A longer value is not parsed; 32 objects with long names have fewer."""
EXISTS = ""
"""The condition that every object meets."""
ROLLED_OUT = "RolledOut"
"""All pods have the last template, and are ready; not a condition that objects carry."""
_FAILED = "Failed"
_SERVICE_LABEL = "kubernetes.io/service-name"
_FORM = "use KIND/NAME or KIND/NAME:CONDITION, such as job/migrate or pod/db-0:Ready"
_BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class WaitedKind:
    """A kind of objects that pods may wait for.

    `name` is what users write. `condition` is what its objects have to meet by default, and
    `selectable` says whether users may select another one.
    """

    name: str
    group: str
    version: str
    resource: str
    condition: str = EXISTS
    selectable: bool = False

    @property
    def path(self) -> str:
        """The API path of all its objects."""
        group = f"/apis/{self.group}" if self.group else "/api"
        return f"{group}/{self.version}/{self.resource}"

    @property
    def qualified(self) -> str:
        """The resource with its API group, as RBAC errors show it."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


_SERVICE = WaitedKind("service", "discovery.k8s.io", "v1", "endpointslices", "Ready")
BUILT_IN: Mapping[str, WaitedKind] = MappingProxyType(
    {
        f"{kind.name}s": kind
        for kind in (
            WaitedKind("job", "batch", "v1", "jobs", "Complete", selectable=True),
            WaitedKind("deployment", "apps", "v1", "deployments", "Available", selectable=True),
            WaitedKind("statefulset", "apps", "v1", "statefulsets", ROLLED_OUT),
            WaitedKind("daemonset", "apps", "v1", "daemonsets", ROLLED_OUT),
            _SERVICE,
            WaitedKind("pod", "", "v1", "pods", "Ready", selectable=True),
            WaitedKind("configmap", "", "v1", "configmaps"),
            WaitedKind("secret", "", "v1", "secrets"),
        )
    }
)
"""The kinds that the configuration may name, by plural. A Service is ready by its slices."""


@dataclass(frozen=True, slots=True)
class WaitedTarget:
    """An object that a pod waits for, in the pod's namespace."""

    kind: WaitedKind
    name: str
    condition: str

    def __str__(self) -> str:
        """Write it as users do, with its condition."""
        return f"{self.kind.name}/{self.name}" + (f":{self.condition}" if self.condition else "")


def by_name(kinds: Iterable[WaitedKind]) -> Mapping[str, WaitedKind]:
    """Map the names that users may write to kinds: the singular, and the plural."""
    plurals = {kind: plural for plural, kind in BUILT_IN.items()}
    names: dict[str, WaitedKind] = {}
    for kind in kinds:
        names[kind.name] = names[plurals.get(kind, kind.name)] = kind
    return names


def parse(text: str, kinds: Mapping[str, WaitedKind]) -> tuple[WaitedTarget, ...]:
    """Parse the annotation, without duplicates. Raises InvalidValueError."""
    parts = text.split(",", MAX_OBJECTS) if len(text) <= MAX_CHARACTERS else []
    if not 0 < len(parts) <= MAX_OBJECTS:
        raise InvalidValueError(
            f"annotation {AFTER}: {messages.quote(text)} is too long: list at most {MAX_OBJECTS} "
            "objects"
        )
    return tuple(dict.fromkeys(_target(part.strip(_BLANKS), kinds) for part in parts))


def _target(text: str, kinds: Mapping[str, WaitedKind]) -> WaitedTarget:
    kind_name, slash, rest = text.partition("/")
    name, colon, condition = rest.partition(":")
    is_condition = syntax.is_qualified_name(condition) if colon else True
    if not (slash and kind_name and syntax.is_object_name(name) and is_condition):
        raise InvalidValueError(
            f"annotation {AFTER}: invalid object {messages.quote(text)}: {_FORM}"
        )
    kind = kinds.get(kind_name)
    if kind is None:
        allowed = ", ".join(dict.fromkeys(one.name for one in kinds.values())) or "none"
        raise InvalidValueError(
            f"annotation {AFTER}: pods cannot wait for the kind {messages.quote(kind_name)}: use "
            f"one of {allowed}, or ask an admin to allow it"
        )
    if condition and condition != kind.condition and not kind.selectable:
        raise InvalidValueError(
            f"annotation {AFTER}: {messages.quote(text)}: a {kind.name} has no condition "
            f"{messages.quote(condition)}: remove it"
        )
    return WaitedTarget(kind, name, condition or kind.condition)


# --- objects -----------------------------------------------------------------------------------


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
    """Decode a part of an object; a custom kind may have anything there."""
    try:
        return decoder.decode(source)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return default


def update(
    states: dict[ObjectKey, frozenset[str]],
    kind: WaitedKind,
    one: WaitedObject,
    *,
    deleted: bool = False,
) -> tuple[ObjectKey, frozenset[str] | None]:
    """Record which conditions an object meets; return the key that users name, and its old state.

    A Service has several slices: recorded are the names of those with a ready endpoint.
    """
    key = one.metadata.namespace, one.metadata.name
    if kind is _SERVICE:
        key = one.metadata.namespace, (one.metadata.labels or {}).get(_SERVICE_LABEL, "")
    before = states.get(key)
    if kind is _SERVICE:
        slices = (before or frozenset()) - {one.metadata.name}
        if not deleted and _has_ready_endpoint(one):
            slices |= {one.metadata.name}
        states[key] = slices
    elif deleted:
        states.pop(key, None)
    else:
        states[key] = _shared(_conditions(kind, one))
    return key, before


def is_met(target: WaitedTarget, state: frozenset[str] | None) -> bool:
    """Return whether an object of this state meets a condition; None if it does not exist."""
    if target.kind is _SERVICE:
        return bool(state)
    return state is not None and target.condition in state


def has_failed(target: WaitedTarget, state: frozenset[str] | None) -> bool:
    """Return whether a Job will never complete."""
    is_job = target.kind.qualified == "jobs.batch" and target.condition != _FAILED
    return is_job and _FAILED in (state or ())


def _conditions(kind: WaitedKind, one: WaitedObject) -> frozenset[str]:
    found = {EXISTS}
    if kind.selectable:
        listed = _decoded(one.status, _CONDITIONS, _ObjectConditions()).conditions or ()
        found |= {each.type for each in listed if each.status == "True"}
    elif kind.condition == ROLLED_OUT and _is_rolled_out(kind, one):
        found.add(ROLLED_OUT)
    return frozenset(found)


@lru_cache(maxsize=1_024)
def _shared(state: frozenset[str]) -> frozenset[str]:
    """Return one object for equal states: most of a kind's objects have the same."""
    return state


def _is_rolled_out(kind: WaitedKind, one: WaitedObject) -> bool:
    """Return the same as `kubectl rollout status`; with OnDelete, whether all are ready."""
    spec = _decoded(one.spec, _ROLLOUT_SPEC, _RolloutSpec())
    status = _decoded(one.status, _ROLLOUT, _Rollout())
    if status.observed_generation < one.metadata.generation:
        return False
    if kind.resource == "daemonsets":
        wanted = needed = status.desired_number_scheduled
        ready, updated = status.number_available, status.updated_number_scheduled
    else:
        wanted = 1 if spec.replicas is None else spec.replicas
        rolling = spec.update_strategy.rolling_update or _Partition()
        needed = wanted - (rolling.partition or 0)
        ready, updated = status.ready_replicas, status.updated_replicas
    return ready >= wanted and (spec.update_strategy.type == "OnDelete" or updated >= needed)


def _has_ready_endpoint(one: WaitedObject) -> bool:
    """Return whether a slice has one; a missing `ready` means yes, as the API defines."""
    endpoints = _decoded(one.endpoints, _ENDPOINTS, None) or ()
    return any(endpoint.conditions.ready is not False for endpoint in endpoints)
