"""The arguments of the pace plugin, and the parser of its annotation. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from holdfast.webhook.errors import ConfigurationError, InvalidValueError
from holdfast.webhook.framework import arg_types
from holdfast.webhook.framework.plugin import Args
from holdfast.webhook.model import durations, messages, pace
from holdfast.webhook.model.annotations import DOMAIN
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.pace import Limits

KEY = f"{DOMAIN}/pace"
"""The annotation with the pace, and the label by which the controller finds the pods."""


class NamedPace(Args, frozen=True):
    """A pace that pods name in their annotation."""

    name: arg_types.RuleName
    """The name."""
    max_starting: int | None = None
    """How many pods may be starting at a time."""
    rate: str = ""
    """How many pods may be released in a period, such as `10/1m`."""
    until: Literal["Ready", "Running", "Scheduled"] = "Ready"
    """When a released pod is no longer starting."""
    timeout: arg_types.Delay = "5m"
    """The longest time that a pod counts as starting after its release."""
    scope: Literal["cluster", "namespace", "owner"] = "cluster"
    """The pods that share the pace."""


class PaceArgs(Args, frozen=True):
    """Arguments of the pace plugin."""

    paces: Annotated[tuple[NamedPace, ...], arg_types.ONCE] = ()
    """The paces that pods may name. Profiles share the slots of a pace, and must define it
    identically."""


_INLINE = NamedPace(name="", scope="owner")


Paces = Mapping[str, tuple[NamedPace, Limits]]
"""The configured paces, by name."""


def check(args: PaceArgs) -> Paces:
    """Return the configured paces. Raises ConfigurationError if one is invalid."""
    paces = {
        entry.name: (entry, _limits(entry, f"paces[{index}]"))
        for index, entry in enumerate(args.paces)
    }
    if len(paces) < len(args.paces):
        raise ConfigurationError("paces: two have the same name: rename one of them")
    return paces


def read(pod: Pod, paces: Paces) -> tuple[NamedPace, Limits]:
    """Return a pod's pace and limits. Raises InvalidValueError, which names the annotation."""
    text = pod.annotations.get(KEY, "")
    try:
        if not pace.is_name(text):
            return _INLINE, pace.parse(text)
    except InvalidValueError as exc:
        raise InvalidValueError(f"annotation {KEY}: {exc}") from None
    if text not in paces:
        names = ", ".join(paces) or "none"
        raise InvalidValueError(
            f"annotation {KEY}: there is no pace {messages.quote(text)}; configured: "
            f"{messages.shorten(names)}; or {pace.ACCEPTED}"
        )
    return paces[text]


def _limits(entry: NamedPace, path: str) -> Limits:
    """Return the limits of a configured pace. Raises ConfigurationError."""
    if not pace.is_name(entry.name):
        raise ConfigurationError(f"{path}.name: must start with a letter: rename it")
    if entry.max_starting is None and not entry.rate:
        raise ConfigurationError(
            f'{path}: it limits nothing: set maxStarting (such as 4), rate ("10/1m"), or both'
        )
    parts = [] if entry.max_starting is None else [str(entry.max_starting)]
    parts += [entry.rate if "/" in entry.rate else f"{entry.rate}/"] if entry.rate else []
    try:
        limits = pace.parse(",".join(parts))
        durations.parse_delay(entry.timeout)
    except InvalidValueError as exc:
        raise ConfigurationError(f"{path}: {exc}") from None
    return limits
