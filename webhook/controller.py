"""The controller thread: releases each held pod when its time has come at the API server.

It keeps nothing that the API server does not have: killed at any moment and started again, it
lists, releases what is overdue at once, in order, and waits for the rest.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from webhook import events, holds, values
from webhook.clock import ServerClock
from webhook.cluster import Api, boot_time
from webhook.metrics import ControllerMetrics
from webhook.objects import Names, Pod
from webhook.reflector import Reflector
from webhook.release_queue import Held, ReleaseQueue
from webhook.releaser import Attempt, Outcome, Releaser, held_pod
from webhook.timekeeper import Timekeeper

FIELD_SELECTOR = "spec.nodeName=,status.phase=Pending"
"""Every pod that can carry a gate, without trusting any label."""
WORKERS = 16
"""Releases under way at once: what one process can drive (see docs/decisions.md)."""
LONGEST_WAIT = 1.0
"""Seconds the loop sleeps at most: a laptop that slept, or a better clock, is noticed by then."""
LAST_EVENTS_SECONDS = 2.0
"""How long the end waits for events that are still to be told."""
RETRY_SECONDS, RETRY_LIMIT_SECONDS = 0.25, 30.0

_log = logging.getLogger("holdfast.controller")


class Controller:
    """The release loop, the threads that feed it, and those that carry releases out."""

    def __init__(
        self,
        api: Api,
        decide: Callable[[Pod], holds.Due],
        clock: ServerClock,
        metrics: ControllerMetrics,
        *,
        told: events.Events | None = None,
        now: Callable[[], float] = boot_time,
    ) -> None:
        self._told: events.Events = told or events.Silence()
        self._clock = clock
        self._metrics = metrics
        self._now = now
        self._decide = decide
        self._releaser = Releaser(api, decide)
        self._queue = ReleaseQueue()
        self._retries: list[tuple[float, Names]] = []
        self._failures: dict[Names, int] = {}
        self._under_way: set[Names] = set()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._synced = threading.Event()
        self.failed = False
        self._reflector = Reflector(
            api, self, field_selector=FIELD_SELECTOR, on_restart=self._restarted
        )
        self._timekeeper = Timekeeper(api, clock, on_narrowed=self._wake)
        metrics.held.set_function(lambda: len(self._queue))
        metrics.overdue.set_function(self._overdue)
        metrics.clock_uncertainty.set_function(self._uncertainty)

    @property
    def synced(self) -> bool:
        """True once all held pods are known."""
        return self._synced.is_set()

    def run(self) -> None:
        """Release pods until `stop` is called."""
        feeders = [
            threading.Thread(target=self._guarded, args=(target,), name=name, daemon=True)
            for name, target in (
                ("reflector", self._reflector.run),
                ("timekeeper", self._timekeeper.run),
                ("events", self._told.run),
            )
        ]
        for thread in feeders:
            thread.start()
        with ThreadPoolExecutor(WORKERS, "release") as pool:
            while not self._stop.is_set():
                self._turn(pool)
        feeders[-1].join(LAST_EVENTS_SECONDS)

    def stop(self) -> None:
        """End the loop; releases that are under way are finished first."""
        self._stop.set()
        self._wake()

    # --- what the reflector tells (webhook.reflector.Follower) ---------------------------------

    def replace(self, pods: Iterable[Pod]) -> None:
        """Take these pods, and no others, as all there are."""
        held = {}
        for pod in pods:
            note = held_pod(pod, self._decide)
            if note is not None:
                held[pod.key] = note
        with self._changed:
            for key in [key for key in self._queue if key not in held]:
                self._forget(key)
            for key, note in held.items():
                self._take(key, note)
            if not self._synced.is_set():
                _log.info("watching: %d held pods", len(held))
                self._synced.set()
            self._changed.notify_all()

    def update(self, pod: Pod) -> None:
        """Take a pod that is new or has changed."""
        note = held_pod(pod, self._decide)
        with self._changed:
            if note is None:
                self._forget(pod.key)
            else:
                self._take(pod.key, note)
                self._changed.notify_all()

    def remove(self, pod: Pod) -> None:
        """Take a pod that is gone, or no longer among those that can be gated."""
        with self._changed:
            self._forget(pod.key)

    def _take(self, key: Names, held: Held) -> None:
        known = self._queue.get(key)
        self._queue.put(key, held)
        if known is None or (known.uid, known.due_ms) != (held.uid, held.due_ms):
            until = values.canonical_instant(held.due_ms)
            note = f"held until {until} by {_own_gates(held)}"
            note += f": {held.problem}" if held.problem else ""
            self._tell(key, held, events.HELD, note, warning=bool(held.problem))

    # --- the loop ------------------------------------------------------------------------------

    def _turn(self, pool: ThreadPoolExecutor) -> None:
        """Hand out what is due, then sleep until something may be."""
        with self._changed:
            local = self._now()
            self._bring_up_retries(local)
            passed = self._clock.surely_passed(local)
            if passed is not None:
                self._hand_out(pool, int(passed * 1_000))
            self._changed.wait(self._next_wait(local, passed))

    def _hand_out(self, pool: ThreadPoolExecutor, now_ms: int) -> None:
        while len(self._under_way) < WORKERS and not self._stop.is_set():
            key = self._queue.pop_due(now_ms)
            if key is None:
                return
            held = self._queue.get(key)
            if held is not None and key not in self._under_way:
                self._under_way.add(key)
                # as it was found to be due: what changes from here on fails the patch's tests
                pool.submit(self._guarded, self._release, key, held)

    def _next_wait(self, local: float, passed: float | None) -> float:
        wait = LONGEST_WAIT
        if self._retries:
            wait = min(wait, min(self._retries)[0] - local)
        due_ms = self._queue.next_due_ms()
        if due_ms is not None and passed is not None and len(self._under_way) < WORKERS:
            wait = min(wait, due_ms / 1_000 - passed)
        return max(wait, 0.0)

    def _bring_up_retries(self, local: float) -> None:
        waiting = []
        for at, key in self._retries:
            if at <= local:
                self._queue.retry(key)
            else:
                waiting.append((at, key))
        self._retries = waiting

    # --- one release, in a thread of the pool --------------------------------------------------

    def _release(self, key: Names, held: Held) -> None:
        attempt = self._releaser.release(key, held)
        if attempt.outcome is Outcome.RELEASED:
            self._report_release(key, held)
        self._metrics.releases.labels(attempt.outcome.value).inc()
        with self._changed:
            self._under_way.discard(key)
            self._settle(key, held, attempt)
            self._changed.notify_all()

    def _settle(self, key: Names, tried: Held, attempt: Attempt) -> None:
        """Note how an attempt ended; the watch may have told of another pod meanwhile."""
        known = self._queue.get(key)
        if known is not None and known.uid != tried.uid:
            self._queue.retry(key)  # a new pod of that name: the attempt says nothing about it
            return
        if attempt.outcome in {Outcome.RELEASED, Outcome.GONE}:
            self._forget(key)
            return
        if attempt.held is not None:
            self._queue.put(key, attempt.held)
        if attempt.outcome is Outcome.CHANGED:
            self._queue.retry(key)
        else:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            wait = min(RETRY_SECONDS * 2 ** (failures - 1), RETRY_LIMIT_SECONDS)
            wait *= random.uniform(0.5, 1.0)  # noqa: S311 - only spreads load
            wait = max(wait, attempt.retry_after or 0.0)
            self._retries.append((self._now() + wait, key))
            _log.warning(
                "release of %s/%s failed: %s; next try in %.1f s", *key, attempt.reason, wait
            )
            note = f"{attempt.reason}; it is tried again until it succeeds"
            self._tell(key, tried, events.RELEASE_FAILED, note, warning=True)

    def _report_release(self, key: Names, held: Held) -> None:
        passed = self._clock.surely_passed(self._now())
        lateness = 0.0 if passed is None else max(0.0, passed - held.due_ms / 1_000)
        self._metrics.lateness.observe(lateness)
        _log.info("released %s/%s, %.3f s after its time", *key, lateness)
        note = f"released {lateness:.3f} s after {values.canonical_instant(held.due_ms)}"
        note += f": {held.problem}" if held.problem else ""
        self._tell(key, held, events.RELEASED, note, warning=bool(held.problem))

    def _forget(self, key: Names) -> None:
        self._queue.discard(key)
        self._failures.pop(key, None)

    def _tell(self, key: Names, held: Held, reason: str, note: str, *, warning: bool) -> None:
        self._told.record(events.Event(key, held.uid, reason, note, warning))

    # --- small helpers -------------------------------------------------------------------------

    def _guarded(self, call: Callable[..., None], *args: object) -> None:
        """Run a thread's body; what nobody expected is logged and ends the process."""
        try:
            call(*args) if args else call(self._stop)
        except BaseException:
            _log.exception("a thread of the controller died; the process ends to be started again")
            self.failed = True
            self.stop()
            raise

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _restarted(self, reason: str) -> None:
        self._metrics.watch_restarts.labels(reason).inc()

    def _overdue(self) -> int:
        passed = self._clock.surely_passed(self._now())
        with self._changed:
            return 0 if passed is None else self._queue.overdue(int(passed * 1_000))

    def _uncertainty(self) -> float:
        bounds = self._clock.bounds(self._now())
        return float("inf") if bounds is None else bounds.width


def _own_gates(held: Held) -> str:
    return ", ".join(gate for gate in held.gates if gate.startswith(holds.OWN_PREFIX))
