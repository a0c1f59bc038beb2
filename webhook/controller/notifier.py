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


def _before_due(held: PendingRelease, now_ms: int) -> str:
    if held.due_ms >= NEVER_MS:
        return "before it was due"
    early_ms = -(-(held.due_ms - now_ms) // 1_000) * 1_000
    return f"{durations.canonical_delay(early_ms)} before its due time"


def _until(held: PendingRelease, gates: Iterable[str], now_ms: int) -> str:
    """Return the "until" part of a note; empty if no time is known."""
    if held.due_ms < NEVER_MS and not held.open_ended:
        at_least = "" if _BY_EVENT.isdisjoint(gates) else "at least "
        return f"until {at_least}{durations.canonical_instant(held.due_ms)} "
    if held.due_ms >= NEVER_MS and held.earliest_ms > now_ms:
        return f"until at least {durations.canonical_instant(held.earliest_ms)} "
    return ""


class ReleaseNotifier:
    """Reports what happens to held pods. Only the leader records Events. Thread-safe."""

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

    def held(self, key: ObjectKey, held: PendingRelease, *, now_ms: int) -> None:
        """Report the due time and the gates of a held pod."""
        gates = [gate for gate in held.gates if gate.startswith(OWN_PREFIX)]
        note = f"held {_until(held, gates, now_ms)}by {', '.join(gates)}"
        # The gate already names the plugin.
        doubled = f"{gates[0].removeprefix(OWN_PREFIX)}: " if len(gates) == 1 else ""
        said = [one.removeprefix(doubled) for one in (held.reason, held.problem)]
        said += [f"{_RESTORED}: holdfast release {key[1]}"] if held.restored else []
        remarks = "; ".join(filter(None, said))
        note += f": {remarks}" if remarks else ""
        self.record_event(key, held.uid, events.HELD, note, warning=bool(held.problem))

    def released(
        self, key: ObjectKey, held: PendingRelease, notes: Sequence[str], *, now_ms: int
    ) -> None:
        """Report a release, its lateness and the notes of plugins."""
        late_from = max(held.due_ms, held.known_ms)  # a shortened delay counts from when it is seen
        lateness = max(0, now_ms - late_from) / 1_000
        self._metrics.lateness.observe(lateness)
        fields = logs.fields(namespace=key[0], name=key[1], uid=held.uid, lateness=lateness)
        _log.info("released %s/%s, %.3f s after its time", *key, lateness, extra=fields)
        remarks = [*([held.problem] if held.problem else []), *notes]
        approved = [f"approved by {held.approved_by}"] if held.approved_by else []
        met = [gate.removeprefix(OWN_PREFIX) for gate in held.gates if gate in _BY_EVENT]
        allowed = [f"allowed by {', '.join(met)}"] if met else []
        said = "; ".join([*allowed, *approved, *remarks])
        is_timed = not met and APPROVAL_GATE not in held.gates
        late = f" {lateness:.3f} s after its time" if is_timed else ""
        note = f"released{late}" + (f": {said}" if said else "")
        warning = not all(map(is_remark, remarks))
        self.record_event(key, held.uid, events.RELEASED, note, warning=warning)

    def released_early(self, key: ObjectKey, held: PendingRelease, *, now_ms: int) -> None:
        """Report that someone else removed the gates of a pod before it was due."""
        if not self._leading():
            return
        due = _before_due(held, now_ms)
        fields = logs.fields(namespace=key[0], name=key[1], uid=held.uid)
        _log.warning("gate of %s/%s removed %s by someone else", *key, due, extra=fields)
        self._metrics.releases.labels("early").inc()
        note = f"gate removed {due} by someone else{_AUDITED}"
        self.record_event(key, held.uid, events.RELEASED_EARLY, note, warning=True)

    def released_without_approval(self, key: ObjectKey, held: PendingRelease) -> None:
        """Report that `holdfast release` released a pod without its approval."""
        note = f"released early by a user, without its approval{_AUDITED}"
        self.record_event(key, held.uid, events.RELEASED_EARLY, note, warning=True)

    def released_on_request(self, key: ObjectKey, held: PendingRelease, *, now_ms: int) -> None:
        """Report that `holdfast release` released a pod. No object names the user reliably."""
        note = f"released {_before_due(held, now_ms)} at a user's request{_AUDITED}"
        self.record_event(key, held.uid, events.RELEASED, note, warning=False)

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
            note = str(note)[: events.NOTE_LENGTH]  # hundreds may be queued
            self._recorder.record(events.Event(key, uid, reason, note, warning))
