"""Reports on held pods: Events for their owners, log lines, and the lateness of releases."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from holdfast.webhook.controller.pending import PendingRelease
from holdfast.webhook.kube import events
from holdfast.webhook.model import durations
from holdfast.webhook.model.annotations import DOMAIN, NEVER_MS, OWN_PREFIX, is_remark
from holdfast.webhook.model.approvals import GATE as APPROVAL_GATE
from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.telemetry import logs
from holdfast.webhook.telemetry.metrics import ControllerMetrics

_BY_EVENT = frozenset((f"{DOMAIN}/after", f"{DOMAIN}/pace"))
"""Gates that end with an event, which may come after the due time of other gates."""
_AUDITED = "; the API server's audit log names the user"
_RESTORED = "restored from a backup, so it waits again; to release it now, run"
_log = logging.getLogger("holdfast.controller")


def _before_due(pending: PendingRelease, now_ms: int) -> str:
    if pending.due_ms >= NEVER_MS:
        return "before it was due"
    early_ms = -(-(pending.due_ms - now_ms) // 1_000) * 1_000
    return f"{durations.canonical_delay(early_ms)} before its due time"


def _until(pending: PendingRelease, gates: Iterable[str], now_ms: int) -> str:
    """Return the "until" part of a note; empty if no time is known."""
    if pending.due_ms < NEVER_MS and not pending.open_ended:
        at_least = "" if _BY_EVENT.isdisjoint(gates) else "at least "
        return f"until {at_least}{durations.canonical_instant(pending.due_ms)} "
    if pending.due_ms >= NEVER_MS and pending.earliest_ms > now_ms:
        return f"until at least {durations.canonical_instant(pending.earliest_ms)} "
    return ""


class ReleaseNotifier:
    """Reports what happens to held pods. Only the leader records Events. Thread-safe."""

    def __init__(
        self,
        recorder: events.EventRecorder,
        metrics: ControllerMetrics,
        *,
        leading: Callable[[], bool],
    ) -> None:
        self._recorder = recorder
        self._metrics = metrics
        self._leading = leading

    def held(self, key: ObjectKey, pending: PendingRelease, *, now_ms: int) -> None:
        """Report the due time and the gates of a held pod."""
        gates = [gate for gate in pending.gates if gate.startswith(OWN_PREFIX)]
        note = f"held {_until(pending, gates, now_ms)}by {', '.join(gates)}"
        # The gate already names the plugin.
        prefix = f"{gates[0].removeprefix(OWN_PREFIX)}: " if len(gates) == 1 else ""
        parts = [text.removeprefix(prefix) for text in (pending.reason, pending.problem)]
        parts += [f"{_RESTORED}: holdfast release {key[1]}"] if pending.restored else []
        remarks = "; ".join(filter(None, parts))
        note += f": {remarks}" if remarks else ""
        self.record_event(key, pending.uid, events.HELD, note, warning=bool(pending.problem))

    def released(
        self, key: ObjectKey, pending: PendingRelease, notes: Sequence[str], *, now_ms: int
    ) -> None:
        """Report a release, its lateness and the notes of plugins."""
        # a shortened delay counts from when it is seen
        late_from = max(pending.due_ms, pending.known_ms)
        lateness = max(0, now_ms - late_from) / 1_000
        self._metrics.lateness.observe(lateness)
        fields = logs.fields(namespace=key[0], name=key[1], uid=pending.uid, lateness=lateness)
        _log.info("released %s/%s, %.3f s after its time", *key, lateness, extra=fields)
        remarks = [*([pending.problem] if pending.problem else []), *notes]
        approved = [f"approved by {pending.approved_by}"] if pending.approved_by else []
        event_gates = [gate.removeprefix(OWN_PREFIX) for gate in pending.gates if gate in _BY_EVENT]
        allowed = [f"allowed by {', '.join(event_gates)}"] if event_gates else []
        details = "; ".join([*allowed, *approved, *remarks])
        is_timed = not event_gates and APPROVAL_GATE not in pending.gates
        late = f" {lateness:.3f} s after its time" if is_timed else ""
        note = f"released{late}" + (f": {details}" if details else "")
        warning = not all(map(is_remark, remarks))
        self.record_event(key, pending.uid, events.RELEASED, note, warning=warning)

    def released_early(self, key: ObjectKey, pending: PendingRelease, *, now_ms: int) -> None:
        """Report that someone else removed the gates of a pod before it was due."""
        if not self._leading():
            return
        due = _before_due(pending, now_ms)
        fields = logs.fields(namespace=key[0], name=key[1], uid=pending.uid)
        _log.warning("gate of %s/%s removed %s by someone else", *key, due, extra=fields)
        self._metrics.releases.labels("early").inc()
        note = f"gate removed {due} by someone else{_AUDITED}"
        self.record_event(key, pending.uid, events.RELEASED_EARLY, note, warning=True)

    def released_without_approval(self, key: ObjectKey, pending: PendingRelease) -> None:
        """Report that `holdfast release` released a pod without its approval."""
        note = f"released early by a user, without its approval{_AUDITED}"
        self.record_event(key, pending.uid, events.RELEASED_EARLY, note, warning=True)

    def released_on_request(self, key: ObjectKey, pending: PendingRelease, *, now_ms: int) -> None:
        """Report that `holdfast release` released a pod. No object names the user reliably."""
        note = f"released {_before_due(pending, now_ms)} at a user's request{_AUDITED}"
        self.record_event(key, pending.uid, events.RELEASED, note, warning=False)

    def failed(self, key: ObjectKey, pending: PendingRelease, reason: str, *, wait: float) -> None:
        """Report why a release failed, and that it is retried in `wait` seconds."""
        fields = logs.fields(namespace=key[0], name=key[1], uid=pending.uid, reason=reason)
        text = "release of %s/%s failed: %s; next try in %.1f s"
        _log.warning(text, *key, reason, wait, extra=fields)
        note = f"{reason}; it is retried until it succeeds"
        self.record_event(key, pending.uid, events.RELEASE_FAILED, note, warning=True)

    def record_event(
        self, key: ObjectKey, uid: str, reason: str, note: str, *, warning: bool
    ) -> None:
        """Record an Event about a pod; never blocks, never raises."""
        if self._leading():
            note = str(note)[: events.NOTE_LENGTH]  # hundreds may be queued
            self._recorder.record(events.Event(key, uid, reason, note, warning))
