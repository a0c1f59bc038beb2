"""Tracks namespace freezes."""

import logging
from collections.abc import Callable, Iterable

from holdfast.webhook.model.freezes import Freeze, Freezes, read_freeze, read_freezes
from holdfast.webhook.model.objects import ApiObject

UNREADABLE_SECONDS = 30.0
"""Seconds without permission to list namespaces, after which pods are released regardless of
freezes. An API server that has just started may briefly deny everything."""

_log = logging.getLogger("holdfast.controller")


class FreezeWatch:
    """The freezes of all namespaces (`ResourceEventHandler`); `own` is Holdfast's namespace.

    `on_change` is called when a freeze begins, changes or ends early, and once freezes are known.
    """

    def __init__(
        self,
        own: str,
        on_change: Callable[[], None],
        *,
        now: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self._own = own
        self._on_change = on_change
        self._now = now
        self._now_ms = now_ms
        self.freezes = Freezes()
        """Replaced as a whole, so other threads can read it."""
        self.unreadable = ""
        """Why freezes are unknown although pods are released; empty otherwise."""
        self._listed = False
        self._unreadable_since: float | None = None
        self._thawed_ms: dict[str, int] = {}

    @property
    def known(self) -> bool:
        """Whether pods may be released: all freezes are known, or will not be."""
        return self._listed or bool(self.unreadable)

    def count(self) -> float:
        """Return the number of freezes that have not ended, or NaN while they are unknown."""
        return len(self.freezes.active(self._now_ms())) if self._listed else float("nan")

    def thawed_ms(self, namespace: str) -> int:
        """Return when the last freeze of a namespace that this process has seen ended, or 0."""
        now_ms, names = self._now_ms(), (namespace, self._own)
        freezes = [self.freezes.by_namespace.get(name) for name in names]
        ends = [
            freeze.until_ms
            for freeze in freezes
            if freeze is not None and freeze.until_ms <= now_ms
        ]
        return max([*ends, *(self._thawed_ms.get(name, 0) for name in names)])

    # --- holdfast.webhook.kube.reflector.ResourceEventHandler ---

    def on_sync(self, namespaces: Iterable[ApiObject]) -> None:
        """Replace all known namespaces with these."""
        self._replace(read_freezes(namespaces, self._own))
        self.unreadable, self._unreadable_since = "", None
        if not self._listed:
            self._listed = True  # not earlier: pods in frozen namespaces would be released
            self._on_change()

    def on_update(self, namespace: ApiObject) -> None:
        """Handle a new or changed namespace."""
        self._set(namespace.metadata.name, read_freeze(namespace, self._own))

    def on_delete(self, namespace: ApiObject) -> None:
        """Handle a deleted namespace."""
        self._set(namespace.metadata.name, None)
        self._thawed_ms.pop(namespace.metadata.name, None)

    def on_unreadable(self, reason: str) -> None:
        """Handle missing permission to list namespaces. Known freezes stay in force."""
        if self.known:
            return
        if self._unreadable_since is None:
            self._unreadable_since = self._now()
        elif self._now() - self._unreadable_since >= UNREADABLE_SECONDS:
            self.unreadable = reason
            _log.warning("freezes are ignored, because namespaces cannot be listed: %s", reason)
            self._on_change()

    def _set(self, name: str, freeze: Freeze | None) -> None:
        freezes = self.freezes.by_namespace
        if freeze != freezes.get(name):
            others = [entry for entry in freezes.values() if entry.namespace != name]
            self._replace(Freezes([*others, freeze] if freeze else others))

    def _replace(self, freezes: Freezes) -> None:
        """Replace all freezes, and log those that have changed."""
        now_ms = self._now_ms()
        before = {freeze.namespace: freeze for freeze in self.freezes.active(now_ms)}
        after = {freeze.namespace: freeze for freeze in freezes.active(now_ms)}
        ended = before.keys() - after.keys()
        self._thawed_ms |= dict.fromkeys(ended, now_ms)
        self.freezes = freezes
        self._on_change()
        for name in ended:
            _log.info("namespace %s is no longer frozen", name)
        for name, freeze in after.items():
            if before.get(name) != freeze:
                _log.info("%s", freeze)
