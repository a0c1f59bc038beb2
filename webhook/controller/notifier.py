"""Reports on held pods: Events for their owners, log lines, and how late a release was."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from holdfast.webhook.controller.pending import PendingRelease
from holdfast.webhook.kube import events
from holdfast.webhook.model import durations
from holdfast.webhook.model.annotations import NEVER_MS, NOTHING_ASKED, OWN_PREFIX
from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.telemetry import logs
from holdfast.webhook.telemetry.metrics import ControllerMetrics

_log = logging.getLogger("holdfast.controller")


class ReleaseNotifier:
    """Reports what becomes of held pods; only the leader records Events. Thread-safe."""

    def __init__(
        self,
        recorder: events.EventSink,
        metrics: ControllerMetrics,
        *,
        leading: Callable[[], bool],
    ) -> None:
        self._recorder = recorder
        self._metrics = metrics
        self._leading = leading

    @property
    def full(self) -> bool:
        """Return whether an Event recorded now would be dropped."""
        return self._recorder.full

    def run(self, stop: threading.Event) -> None:
        """Publish Events until `stop` is set."""
        self._recorder.run(stop)

    def held(self, key: ObjectKey, held: PendingRelease) -> None:
        """Report the due time and the gates of a held pod."""
        gates = [gate for gate in held.gates if gate.startswith(OWN_PREFIX)]
        is_known = held.due_ms < NEVER_MS and not held.open_ended
        until = f"until {durations.canonical_instant(held.due_ms)} " if is_known else ""
        note = f"held {until}by {', '.join(gates)}"
        # The gate names the plugin already.
        doubled = f"{gates[0].removeprefix(OWN_PREFIX)}: " if len(gates) == 1 else ""
        reason = held.reason.removeprefix(doubled)
        remarks = "; ".join(filter(None, (reason, held.problem)))
        note += f": {remarks}" if remarks else ""
        self.record_event(key, held.uid, events.HELD, note, warning=bool(held.problem))

    def released(
        self, key: ObjectKey, held: PendingRelease, notes: Sequence[str], *, now_ms: int
    ) -> None:
        """Report a release and how late it was, with what plugins had to say."""
        late_from = max(held.due_ms, held.known_ms)  # a shortened delay is due when that is seen
        lateness = max(0, now_ms - late_from) / 1_000
        self._metrics.lateness.observe(lateness)
        fields = logs.fields(namespace=key[0], name=key[1], uid=held.uid, lateness=lateness)
        _log.info("released %s/%s, %.3f s after its time", *key, lateness, extra=fields)
        remarks = [*([held.problem] if held.problem else []), *notes]
        approved = [f"approved by {held.approved_by}"] if held.approved_by else []
        said = "; ".join([*approved, *remarks])
        note = f"released {lateness:.3f} s after its time" + (f": {said}" if said else "")
        warning = bool(remarks) and remarks != [NOTHING_ASKED]
        self.record_event(key, held.uid, events.RELEASED, note, warning=warning)

    def released_early(self, key: ObjectKey, held: PendingRelease, *, now_ms: int) -> None:
        """Report that somebody else removed the gates of a pod that is not due."""
        if not self._leading():
            return
        early = (held.due_ms - now_ms) / 1_000
        due = (
            f"{early:.0f} s before its due time" if held.due_ms < NEVER_MS else "before it was due"
        )
        fields = logs.fields(namespace=key[0], name=key[1], uid=held.uid)
        _log.warning("gate of %s/%s removed %s by someone else", *key, due, extra=fields)
        self._metrics.releases.labels("early").inc()
        note = f"gate removed {due} by someone else"
        self.record_event(key, held.uid, events.RELEASED_EARLY, note, warning=True)

    def failed(self, key: ObjectKey, held: PendingRelease, reason: str, *, wait: float) -> None:
        """Report why a release failed, and that it is retried in `wait` seconds."""
        fields = logs.fields(namespace=key[0], name=key[1], uid=held.uid, reason=reason)
        text = "release of %s/%s failed: %s; next try in %.1f s"
        _log.warning(text, *key, reason, wait, extra=fields)
        note = f"{reason}; it is retried until it succeeds"
        self.record_event(key, held.uid, events.RELEASE_FAILED, note, warning=True)

    def record_event(
        self, key: ObjectKey, uid: str, reason: str, note: str, *, warning: bool
    ) -> None:
        """Record an Event about a pod; never blocks, never raises."""
        if self._leading():
            self._recorder.record(events.Event(key, uid, reason, note, warning))
