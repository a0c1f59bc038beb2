"""Freezes: annotations of a namespace that keep its pods from being released. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model import durations, reasons
from holdfast.webhook.model.annotations import DOMAIN, NEVER_MS, Due
from holdfast.webhook.model.objects import ApiObject
from holdfast.webhook.model.paths import api_path

FREEZE = f"{DOMAIN}/freeze"
"""The annotation of a frozen namespace, with the reason."""
FREEZE_UNTIL = f"{DOMAIN}/freeze-until"
"""The annotation with the time at which the freeze ends."""
OWN_NAMESPACE = "holdfast-system"
"""Holdfast's default namespace; its freeze applies to all namespaces."""
NAMESPACES = api_path("v1", "namespaces")


class Freeze(NamedTuple):
    """A freeze of one namespace, or of all; it ends at `until_ms`, which may be NEVER_MS."""

    namespace: str
    reason: str
    until_ms: int = NEVER_MS
    problem: str = ""
    everywhere: bool = False

    def __str__(self) -> str:
        """Return a description: the frozen namespaces, the end and the reason."""
        subject = "all namespaces are" if self.everywhere else f"namespace {self.namespace} is"
        ends = self.until_ms < NEVER_MS
        until = f" until {durations.canonical_instant(self.until_ms)}" if ends else ""
        problem = f" ({self.problem})" if self.problem else ""
        return f"{subject} frozen{until}: {self.reason}{problem}"


def read_freeze(namespace: ApiObject, own_namespace: str = OWN_NAMESPACE) -> Freeze | None:
    """Return the freeze of a namespace; None if there is none.

    A freeze with an invalid end does not end, because no pod may be released early.
    """
    reason = namespace.annotations.get(FREEZE)
    if reason is None:
        return None
    name, until_ms, problem = namespace.metadata.name, NEVER_MS, ""
    if (until := namespace.annotations.get(FREEZE_UNTIL)) is not None:
        try:
            until_ms = durations.parse_instant(until)
        except InvalidValueError as exc:
            problem = f"it does not end: annotation {FREEZE_UNTIL}: {exc}"
    return Freeze(name, reasons.shown(reason), until_ms, problem, everywhere=name == own_namespace)


class Freezes:
    """The freezes of a cluster. Immutable."""

    def __init__(self, freezes: Iterable[Freeze] = ()) -> None:
        self.by_namespace: Mapping[str, Freeze] = {freeze.namespace: freeze for freeze in freezes}
        self._everywhere = [freeze for freeze in self.by_namespace.values() if freeze.everywhere]

    def active(self, now_ms: int) -> list[Freeze]:
        """Return the freezes that have not ended."""
        return [freeze for freeze in self.by_namespace.values() if freeze.until_ms > now_ms]

    def of(self, namespace: str, now_ms: int) -> Freeze | None:
        """Return the freeze of a namespace that ends last, or None."""
        local = self.by_namespace.get(namespace)
        freezes = [item for item in (local, *self._everywhere) if item and item.until_ms > now_ms]
        return max(freezes, key=lambda freeze: freeze.until_ms, default=None)


def read_freezes(namespaces: Iterable[ApiObject], own_namespace: str) -> Freezes:
    """Return the freezes of these namespaces; `own_namespace` is Holdfast's namespace."""
    return Freezes(
        filter(None, (read_freeze(namespace, own_namespace) for namespace in namespaces))
    )


def thaw(freeze: Freeze) -> str:
    """Return the command that ends a freeze."""
    return f"holdfast thaw {'--all' if freeze.everywhere else f'-n {freeze.namespace}'}"


def extended(due: Due, freeze: Freeze | None) -> Due:
    """Return when a pod is due, extended by the freeze of its namespace, if any.

    A freeze is also a reason for a pod without a due time, because it may outlast the other holds.
    """
    if freeze is None or freeze.until_ms <= due.at_ms < NEVER_MS:
        return due
    reason = "; ".join(filter(None, (str(freeze), due.reason)))
    return due._replace(at_ms=max(freeze.until_ms, due.at_ms), reason=reason)
