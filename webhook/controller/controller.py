"""The controller that releases each held pod when it is due by the API server's clock.

All its state is in the API server. After a crash it lists the pods, releases overdue pods in order,
and waits for the rest. A process that is not the leader tracks all held pods, but releases none and
records no Events.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from holdfast.webhook.controller.freeze_watch import FreezeWatch
from holdfast.webhook.controller.notifier import ReleaseNotifier
from holdfast.webhook.controller.pending import PendingRelease, pending_release
from holdfast.webhook.controller.releaser import RELEASE_TIMEOUT, Attempt, Outcome, Releaser
from holdfast.webhook.controller.scheduler import ReleaseScheduler
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import SLOW_ADMISSION_TIMEOUT, Api, Begin, boot_time
from holdfast.webhook.kube.clock_sync import ClockSynchronizer
from holdfast.webhook.kube.events import EventRecorder
from holdfast.webhook.kube.reflector import Reflector
from holdfast.webhook.kube.server_clock import ServerClock
from holdfast.webhook.model import approvals
from holdfast.webhook.model.annotations import NEVER_MS, Due, was_released
from holdfast.webhook.model.freezes import (
    NAMESPACES,
    OWN_NAMESPACE,
    extended,
)
from holdfast.webhook.model.objects import (
    ApiObject,
    Metadata,
    ObjectKey,
    Pod,
    PodSpec,
    SchedulingGate,
)
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.threads import ThreadGroup, Work
from holdfast.webhook.workqueue.controller import GRACE_SECONDS, Controller, End, Task, TaskResult
from holdfast.webhook.workqueue.queue import EVERYWHERE

WORKERS = 40
"""Maximum number of releases in flight, as many as one process can handle (see
docs/explanation/decisions.md)."""
WORKERS_OF_ONE = 32
"""Maximum number of workers for one namespace, or for all slow namespaces together. However many
pods hang or are rejected there, the other workers stay available."""
FIRST_OF_ONE = 8
"""Workers of a namespace until its first successful release."""
LAST_EVENTS_SECONDS = 2.0
"""Seconds that shutdown waits for queued Events."""

_log = logging.getLogger("holdfast.controller")


class ReleaseController:
    """Watches held pods and releases them. Implements ResourceEventHandler and WaitingPods."""

    def __init__(
        self,
        api: Api,
        decider: ReleaseDecider,
        clock: ServerClock,
        metrics: ControllerMetrics,
        *,
        recorder: EventRecorder,
        leading: Callable[[], bool],
        namespace: str = OWN_NAMESPACE,
        now: Callable[[], float] = boot_time,
        begin: Begin | None = None,
    ) -> None:
        self._clock = clock
        self._metrics = metrics
        self._leading = leading
        self._now = now
        self._decider = decider
        self._recorder = recorder
        self._notifier = ReleaseNotifier(recorder, metrics, leading=leading)
        self.freeze_watch = FreezeWatch(namespace, self._refreeze, now=now, now_ms=self._now_ms)
        self._scheduler = ReleaseScheduler(
            clock.lower_bound,
            WORKERS_OF_ONE,
            first=FIRST_OF_ONE,
            forget=decider.forget,
            on_paused=self._hold_frozen,
        )
        self._releaser = Releaser(
            api,
            decider,
            self._now_ms,
            leading=leading,
            is_frozen=self._scheduler.is_paused,
            begin=begin,
        )
        self._loop = Controller(
            "release",
            self._scheduler,
            self._reconcile,
            workers=WORKERS,
            enabled=self._may_release,
            on_retry=self._report_retry,
            now=now,
            begin=self._begin,
        )
        self._changed = self._loop.changed
        self._synced = threading.Event()
        self._feeders = self._make_feeders(api)
        self._set_functions(metrics)

    def _make_feeders(self, api: Api) -> dict[str, Work]:
        """Return the functions to run in threads, by thread name."""
        pods = Reflector(
            api,
            self,
            Pod,
            path=listing.pods_path(""),
            selection={"fieldSelector": listing.UNBOUND},  # labels are not trusted
            on_restart=self._count_restart,
        )
        namespaces = Reflector(
            api,
            self.freeze_watch,
            ApiObject,
            path=NAMESPACES,
            selection={},
            on_restart=self._count_restart,
            on_unreadable=self.freeze_watch.on_unreadable,
        )
        clock = ClockSynchronizer(api, self._clock, on_narrowed=self.wake)
        return {"pods": pods.run, "namespaces": namespaces.run, "clock": clock.run}

    def _set_functions(self, metrics: ControllerMetrics) -> None:
        """Let scrapes of the metrics read the current state."""
        metrics.held.set_function(lambda: len(self._scheduler))
        metrics.overdue.set_function(self._overdue)
        metrics.count_holds = self._holds
        metrics.freezes.set_function(self.freeze_watch.count)
        metrics.clock_uncertainty.set_function(self._uncertainty)

    @property
    def synced(self) -> bool:
        """Whether all held pods and all freezes are known."""
        return self._synced.is_set() and self.freeze_watch.known

    @property
    def saturated(self) -> bool:
        """Whether `WORKERS_OF_ONE` or more releases are in flight, without slow namespaces."""
        with self._changed:
            return self._scheduler.in_flight_fast >= WORKERS_OF_ONE

    def add_to(self, threads: ThreadGroup) -> None:
        """Add the controller's threads to those of the process."""
        threads.add("release", self._loop.run, grace=GRACE_SECONDS)
        threads.add("events", self._recorder.run, grace=LAST_EVENTS_SECONDS)
        for name, work in self._feeders.items():
            threads.add(name, work, grace=0)  # a watch may be silent for long

    def wake(self) -> None:
        """Check at once for due pods.

        Called when the clock bounds have narrowed, or this process has become the leader.
        """
        self._loop.wake()

    # --- holdfast.webhook.framework.handle.WaitingPods ---

    def __iter__(self) -> Iterator[ObjectKey]:
        """Iterate over the pods that are currently held."""
        with self._changed:
            return iter(list(self._scheduler))

    def get(self, key: ObjectKey) -> Due | None:
        """Return when a pod is due, or None if it is not held."""
        with self._changed:
            pending = self._scheduler.get(key)
        if pending is None:
            return None
        due = Due(pending.due_ms, pending.problem, pending.reason)
        return extended(due, self.freeze_watch.freezes.of(key[0], self._now_ms()))

    def gates(self, key: ObjectKey) -> Sequence[str]:
        """Return the gates of a held pod, or none if the pod is not held."""
        with self._changed:
            pending = self._scheduler.get(key)
        return pending.gates if pending else ()

    def recheck(self, key: ObjectKey, at_ms: int = 0) -> None:
        """Ask the plugins about a pod again, now or at `at_ms`."""
        with self._changed:
            self._scheduler.expedite(key, at_ms, self._now_ms())
            self._changed.notify_all()

    def bounds_ms(self) -> tuple[int, int]:
        """Return the earliest and latest possible time at the API server, in milliseconds."""
        now = self._now()
        bounds = self._clock.bounds(now)
        if bounds is None:
            return 0, NEVER_MS
        return int((now + bounds.low) * 1_000), int((now + bounds.high) * 1_000) + 1

    def allow(self, key: ObjectKey, plugin: str) -> None:
        """Record on a pod that a plugin no longer holds it. Raises ClusterError."""
        self._releaser.allow(key, plugin)

    def record_event(self, pod: Pod, reason: str, note: str, *, warning: bool = False) -> None:
        """Record an Event about a pod; never blocks, never raises."""
        self._notifier.record_event(pod.key, pod.metadata.uid, reason, note, warning=warning)

    # --- holdfast.webhook.kube.reflector.ResourceEventHandler ---

    def on_sync(self, pods: Iterable[Pod]) -> None:
        """Replace all known pods with these.

        Pods are processed one at a time: they are never all in memory, and the list does not delay
        releases that become due.
        """
        held: set[ObjectKey] = set()
        for pod in pods:
            if self._take(pod, watched=False):
                held.add(pod.key)
        with self._changed:
            for key in [key for key in self._scheduler if key not in held]:
                self._scheduler.remove(key)
            if not self._synced.is_set():
                _log.info("watching: %d held pods", len(held))
                self._synced.set()
            self._changed.notify_all()

    def on_update(self, pod: Pod) -> None:
        """Handle a new or changed pod."""
        if self._take(pod, watched=True):
            self.wake()

    def on_delete(self, pod: Pod) -> None:
        """Handle a pod that was deleted, or can no longer carry a gate."""
        with self._changed:
            self._scheduler.remove(pod.key)

    def _take(self, pod: Pod, *, watched: bool) -> bool:
        """Add, update or drop a pod, and return whether it is held."""
        with self._changed:
            before = self._scheduler.expect(pod.key)
        pending = pending_release(pod, self._decider)
        if pending is None:
            self._drop(pod)
            return False
        with self._changed:
            self._upsert(pod.key, pending, before, watched=watched)
        return True

    def _drop(self, pod: Pod) -> None:
        """Drop a pod without our gates, and report it if someone else removed them early.

        The pod itself shows whether Holdfast released it: a previous leader, or a user.
        """
        with self._changed:
            pending = self._scheduler.get(pod.key)
            self._scheduler.remove(pod.key)
        if pending is None or pending.uid != pod.metadata.uid or pod.metadata.deletion_timestamp:
            return
        _, latest_ms = self.bounds_ms()
        if latest_ms >= pending.due_ms:
            return
        if not was_released(pod.annotations, created_ms=pod.created_ms):
            self._notifier.released_early(pod.key, pending, now_ms=latest_ms)
        elif approvals.GATE in pending.gates and approvals.is_missing(pod.annotations):
            self._notifier.released_without_approval(pod.key, pending)
        elif pending.due_ms < NEVER_MS and not pending.open_ended:  # no leader releases this early
            self._notifier.released_on_request(pod.key, pending, now_ms=latest_ms)

    def _upsert(
        self,
        key: ObjectKey,
        pending: PendingRelease,
        before: PendingRelease | None,
        *,
        watched: bool,
    ) -> None:
        """Add or update a pod, and report its due time.

        A list may have 100,000 pods, so its pods are reported only while the Event queue has room.
        """
        now_ms = self._now_ms()
        news = self._scheduler.upsert(key, pending, before, now_ms, watched=watched)
        if self._scheduler.is_kept_ready(key):
            self._withdraw(key, pending)  # the plugins have just been asked about it
        if news is not None and news.due_ms > now_ms and (watched or not self._recorder.full):
            self._notifier.held(key, news, now_ms=now_ms)

    # --- freezes -------------------------------------------------------------------------------

    def _refreeze(self) -> None:
        """Pause releases in frozen namespaces, and resume them in all others."""
        freezes = self.freeze_watch.freezes.by_namespace.values()
        until = {
            EVERYWHERE if freeze.everywhere else freeze.namespace: freeze.until_ms
            for freeze in freezes
        }
        with self._changed:
            self._scheduler.pause(until, self._now())
            self._changed.notify_all()

    def _hold_frozen(self, key: ObjectKey) -> None:
        """Report a pod that is due in a frozen namespace, and give up its slots."""
        pending = self._scheduler.get(key)
        freeze = self.freeze_watch.freezes.of(key[0], self._now_ms())
        if pending is None or freeze is None:
            return
        self._withdraw(key, pending)
        if not self._recorder.full:
            problem = "; ".join(filter(None, (freeze.problem, pending.problem)))
            reason = str(freeze._replace(problem=""))
            frozen = pending._replace(due_ms=NEVER_MS, reason=reason, problem=problem)
            self._notifier.held(key, frozen, now_ms=self._now_ms())

    def _withdraw(self, key: ObjectKey, pending: PendingRelease) -> None:
        gates = [SchedulingGate(gate) for gate in pending.gates]
        pod = Metadata(namespace=key[0], name=key[1], uid=pending.uid)
        self._decider.withdraw(Pod(pod, PodSpec(scheduling_gates=gates)))

    # --- releases, in worker threads and the response thread -----------------------------------

    def _may_release(self) -> bool:
        """Return whether this process may release pods.

        Until all pods are known, the pods that are due first may be missing.
        """
        return self._leading() and self.synced

    def _reconcile(self, task: Task) -> TaskResult:
        """Release a due pod. If the pod has changed since, the tests in the patch fail."""
        timeout = SLOW_ADMISSION_TIMEOUT if task.needs_long_timeout else RELEASE_TIMEOUT
        return self._end(task, self._releaser.release(task.key, task.item, timeout=timeout))

    def _begin(self, task: Task, on_end: End) -> bool:
        """Start a release without a thread, or return False if it might block."""

        def end(attempt: Attempt | None) -> None:
            on_end(None if attempt is None else self._end(task, attempt))

        return not task.needs_long_timeout and self._releaser.begin(task.key, task.item, end)

    def _end(self, task: Task, attempt: Attempt) -> TaskResult:
        key, pending, now_ms = task.key, task.item, self._now_ms()
        if attempt.outcome is Outcome.RELEASED:
            last = attempt.held or pending
            # The time in a freeze does not count as lateness.
            known_ms = max(pending.known_ms, self.freeze_watch.thawed_ms(key[0]))
            last = last._replace(due_ms=pending.due_ms, known_ms=known_ms)
            self._notifier.released(key, last, attempt.notes, now_ms=now_ms)
        if attempt.outcome is Outcome.CHANGED and attempt.held is not None:
            self._report_change(key, pending, attempt.held)
        self._metrics.releases.labels(attempt.outcome.value).inc()
        with self._changed:
            return self._scheduler.settle(key, pending, attempt, now_ms)

    def _report_change(self, key: ObjectKey, before: PendingRelease, after: PendingRelease) -> None:
        reports = [(pending.uid, pending.reason, pending.problem) for pending in (before, after)]
        same = reports[0] == reports[1]
        is_expected = before.due_ms == after.due_ms or not before.resource_version
        if not (same and is_expected):
            self._notifier.held(key, after, now_ms=self._now_ms())

    def _report_retry(self, key: ObjectKey, result: TaskResult, wait: float) -> None:
        with self._changed:
            pending = self._scheduler.get(key)
        if pending is not None:
            self._notifier.failed(key, pending, result.error, wait=wait)

    # --- clock and metrics ---------------------------------------------------------------------

    def _now_ms(self) -> int:
        """Return the lower bound of the API server's time in milliseconds; 0 while unknown."""
        return int((self._clock.lower_bound(self._now()) or 0) * 1_000)

    def _count_restart(self, reason: str) -> None:
        self._metrics.watch_restarts.labels(reason).inc()

    def _holds(self) -> Mapping[tuple[str, str], int]:
        with self._changed:
            return self._scheduler.holds(self._now_ms())

    def _overdue(self) -> int:
        with self._changed:
            return self._scheduler.overdue(self._now_ms())

    def _uncertainty(self) -> float:
        bounds = self._clock.bounds(self._now())
        return float("inf") if bounds is None else bounds.width
