"""Runs `holdfast` with one thing broken on purpose, so that a row is known to be able to fail.

HOLDFAST_BROKEN names what; the wall clock is shifted as `tests.e2e.wrong_clock` does. Nothing of
this is in the product: its functions are replaced in this process, before it starts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

if os.environ.get("SECONDS_AHEAD"):
    import tests.e2e.wrong_clock  # noqa: F401 - shifts the clock for what is imported next

from webhook import (
    affinity,
    asgi,
    clock,
    controller,
    leader,
    publisher,
    reflector,
    registration,
    releaser,
    worker,
)
from webhook.framework import success
from webhook.plugins import delay
from webhook.release_queue import Held

VARIABLE = "HOLDFAST_BROKEN"
SLOW = "HOLDFAST_SLOW"
"""Names a file with the seconds that each request takes longer."""


def early() -> None:
    """Releases go by the upper bound of the API server's clock, and two seconds more."""

    def surely_passed(self: clock.ServerClock, local: float) -> float | None:
        known = self.bounds(local)
        return None if known is None else local + known.high + 2

    _put(clock.ServerClock, surely_passed)


def wall_clock() -> None:
    """Releases go by this machine's wall clock."""

    def surely_passed(_self: clock.ServerClock, _local: float) -> float:
        return time.time()

    _put(clock.ServerClock, surely_passed)


def gives_up() -> None:
    """A release that fails is not tried again, and what is listed anew is not read."""
    forgets_to_list()
    proper = releaser.Releaser.release

    def release(self: releaser.Releaser, key: Any, held: Held) -> releaser.Attempt:
        attempt = proper(self, key, held)
        if attempt.outcome is releaser.Outcome.RETRY:
            return releaser.Attempt(releaser.Outcome.GONE)
        return attempt

    _put(releaser.Releaser, release)


def forgets_to_list() -> None:
    """Pods that are there at the start, or after a watch broke off, are not seen."""
    proper = controller.Controller.replace

    def replace(self: controller.Controller, _pods: Any) -> None:
        proper(self, [])

    _put(controller.Controller, replace)


def trusts_silence() -> None:
    """A watch may be silent for ever."""
    reflector.WATCH_SILENCE_SECONDS = 1e6


def dies_of_gone() -> None:
    """Nothing is followed any more when a watch has failed."""

    def run(self: Any, stop: threading.Event) -> None:
        self._follow(stop)

    _put(reflector.Reflector, run)


def writes_blindly() -> None:
    """A release tests neither uid nor version nor gate: it empties the list of gates."""

    def release_patch(_held: Held) -> Sequence[Any]:
        return [{"op": "replace", "path": "/spec/schedulingGates", "value": []}]

    _put(releaser, release_patch)


def always_leads() -> None:
    """Every controller takes itself for the leader, and none tests what it writes."""

    def leading(_self: leader.Leader) -> bool:
        return True

    _put(leader.Leader, leading)
    writes_blindly()


def dies_of_errors() -> None:
    """A request that fails ends the controller, and nobody starts it again."""

    def turn(self: leader.Leader) -> None:
        self._try()
        self._tell()

    _put(leader.Leader, turn)


def slow_hand() -> None:
    """One release a second, and no more at once."""
    proper = releaser.Releaser.release
    controller.WORKERS = 1

    def release(self: releaser.Releaser, key: Any, held: Held) -> releaser.Attempt:
        time.sleep(1)
        return proper(self, key, held)

    _put(releaser.Releaser, release)


def lets_through() -> None:
    """The admission server holds nothing, and finds nothing wrong with that."""

    def mutate(_self: Any, _pod: Any, _context: Any) -> Any:
        return success()

    def validate(_self: Any, _pod: Any, _context: Any) -> Any:
        return success()

    _put(delay.Delay, mutate)
    _put(delay.Delay, validate)


def fails_open() -> None:
    """What cannot be asked about is let through."""
    proper = registration.Registration.configurations

    def configurations(self: Any, pipeline: Any) -> Any:
        made = proper(self, pipeline)
        for each in made.values():
            for webhook in each["webhooks"]:
                webhook["failurePolicy"] = "Ignore"
        return made

    _put(registration.Registration, configurations)


def one_at_a_time() -> None:
    """Whoever is slow keeps all others waiting."""
    proper = asyncio.sleep

    async def sleep(seconds: float, *others: Any) -> None:
        if sys._getframe(1).f_code.co_name == "_answer":
            time.sleep(seconds)  # noqa: ASYNC251 - that is what is broken
        await proper(seconds, *others)

    _put(asyncio, sleep)


def dies_of_a_full_disk() -> None:
    """A line that cannot be logged is an error of whoever logs it."""

    def handleError(_self: logging.Handler, record: logging.LogRecord) -> None:  # noqa: N802
        raise OSError(f"cannot log {record.name}")

    _put(logging.StreamHandler, handleError)
    _put(logging.Handler, handleError)


def dies_without_descriptors() -> None:
    """A connection that cannot be accepted ends the worker."""

    def _pause_accepting(_self: Any, _listener: Any, error: OSError) -> None:
        os._exit(int(bool(error)))

    _put(worker.HoldfastWorker, _pause_accepting)


def adds_again() -> None:
    """A requirement is added to a term that has it already."""
    proper = affinity.terms

    def terms(pod: Any) -> Any:
        return [((), ()) for _ in found] if (found := proper(pod)) else found

    _put(affinity, terms)


def leaks() -> None:
    """Each release leaves a file open, and a thread."""
    proper = releaser.Releaser.release

    def release(self: releaser.Releaser, key: Any, held: Held) -> releaser.Attempt:
        left.append(os.open(os.devnull, os.O_RDONLY))
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return proper(self, key, held)

    left: list[int] = []
    _put(releaser.Releaser, release)


def never_repairs() -> None:
    """Certificates and webhook configurations are left as they are once there are webhooks."""
    proper = publisher.Publisher._keep

    def _keep(self: Any, now: Any) -> None:
        if not all(publisher._webhooks(self._read(path)) for path in self._paths):
            proper(self, now)

    _put(publisher.Publisher, _keep)


def waits_for_ever() -> None:
    """The admission server sets its clients no time limits, and makes no room for newcomers."""

    def _make_room(_self: Any) -> bool:
        return False

    async def _tick(self: Any, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.notify()

    _put(worker.HoldfastWorker, _make_room)
    _put(worker.HoldfastWorker, _tick)


def _slow_down(file: Path) -> None:
    proper, hasty, read = asgi.Bridge._answer, asgi.Bridge.at_once, file.read_text

    async def _answer(self: Any, scope: Any, receive: Any) -> Any:
        if scope["method"] == "POST" and (seconds := float(read() or 0)):
            await asyncio.sleep(seconds)
        return await proper(self, scope, receive)

    def at_once(self: Any, scope: Any, body: bytes) -> Any:
        return None if float(read() or 0) else hasty(self, scope, body)

    _put(asgi.Bridge, _answer)
    _put(asgi.Bridge, at_once)


def _put(owner: Any, function: Callable[..., Any]) -> None:
    """Put a function in the place of the one of that name."""
    setattr(owner, function.__name__, function)


BREAKS: Mapping[str, Callable[[], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        early,
        wall_clock,
        gives_up,
        forgets_to_list,
        trusts_silence,
        dies_of_gone,
        writes_blindly,
        always_leads,
        dies_of_errors,
        slow_hand,
        lets_through,
        fails_open,
        one_at_a_time,
        dies_of_a_full_disk,
        dies_without_descriptors,
        adds_again,
        leaks,
        never_repairs,
        waits_for_ever,
    )
}

if __name__ == "__main__":
    chosen = os.environ.get(VARIABLE, "")
    if chosen:
        BREAKS[chosen]()
    if slow := os.environ.get(SLOW, ""):
        _slow_down(Path(slow))
    runpy.run_module("webhook", run_name="__main__", alter_sys=True)
