"""The controller thread: releases each held pod when its time has come at the API server.

It keeps nothing that the API server does not have: killed at any moment and started again, it
lists, releases what is overdue at once, in order, and waits for the rest. One that does not lead
follows all the same, and knows every held pod, but releases nothing and tells nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from webhook import events, holds, logs
from webhook.agenda import Agenda, Task
from webhook.clock import ServerClock
from webhook.cluster import Api, boot_time
from webhook.fair_queue import REMEMBERED_SECONDS
from webhook.metrics import ControllerMetrics
from webhook.objects import Names, Pod
from webhook.pool import Pool
from webhook.reflector import Reflector
from webhook.release_queue import Held, ReleaseQueue, steady
from webhook.releaser import Attempt, Decider, Outcome, Releaser, held_pod
from webhook.reporter import Reporter
from webhook.timekeeper import Timekeeper

PODS = "/api/v1/pods"
FIELD_SELECTOR = "spec.nodeName=,status.phase=Pending"
"""Every pod that can carry a gate, without trusting any label."""
WORKERS = 40
"""Releases under way at once: what one process can drive (see docs/explanation/decisions.md)."""
WORKERS_OF_ONE = 32
"""How many of them may be of one namespace, or of all those in which releases take long: what hangs
or is refused there, however many pods they are, leaves the others a way."""
FIRST_OF_ONE = 8
"""With how many of them a namespace begins, before its releases are seen to succeed."""
LONGEST_WAIT = 1.0
"""Seconds the loop sleeps at most: a laptop that slept, or a better clock, is noticed by then."""
LAST_RELEASES_SECONDS = 3.0
"""How long the end waits for releases that are under way. One that hangs may be carried out when
another controller leads: its patch fails, or the other's does."""
LAST_EVENTS_SECONDS = 2.0
"""How long the end waits for events that are still to be told."""

_log = logging.getLogger("holdfast.controller")


class Controller:
    """The release loop, the threads that feed it, and those that carry releases out."""

    def __init__(
        self,
        api: Api,
        decider: Decider,
        clock: ServerClock,
        metrics: ControllerMetrics,
        *,
        told: events.Events | None = None,
        leading: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = boot_time,
    ) -> None:
        self._clock = clock
        self._metrics = metrics
        self._leading = leading
        self._reporter = Reporter(told or events.Silence(), metrics, leading=leading)
        self._now = now
        self._decider = decider
        self._releaser = Releaser(api, decider)
        self._held = ReleaseQueue()
        self._agenda = Agenda(self._held, WORKERS_OF_ONE, first=FIRST_OF_ONE)
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._synced = threading.Event()
        self.failed = False
        self._reflector = Reflector(
            api,
            self,
            Pod,
            path=PODS,
            selection={"fieldSelector": FIELD_SELECTOR},
            on_restart=self._restarted,
        )
        self._timekeeper = Timekeeper(api, clock, on_narrowed=self.wake)
        metrics.held.set_function(lambda: len(self._held))
        metrics.overdue.set_function(self._overdue)
        metrics.count_holds = self._holds
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
                ("events", self._reporter.run),
            )
        ]
        for thread in feeders:
            thread.start()
        pool = Pool(WORKERS, "release")
        try:
            while not self._stop.is_set():
                self._turn(pool)
            with self._changed:
                self._changed.wait_for(self._has_ended, LAST_RELEASES_SECONDS)
        finally:
            pool.close()
        feeders[-1].join(LAST_EVENTS_SECONDS)

    def stop(self) -> None:
        """End the loop; releases that are under way may finish first, unless they hang."""
        self._stop.set()
        self.wake()

    @property
    def busy(self) -> bool:
        """True while as many are under way as one namespace may have, without those that hang."""
        with self._changed:
            return self._agenda.under_way_quickly >= WORKERS_OF_ONE

    def wake(self) -> None:
        """Look at once at what is due: the clock is better known, or this one leads now."""
        with self._changed:
            self._changed.notify_all()

    # --- what a plugin's handle gives (webhook.framework.HeldPods) ------------------------------

    def __iter__(self) -> Iterator[Names]:
        """Go through the pods that are held now."""
        with self._changed:
            return iter(list(self._held))

    def get(self, key: Names) -> holds.Due | None:
        """Tell when a pod is due, or None when it is not held."""
        with self._changed:
            held = self._held.get(key)
        return None if held is None else holds.Due(held.due_ms, held.problem)

    def release(self, key: Names, plugin: str) -> None:
        """Say that this plugin holds the pod no longer; it is read and decided again at once."""
        with self._changed:
            held = self._held.get(key)
            if held is not None:
                self._decider.allow(held.uid, plugin)
                self._held.put(key, held._replace(due_ms=0, resource_version="", recheck=True))
                self._changed.notify_all()

    def tell(self, pod: Pod, reason: str, note: str, *, warning: bool = False) -> None:
        """Tell an Event about a pod; never blocks, never raises."""
        self._reporter.tell(pod.key, pod.metadata.uid, reason, note, warning=warning)

    # --- what the reflector tells (webhook.reflector.Follower) ---------------------------------

    def replace(self, pods: Iterable[Pod]) -> None:
        """Take these pods, and no others, as all there are.

        One by one: neither all of them nor all notes of them are in memory twice, and a release
        that is due meanwhile waits for none.
        """
        held: set[Names] = set()
        for pod in pods:
            note = held_pod(pod, self._decider)
            if note is not None:
                held.add(pod.key)
                with self._changed:
                    self._take(pod.key, note, watched=False)
        with self._changed:
            for key in [key for key in self._held if key not in held]:
                self._forget(key)
            if not self._synced.is_set():
                _log.info("watching: %d held pods", len(held))
                self._synced.set()
            self._changed.notify_all()

    def update(self, pod: Pod) -> None:
        """Take a pod that is new or has changed."""
        note = held_pod(pod, self._decider)
        with self._changed:
            if note is None:
                self._forget(pod.key)
            else:
                self._take(pod.key, note, watched=True)
                self._changed.notify_all()

    def remove(self, pod: Pod) -> None:
        """Take a pod that is gone, or no longer among those that can be gated."""
        with self._changed:
            self._forget(pod.key)

    def _take(self, key: Names, held: Held, *, watched: bool) -> None:
        """Note a pod, seen while it was watched or in a list, and tell until when it is held.

        Of very many in a list only some can be told: for the rest nothing is written in vain.
        """
        known = self._held.get(key)
        if known is not None and known.uid != held.uid:
            self._decider.forget(known.uid)
        elif known is not None and not known.resource_version:
            return  # a plugin has let it go since it was decided: its release reads it anew
        held = steady(known, held)
        now_ms = self._now_ms()
        if known is not None and (known.uid, known.due_ms) == (held.uid, held.due_ms):
            self._held.put(key, held._replace(known_ms=known.known_ms))
            return
        changed = known is not None and known.uid == held.uid
        self._held.put(key, held._replace(known_ms=now_ms if watched or changed else 0))
        if held.due_ms > now_ms and (watched or not self._reporter.full):
            self._reporter.held(key, held)

    # --- the loop ------------------------------------------------------------------------------

    def _turn(self, pool: Pool) -> None:
        """Hand out what is due, then sleep until something may be."""
        with self._changed:
            local = self._now()
            passed = self._may_release_until(local)
            while self._has_hands() and (due := self._next_due(passed)) is not None:
                pool.submit(partial(self._guarded, self._carry_out, *due))
            self._changed.wait(self._next_wait(local, passed))

    def _may_release_until(self, local: float) -> float | None:
        """Tell the time up to which what is due may be released; None while nothing may."""
        # until all are known, the first that are due are not
        if self._stop.is_set() or not (self._leading() and self.synced):
            return None
        return self._clock.surely_passed(local)

    def _next_due(self, passed: float | None) -> Task | None:
        """Take the next pod that is due at that time."""
        return None if passed is None else self._agenda.take(int(passed * 1_000), self._now())

    def _next_wait(self, local: float, passed: float | None) -> float:
        if passed is None or not self._has_hands():
            return LONGEST_WAIT
        return max(min(LONGEST_WAIT, self._agenda.wait(passed, local)), 0.0)

    def _has_hands(self) -> bool:
        return self._agenda.under_way < WORKERS

    # --- releases, in threads of the pool ------------------------------------------------------

    def _carry_out(self, key: Names, held: Held) -> None:
        """Release a pod, and then what else is due: to hand each over costs half a release."""
        due: Task | None = (key, held)
        while due is not None:
            due = self._release(*due)

    def _release(self, key: Names, held: Held) -> Task | None:
        """Release a pod, and take the next one that is due."""
        if not self._leading():  # the process was stopped, or lost the lead, since it was due
            with self._changed:
                self._agenda.put_back(key)
                self._changed.notify_all()
            return None
        with self._changed:
            began = self._now()
            patient = self._agenda.is_patient(key, began)
        attempt = self._releaser.release(key, held, patient=patient)
        ended = self._now()
        if attempt.outcome is Outcome.RELEASED:
            final = (attempt.held or held)._replace(due_ms=held.due_ms, known_ms=held.known_ms)
            self._reporter.released(key, final, attempt.notes, now_ms=self._now_ms())
        self._metrics.releases.labels(attempt.outcome.value).inc()
        with self._changed:
            worked = attempt.outcome is not Outcome.RETRY
            if self._agenda.took(key, ended - began, ended, worked=worked):
                self._tell_slow(key[0], ended - began)
            self._settle(key, held, attempt)
            following = self._next_due(self._may_release_until(self._now()))
            idle = following is None or attempt.outcome is not Outcome.RELEASED
            if idle or (self._has_hands() and self._agenda.has_room(key[0])):
                self._changed.notify_all()  # something to hand out, or to try again
            return following

    def _settle(self, key: Names, tried: Held, attempt: Attempt) -> None:
        """Note how an attempt ended; the watch may have told of another pod meanwhile."""
        known = self._held.get(key)
        if known is None:
            return  # it went meanwhile
        if known.uid != tried.uid:
            self._held.retry(key)  # a new pod of that name: the attempt says nothing about it
            return
        if attempt.outcome in {Outcome.RELEASED, Outcome.GONE}:
            self._forget(key)
            return
        if attempt.held is not None and known is tried:
            # else what came meanwhile stands, and is tried
            if attempt.held.uid != tried.uid:
                self._decider.forget(tried.uid)
            same = attempt.held.due_ms == tried.due_ms
            known_ms = tried.known_ms if same else self._now_ms()
            self._held.put(key, attempt.held._replace(known_ms=known_ms))
        if attempt.outcome is Outcome.CHANGED:
            self._held.retry(key)
        else:
            at_least = attempt.retry_after or 0.0
            wait = self._agenda.failed(key, self._now(), at_least=at_least)
            self._reporter.failed(key, tried, attempt.reason, wait=wait)

    def _forget(self, key: Names) -> None:
        held = self._held.get(key)
        if held is not None:
            self._decider.forget(held.uid)
        self._agenda.forget(key)

    def _tell_slow(self, namespace: str, seconds: float) -> None:
        _log.warning(
            "a release in namespace %s took %.1f s: it counts as slow until none has for %d s, and "
            "such namespaces have %d of %d threads together; look for a webhook that hangs",
            namespace,
            seconds,
            REMEMBERED_SECONDS,
            WORKERS_OF_ONE,
            WORKERS,
            extra=logs.fields(namespace=namespace),
        )

    # --- small helpers -------------------------------------------------------------------------

    def _has_ended(self) -> bool:
        return self.failed or not self._agenda.under_way

    def _guarded(self, call: Callable[..., None], *args: object) -> None:
        """Run a thread's body; what nobody expected is logged and ends the process."""
        try:
            call(*args) if args else call(self._stop)
        except BaseException:
            _log.exception("a thread of the controller died; the process ends to be started again")
            self.failed = True
            self.stop()
            raise

    def _restarted(self, reason: str) -> None:
        self._metrics.watch_restarts.labels(reason).inc()

    def _now_ms(self) -> int:
        """Give the API server's time, as far as it has surely come; 0 while nothing is known."""
        return int((self._clock.surely_passed(self._now()) or 0) * 1_000)

    def _holds(self) -> Mapping[tuple[str, str], int]:
        with self._changed:
            return self._held.holds(self._now_ms())

    def _overdue(self) -> int:
        with self._changed:
            return self._held.overdue(self._now_ms())

    def _uncertainty(self) -> float:
        bounds = self._clock.bounds(self._now())
        return float("inf") if bounds is None else bounds.width
