"""The grammar of `holdfast.dev/after`, and the kinds that pods may wait for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model import messages, syntax
from holdfast.webhook.model.annotations import DOMAIN
from holdfast.webhook.model.paths import api_path

AFTER = f"{DOMAIN}/after"
MAX_OBJECTS = 32
"""Maximum number of objects that a pod may wait for."""
MAX_CHARACTERS = 20_000
"""Maximum length of a value that is parsed; 32 objects with long names are shorter."""
EXISTS = ""
"""The condition that every object meets."""
ROLLED_OUT = "RolledOut"
"""All pods have the latest template and are ready; not a condition of the object's status."""
_FORM = "use KIND/NAME or KIND/NAME:CONDITION, such as job/migrate or pod/db-0:Ready"
_BLANKS = " \t\r\n"
_SHORT_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "deploy": "deployment",
        "sts": "statefulset",
        "ds": "daemonset",
        "svc": "service",
        "po": "pod",
        "cm": "configmap",
    }
)
"""kubectl's short names for these kinds; most clusters define more."""


@dataclass(frozen=True, slots=True)
class WaitedKind:
    """A kind of object that pods may wait for.

    `name` is the name that users write. `condition` is the default condition, and `selectable`
    whether users may select another one. `conditions` are those that Kubernetes sets; empty if
    unknown.
    """

    name: str
    group: str
    version: str
    resource: str
    condition: str = EXISTS
    selectable: bool = False
    conditions: tuple[str, ...] = ()

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the API path of an object, or of a list if the name or namespace is empty."""
        version = f"{self.group}/{self.version}" if self.group else self.version
        return api_path(version, self.resource, namespace, name)

    @property
    def qualified(self) -> str:
        """The resource with its API group, as RBAC errors show it."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


_OF_JOB = ("Complete", "Failed", "Suspended", "SuccessCriteriaMet", "FailureTarget")
_OF_POD = (
    *("Ready", "PodScheduled", "Initialized", "ContainersReady", "PodReadyToStartContainers"),
    *("DisruptionTarget", "PodResizePending", "PodResizeInProgress"),
)


def _selectable(name: str, group: str, *conditions: str) -> WaitedKind:
    """Return a kind with these conditions; the first one is the default."""
    return WaitedKind(name, group, "v1", f"{name}s", conditions[0], True, conditions)  # noqa: FBT003


SERVICE = WaitedKind("service", "discovery.k8s.io", "v1", "endpointslices", "Ready")
BUILT_IN: Mapping[str, WaitedKind] = MappingProxyType(
    {
        f"{kind.name}s": kind
        for kind in (
            _selectable("job", "batch", *_OF_JOB),
            _selectable("deployment", "apps", "Available", "Progressing", "ReplicaFailure"),
            WaitedKind("statefulset", "apps", "v1", "statefulsets", ROLLED_OUT),
            WaitedKind("daemonset", "apps", "v1", "daemonsets", ROLLED_OUT),
            SERVICE,
            _selectable("pod", "", *_OF_POD),
            WaitedKind("configmap", "", "v1", "configmaps"),
            WaitedKind("secret", "", "v1", "secrets"),
        )
    }
)
"""Kinds that the configuration may list, by plural. EndpointSlices stand for their Service."""


@dataclass(frozen=True, slots=True)
class WaitedTarget:
    """An object that a pod waits for, in the pod's namespace."""

    kind: WaitedKind
    name: str
    condition: str

    def __str__(self) -> str:
        """Return the target in the form that users write, with its condition."""
        return f"{self.kind.name}/{self.name}" + (f":{self.condition}" if self.condition else "")


def unknown_condition(target: WaitedTarget) -> str:
    """Return a warning if Kubernetes does not set such a condition; empty if it may exist.

    Readiness gates and other controllers may set others, which should have a domain.
    """
    kind, condition = target.kind, target.condition
    if not kind.conditions or condition in kind.conditions or "/" in condition:
        return ""
    similar = [candidate for candidate in kind.conditions if candidate.lower() == condition.lower()]
    cure = (
        f"did you mean {similar[0]}?"
        if similar
        else f"use one such as {', '.join(kind.conditions[:3])}"
    )
    return (
        f"annotation {AFTER}: {kind.name}/{messages.shorten(target.name, 40)}: Kubernetes does not "
        f"set a condition {messages.quote(condition)} on a {kind.name}: {cure}"
    )


def by_name(kinds: Iterable[WaitedKind]) -> Mapping[str, WaitedKind]:
    """Return kinds by the names that users may write: the singular and the plural."""
    plurals = {kind: plural for plural, kind in BUILT_IN.items()}
    names: dict[str, WaitedKind] = {}
    for kind in kinds:
        names[kind.name] = names[plurals.get(kind, kind.name)] = kind
    return names


def parse(text: str, kinds: Mapping[str, WaitedKind]) -> tuple[WaitedTarget, ...]:
    """Return the annotation's targets, without duplicates. Raises InvalidValueError."""
    parts = text.split(",", MAX_OBJECTS) if len(text) <= MAX_CHARACTERS else []
    if not 0 < len(parts) <= MAX_OBJECTS:
        raise InvalidValueError(
            f"annotation {AFTER}: {messages.quote(text)} is too long: list at most {MAX_OBJECTS} "
            "objects"
        )
    return tuple(dict.fromkeys(_target(part.strip(_BLANKS), kinds) for part in parts))


def _target(text: str, kinds: Mapping[str, WaitedKind]) -> WaitedTarget:
    kind_name, slash, name_part = text.partition("/")
    name, colon, condition = name_part.partition(":")
    is_condition = syntax.is_qualified_name(condition) if colon else True
    if not (slash and kind_name and syntax.is_object_name(name) and is_condition):
        raise InvalidValueError(
            f"annotation {AFTER}: invalid object {messages.quote(text)}: {_FORM}"
        )
    kind = kinds.get(kind_name)
    if kind is None:
        allowed = ", ".join(dict.fromkeys(option.name for option in kinds.values())) or "none"
        full_name = _SHORT_NAMES.get(kind_name.lower(), kind_name.lower())
        hint = f"did you mean {full_name}? Otherwise " if full_name in kinds else ""
        raise InvalidValueError(
            f"annotation {AFTER}: pods cannot wait for the kind {messages.quote(kind_name)}: {hint}"
            f"use one of {allowed}, or ask an admin to allow it"
        )
    if condition and condition != kind.condition and not kind.selectable:
        raise InvalidValueError(
            f"annotation {AFTER}: {messages.quote(text)}: a {kind.name} has no condition "
            f"{messages.quote(condition)}: remove it"
        )
    return WaitedTarget(kind, name, condition or kind.condition)
