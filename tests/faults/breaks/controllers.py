"""The controller, broken on purpose."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.webhook.controller import controller, freeze_watch, releaser, scheduler
from holdfast.webhook.controller.pending import PendingRelease
from holdfast.webhook.framework import permit
from holdfast.webhook.framework.plugin import Plugin
from holdfast.webhook.kube import leader_election, listing, reflector, server_clock
from holdfast.webhook.model.annotations import Due
from holdfast.webhook.model.objects import ObjectKey, Pod
from holdfast.webhook.plugins.pace import slots as pace_slots
from holdfast.webhook.plugins.pace.groups import PacedPod
from holdfast.webhook.registration import drift, reconciler
from holdfast.webhook.workqueue import backoff, fair
from tests.faults.breaks.replacing import put


def early() -> None:
    """Releases use the upper bound of the API server's clock plus two seconds."""

    def lower_bound(self: server_clock.ServerClock, local: float) -> float | None:
        bounds = self.bounds(local)
        return None if bounds is None else local + bounds.high + 2

    put(server_clock.ServerClock, lower_bound)


def wall_clock() -> None:
    """Releases use this machine's wall clock."""

    def lower_bound(_self: server_clock.ServerClock, _local: float) -> float:
        return time.time()

    put(server_clock.ServerClock, lower_bound)


def gives_up() -> None:
    """A failed release is not retried, and pods in a list are ignored."""
    forgets_to_list()
    original = releaser.Releaser.release

    def release(*args: Any, **kwargs: Any) -> releaser.Attempt:
        attempt = original(*args, **kwargs)
        if attempt.outcome is releaser.Outcome.RETRY:
            return releaser.Attempt(releaser.Outcome.GONE)
        return attempt

    put(releaser.Releaser, release)


def hurries() -> None:
    """Failed requests are retried soon, regardless of Retry-After."""
    original = backoff.Backoff.failed

    def failed(self: backoff.Backoff, key: ObjectKey, *, now: float, at_least: float) -> float:
        del at_least
        return original(self, key, now=now, at_least=0.0)

    put(backoff.Backoff, failed)


def forgets_to_list() -> None:
    """Pods that exist at startup, or when a watch restarts, are ignored."""
    original = controller.ReleaseController.on_sync

    def on_sync(self: controller.ReleaseController, pods: Any) -> None:
        deque(pods, maxlen=0)  # consumed: a watch without a version would report all of them
        original(self, [])

    put(controller.ReleaseController, on_sync)


def trusts_silence() -> None:
    """A silent watch is never restarted."""
    reflector.WATCH_SILENCE_SECONDS = 1e6


def dies_of_gone() -> None:
    """After a watch has failed, no other watch is started."""

    def run(self: Any, stop: threading.Event) -> None:
        self._follow(stop)

    put(reflector.Reflector, run)


def writes_blindly() -> None:
    """A release tests neither UID nor version nor gate: it removes all gates."""

    def release_patch(_held: PendingRelease, _now_ms: int) -> Sequence[Any]:
        return [{"op": "replace", "path": "/spec/schedulingGates", "value": []}]

    put(releaser, release_patch)


def goes_by_names() -> None:
    """Pods are identified by name only: a recreated pod keeps the due time of the first one."""
    original, first_due_ms = scheduler.ReleaseScheduler.upsert, dict[Any, int]()

    def upsert(self: Any, key: Any, fresh: PendingRelease, *args: Any, **kwargs: Any) -> Any:
        due_ms = first_due_ms.setdefault(key, fresh.due_ms)
        return original(self, key, fresh._replace(due_ms=due_ms), *args, **kwargs)

    put(scheduler.ReleaseScheduler, upsert)
    writes_blindly()


def always_leads() -> None:
    """Every controller considers itself the leader, and writes without tests."""

    def leading(_self: leader_election.Leader) -> bool:
        return True

    put(leader_election.Leader, leading)
    writes_blindly()


def leaves_the_lease() -> None:
    """A Lease never expires."""

    def _is_held(self: leader_election.Leader, spec: Any) -> bool:
        return spec.holder_identity not in {None, "", self.identity}

    put(leader_election.Leader, _is_held)


def dies_of_errors() -> None:
    """A failed request ends the controller, which is not restarted."""

    def try_acquire_or_renew(self: leader_election.Leader) -> None:
        self._try()
        self._report()

    put(leader_election.Leader, try_acquire_or_renew)


def slow_hand() -> None:
    """Pods are released one at a time, one per second."""
    original = releaser.Releaser.release
    controller.WORKERS = 1

    def release(*args: Any, **kwargs: Any) -> releaser.Attempt:
        time.sleep(1)
        return original(*args, **kwargs)

    put(releaser.Releaser, release)


def one_lane() -> None:
    """Due pods are released in order of arrival, by any free thread."""

    def _next(_self: fair.FairQueue, queue: Mapping[str, Any]) -> str | None:
        return next(iter(queue), None)

    put(fair.FairQueue, _next)


def leaks() -> None:
    """Each release leaks a file and a thread."""
    original = releaser.Releaser.release

    def release(*args: Any, **kwargs: Any) -> releaser.Attempt:
        descriptors.append(os.open(os.devnull, os.O_RDONLY))
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return original(*args, **kwargs)

    descriptors: list[int] = []
    put(releaser.Releaser, release)


def never_repairs() -> None:
    """Certificates and webhook configurations are not repaired once they exist."""
    original, published = reconciler.WebhookReconciler._ensure, threading.Event()

    def _ensure(self: Any, now: Any) -> None:
        configurations = [listing.one(self.api, path, dict[str, Any]) or {} for path in self._paths]
        if all(map(drift.ours, configurations)):
            published.set()
        if not published.is_set():
            original(self, now)

    put(reconciler.WebhookReconciler, _ensure)


def never_forgets() -> None:
    """Pods that are deleted or no longer held are still released when due."""

    def remove(_self: scheduler.ReleaseScheduler, _key: Any) -> None:
        return

    put(scheduler.ReleaseScheduler, remove)


def forgets_who_starts() -> None:
    """A new leader does not count the pods that are starting."""
    original = pace_slots.PaceSlots.on_sync

    def on_sync(self: pace_slots.PaceSlots, pods: Iterable[PacedPod], watch: Any) -> None:
        original(self, [pod for pod in pods if pace_slots.GATE in pod.gates], watch)

    put(pace_slots.PaceSlots, on_sync)


def dies_of_values() -> None:
    """An invalid value ends the watch for pods."""
    original = permit.ReleaseDecider._foresee

    def _foresee(self: permit.ReleaseDecider, plugin: Plugin, pod: Pod, at_ms: int) -> Due:
        due = original(self, plugin, pod, at_ms)
        if due.problem:
            raise ValueError(due.problem)
        return due

    put(permit.ReleaseDecider, _foresee)


def forgets_freezes() -> None:
    """Freezes that exist at startup, or when a watch restarts, are ignored."""
    original = freeze_watch.FreezeWatch.on_sync

    def on_sync(self: freeze_watch.FreezeWatch, namespaces: Any) -> None:
        deque(namespaces, maxlen=0)
        original(self, [])

    put(freeze_watch.FreezeWatch, on_sync)
