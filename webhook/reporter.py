"""What is told of held pods: Events for their owners, log lines, and how late a release was."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from webhook import events, holds, logs, values
from webhook.metrics import ControllerMetrics
from webhook.objects import Names
from webhook.release_queue import Held

_log = logging.getLogger("holdfast.controller")


class Reporter:
    """Tells what becomes of held pods; only who leads tells Events. Safe to share."""

    def __init__(
        self, told: events.Events, metrics: ControllerMetrics, *, leading: Callable[[], bool]
    ) -> None:
        self._told = told
        self._metrics = metrics
        self._leading = leading

    @property
    def full(self) -> bool:
        """Tell whether an Event that is told now would be dropped."""
        return self._told.full

    def run(self, stop: threading.Event) -> None:
        """Send Events until told to stop."""
        self._told.run(stop)

    def held(self, key: Names, held: Held) -> None:
        """Tell until when a pod is held, and by what."""
        gates = ", ".join(gate for gate in held.gates if gate.startswith(holds.OWN_PREFIX))
        until = f"until {values.canonical_instant(held.due_ms)} "
        note = f"held {until if held.due_ms < holds.NEVER_MS else ''}by {gates}"
        note += f": {held.problem}" if held.problem else ""
        self.tell(key, held.uid, events.HELD, note, warning=bool(held.problem))

    def released(self, key: Names, held: Held, notes: Sequence[str], *, now_ms: int) -> None:
        """Tell that a pod was released, and how late; `notes` say what else there was to it."""
        late_from = max(held.due_ms, held.known_ms)  # a delay cut short is due when that is seen
        lateness = max(0, now_ms - late_from) / 1_000
        self._metrics.lateness.observe(lateness)
        told = logs.fields(namespace=key[0], name=key[1], uid=held.uid, lateness=lateness)
        _log.info("released %s/%s, %.3f s after its time", *key, lateness, extra=told)
        remarks = [*([held.problem] if held.problem else []), *notes]
        note = f"released {lateness:.3f} s after its time"
        note += f": {'; '.join(remarks)}" if remarks else ""
        warning = bool(remarks) and remarks != [holds.NOTHING_ASKED]
        self.tell(key, held.uid, events.RELEASED, note, warning=warning)

    def failed(self, key: Names, held: Held, reason: str, *, wait: float) -> None:
        """Tell why a release failed, and that it is tried again in `wait` seconds."""
        text = "release of %s/%s failed: %s; next try in %.1f s"
        told = logs.fields(namespace=key[0], name=key[1], uid=held.uid, reason=reason)
        _log.warning(text, *key, reason, wait, extra=told)
        note = f"{reason}; it is tried again until it succeeds"
        self.tell(key, held.uid, events.RELEASE_FAILED, note, warning=True)

    def tell(self, key: Names, uid: str, reason: str, note: str, *, warning: bool) -> None:
        """Tell an Event about a pod; never blocks, never raises."""
        if self._leading():
            self._told.record(events.Event(key, uid, reason, note, warning))
