"""after: hold a pod until other objects in its namespace exist and are ready.

`holdfast.dev/after: job/migrate, deployment/db`. The admission server only parses the value; the
controller watches only the kinds that pods wait for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Annotated, Literal

from holdfast.webhook.errors import ConfigurationError, HandleError, InvalidValueError
from holdfast.webhook.framework import arg_types
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.plugin import (
    Allow,
    Args,
    Context,
    Permit,
    Reject,
    Wait,
)
from holdfast.webhook.model import messages, syntax
from holdfast.webhook.model.annotations import DOMAIN, NOTHING_ASKED
from holdfast.webhook.model.edits import Edit
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.after import targets as after_targets
from holdfast.webhook.plugins.after.objects import ObjectIndex
from holdfast.webhook.plugins.after.reading import ObjectReader
from holdfast.webhook.plugins.after.targets import AFTER, BUILT_IN, WaitedKind
from holdfast.webhook.plugins.holding import HoldingPlugin

_PARSED = 256
"""Size of the cache of parsed values, of up to 45 KB each. Most pods of a template share one."""
_RESOURCE, _VERSION = re.compile("[a-z][a-z0-9]*"), re.compile("v[0-9]+(?:(?:alpha|beta)[0-9]+)?")

BuiltInKind = Literal[
    "jobs",
    "deployments",
    "statefulsets",
    "daemonsets",
    "services",
    "pods",
    "configmaps",
    "secrets",
]


class CustomKind(Args, frozen=True):
    """A further kind that pods may wait for, as `RESOURCE.GROUP/NAME`."""

    resource: arg_types.NotEmpty
    """Its plural, such as `certificates`."""
    version: arg_types.NotEmpty
    """The version of the API."""
    group: str = ""
    """Its API group; empty for the core group."""
    condition: str = ""
    """The condition that its objects have to meet, unless the pod selects another one; by default
    they only have to exist."""


class AfterArgs(Args, frozen=True):
    """Arguments of the after plugin. `holdfast rbac` prints the role that the kinds need."""

    kinds: Annotated[tuple[BuiltInKind, ...], arg_types.ONCE] = (
        "jobs",
        "deployments",
        "statefulsets",
        "daemonsets",
        "services",
        "pods",
    )
    """Kinds that pods may wait for. With `configmaps` or `secrets` the controller may read all of
    them, and needs memory for 500 at a time."""
    custom_kinds: tuple[CustomKind, ...] = ()
    """Further kinds."""


class After(HoldingPlugin):
    """Adds the gate at creation, and allows a pod once all objects meet their conditions."""

    name = "after"
    args_type = AfterArgs
    gate = f"{DOMAIN}/after"
    keys = (AFTER,)

    args: AfterArgs

    def __init__(self, args: AfterArgs, handle: Handle | None = None) -> None:
        super().__init__(args, handle)
        self.kinds = [*(BUILT_IN[plural] for plural in args.kinds), *_custom(args)]
        allowed = after_targets.by_name(self.kinds)
        self._parse = lru_cache(_PARSED)(partial(after_targets.parse, kinds=allowed))
        self._reader = ObjectReader(self.handle)
        self._index = ObjectIndex(lambda: self.handle.bounds_ms()[0] / 1_000)

    def read(self, pod: Pod, context: Context) -> Iterable[Edit]:
        """Check the value: it must not include the pod or workload. Raises InvalidValueError."""
        workload = context.review.workload
        kind, name = (workload.kind, workload.name) if workload else ("Pod", pod.metadata.name)
        for target in self._parse(pod.annotations[AFTER]):
            own_keys = {(kind.lower(), name)}
            ordinal = target.name.removeprefix(f"{name}-")
            if kind == "StatefulSet" and ordinal != target.name and ordinal.isdecimal():
                own_keys.add(("pod", target.name))
            if (target.kind.name, target.name) in own_keys:
                raise InvalidValueError(
                    f"annotation {AFTER}: {target} would wait for itself: remove it"
                )
        return ()

    def warnings(self, pod: Pod, context: Context) -> Sequence[str]:
        """Return the usual warnings, and a warning for each condition that the kind never has."""
        texts = map(after_targets.unknown_condition, self._parse(pod.annotations[AFTER]))
        warnings = tuple(f"holdfast: {warning}" for warning in texts if warning)
        return (*super().warnings(pod, context), *warnings)

    def permit(self, pod: Pod, now_ms: int) -> Permit:  # noqa: ARG002 - does not depend on time
        """Allow the pod once all objects meet their conditions."""
        text = pod.annotations.get(AFTER)
        if text is None:
            return Allow(NOTHING_ASKED)
        try:
            targets = self._parse(text)
        except InvalidValueError as exc:
            return Reject(str(exc))
        try:
            waiting, follow = self.handle.waiting, self.handle.follow
        except HandleError:  # in a command
            return self._reader.permit(pod.metadata.namespace, targets)
        obstacles = self._index.obstacles(pod, targets, waiting, follow)
        if not obstacles.unmet:
            return Allow()
        waits_for = f"waits for {', '.join(map(str, obstacles.unmet))}"
        return Wait(None, waits_for, "; ".join(obstacles.problems))

    def forget(self, uid: str) -> None:
        """Drop a pod that is no longer held."""
        self._index.forget(uid)


def _custom(args: AfterArgs) -> Iterator[WaitedKind]:
    names: set[str] = set()
    for index, kind in enumerate(args.custom_kinds):
        path = f"customKinds[{index}]"
        name = f"{kind.resource}.{kind.group}" if kind.group else kind.resource
        if name in names or (not kind.group and name in BUILT_IN):
            raise ConfigurationError(f"{path}: {messages.quote(name)} is listed twice: remove one")
        names.add(name)
        for field, value, valid in (
            ("resource", kind.resource, _RESOURCE.fullmatch(kind.resource)),
            ("version", kind.version, _VERSION.fullmatch(kind.version)),
            ("group", kind.group, not kind.group or syntax.is_object_name(kind.group)),
            (
                "condition",
                kind.condition,
                not kind.condition or syntax.is_qualified_name(kind.condition),
            ),
        ):
            if not valid:
                raise ConfigurationError(
                    f"{path}.{field}: {messages.quote(value)} is not valid: see kubectl "
                    "api-resources"
                )
        yield WaitedKind(
            name, kind.group, kind.version, kind.resource, kind.condition, selectable=True
        )
