"""The controller, broken on purpose."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from tests.faults.breaks.replacing import put
from webhook import (
    clock,
    controller,
    fair_queue,
    leader,
    publisher,
    reflector,
    registered,
    releaser,
    retries,
)
from webhook.objects import Names
from webhook.release_queue import Held


def early() -> None:
    """Releases go by the upper bound of the API server's clock, and two seconds more."""

    def surely_passed(self: clock.ServerClock, local: float) -> float | None:
        known = self.bounds(local)
        return None if known is None else local + known.high + 2

    put(clock.ServerClock, surely_passed)


def wall_clock() -> None:
    """Releases go by this machine's wall clock."""

    def surely_passed(_self: clock.ServerClock, _local: float) -> float:
        return time.time()

    put(clock.ServerClock, surely_passed)


def gives_up() -> None:
    """A release that fails is not tried again, and what is listed anew is not read."""
    forgets_to_list()
    proper = releaser.Releaser.release

    def release(
        self: releaser.Releaser, key: Any, held: Held, *, patient: bool = False
    ) -> releaser.Attempt:
        attempt = proper(self, key, held, patient=patient)
        if attempt.outcome is releaser.Outcome.RETRY:
            return releaser.Attempt(releaser.Outcome.GONE)
        return attempt

    put(releaser.Releaser, release)


def hurries() -> None:
    """What failed is tried again soon, whatever the answer's Retry-After asked for."""
    proper = retries.Retries.failed

    def failed(self: retries.Retries, key: Names, *, now: float, at_least: float) -> float:
        del at_least
        return proper(self, key, now=now, at_least=0.0)

    put(retries.Retries, failed)


def forgets_to_list() -> None:
    """Pods that are there at the start, or after a watch broke off, are not seen."""
    proper = controller.Controller.replace

    def replace(self: controller.Controller, pods: Any) -> None:
        deque(pods, maxlen=0)  # gone through: a watch from no version would tell of all of them
        proper(self, [])

    put(controller.Controller, replace)


def trusts_silence() -> None:
    """A watch may be silent for ever."""
    reflector.WATCH_SILENCE_SECONDS = 1e6


def dies_of_gone() -> None:
    """Nothing is followed any more when a watch has failed."""

    def run(self: Any, stop: threading.Event) -> None:
        self._follow(stop)

    put(reflector.Reflector, run)


def writes_blindly() -> None:
    """A release tests neither uid nor version nor gate: it empties the list of gates."""

    def release_patch(_held: Held) -> Sequence[Any]:
        return [{"op": "replace", "path": "/spec/schedulingGates", "value": []}]

    put(releaser, release_patch)


def goes_by_names() -> None:
    """A pod is known by its name alone: another one of that name is due when the first one was."""
    proper, first = controller.Controller._take, dict[Any, int]()

    def _take(self: controller.Controller, key: Any, held: Held, *, watched: bool) -> None:
        due_ms = first.setdefault(key, held.due_ms)
        proper(self, key, held._replace(due_ms=due_ms), watched=watched)

    put(controller.Controller, _take)
    writes_blindly()


def always_leads() -> None:
    """Every controller takes itself for the leader, and none tests what it writes."""

    def leading(_self: leader.Leader) -> bool:
        return True

    put(leader.Leader, leading)
    writes_blindly()


def leaves_the_lease() -> None:
    """Whoever held the Lease once has it for ever."""

    def _taken(self: leader.Leader, spec: Any) -> bool:
        return spec.holder_identity not in {None, "", self.identity}

    put(leader.Leader, _taken)


def dies_of_errors() -> None:
    """A request that fails ends the controller, and nobody starts it again."""

    def turn(self: leader.Leader) -> None:
        self._try()
        self._tell()

    put(leader.Leader, turn)


def slow_hand() -> None:
    """One release a second, and no more at once."""
    proper = releaser.Releaser.release
    controller.WORKERS = 1

    def release(
        self: releaser.Releaser, key: Any, held: Held, *, patient: bool = False
    ) -> releaser.Attempt:
        time.sleep(1)
        return proper(self, key, held, patient=patient)

    put(releaser.Releaser, release)


def one_lane() -> None:
    """What is due is dealt out in the order in which it comes, to whoever has a thread."""

    def _next(_self: fair_queue.FairQueue, queue: Mapping[str, Any]) -> str | None:
        return next(iter(queue), None)

    put(fair_queue.FairQueue, _next)


def leaks() -> None:
    """Each release leaves a file open, and a thread."""
    proper = releaser.Releaser.release

    def release(
        self: releaser.Releaser, key: Any, held: Held, *, patient: bool = False
    ) -> releaser.Attempt:
        left.append(os.open(os.devnull, os.O_RDONLY))
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return proper(self, key, held, patient=patient)

    left: list[int] = []
    put(releaser.Releaser, release)


def never_repairs() -> None:
    """Certificates and webhook configurations are left as they are once there were webhooks."""
    proper, published = publisher.Publisher._keep, threading.Event()

    def _keep(self: Any, now: Any) -> None:
        if all(registered.ours(self._read(path) or {}) for path in self._paths):
            published.set()
        if not published.is_set():
            proper(self, now)

    put(publisher.Publisher, _keep)


def never_forgets() -> None:
    """A pod that is gone, or no longer held, is released all the same when its time has come."""

    def _forget(_self: controller.Controller, _key: Any) -> None:
        return

    put(controller.Controller, _forget)
