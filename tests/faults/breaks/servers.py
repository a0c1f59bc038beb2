"""The admission server, broken on purpose."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gunicorn.arbiter import Arbiter  # type: ignore[import-untyped]
from gunicorn.asgi.protocol import ASGIProtocol  # type: ignore[import-untyped]

from tests.faults.breaks.replacing import put
from webhook import affinity, asgi, pipeline, registration, worker
from webhook.errors import ClusterError
from webhook.framework import success
from webhook.plugins import delay, sticky

FOR_EVER, TOO_SOON_SECONDS = 1e6, 20.0
HOLDS_SECONDS = 30.0
"""For so long an admission server that is broken later does what it should: a row needs one that
holds pods to begin with."""


def lets_through() -> None:
    """After its first thirty seconds the admission server holds nothing, and finds that right."""
    end = time.monotonic() + HOLDS_SECONDS
    mutating, validating = delay.Delay.mutate, delay.Delay.validate

    def mutate(self: Any, pod: Any, context: Any) -> Any:
        return mutating(self, pod, context) if time.monotonic() < end else success()

    def validate(self: Any, pod: Any, context: Any) -> Any:
        return validating(self, pod, context) if time.monotonic() < end else success()

    put(delay.Delay, mutate)
    put(delay.Delay, validate)


def fails_open() -> None:
    """What cannot be asked about is let through, and nobody looks at it again."""
    proper = registration.Registration.configurations

    def configurations(self: Any, pipeline: Any) -> Any:
        made = proper(self, pipeline)
        for each in made.values():
            for webhook in each["webhooks"]:
                webhook["failurePolicy"] = "Ignore"
        return made

    def validate(_self: Any, _pod: Any, _context: Any) -> Any:
        return success()

    put(registration.Registration, configurations)
    put(delay.Delay, validate)


def serves_too_soon() -> None:
    """In its first twenty seconds a replica fails at each review, and calls itself ready."""
    proper, end = pipeline.Pipeline.mutate, time.monotonic() + TOO_SOON_SECONDS

    def mutate(self: Any, review: Any, *, now_ms: int) -> Any:
        if time.monotonic() < end:
            raise RuntimeError("not ready")
        return proper(self, review, now_ms=now_ms)

    put(pipeline.Pipeline, mutate)


def one_at_a_time() -> None:
    """Whoever is slow keeps all others waiting."""

    async def linger(seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - that is what is broken

    put(sys.modules[__name__], linger)


def dies_of_a_full_disk() -> None:
    """A line that cannot be logged is an error of whoever logs it."""

    def handleError(_self: logging.Handler, record: logging.LogRecord) -> None:  # noqa: N802
        raise OSError(f"cannot log {record.name}")

    put(logging.StreamHandler, handleError)
    put(logging.Handler, handleError)


def dies_without_descriptors() -> None:
    """A connection that cannot be accepted ends the worker."""

    def _pause_accepting(_self: Any, _listener: Any, error: OSError) -> None:
        os._exit(int(bool(error)))

    put(worker.HoldfastWorker, _pause_accepting)


def adds_again() -> None:
    """A requirement is added to a term that has it already."""
    proper = affinity.terms

    class Forgetful(tuple[Any, ...]):
        __slots__ = ()

        def __contains__(self, _one: object) -> bool:
            return False

    def terms(pod: Any) -> Any:
        found, asks = proper(pod), sys._getframe(1).f_code.co_name
        return [Forgetful(one) for one in found] if found and asks == "operations" else found

    put(affinity, terms)


def waits_for_ever() -> None:
    """The admission server sets its clients no time limits, and makes no room for newcomers."""
    proper = worker.HoldfastWorker.__init__

    def __init__(self: Any, *given: Any, **named: Any) -> None:  # noqa: N807 - it takes its place
        proper(self, *given, **named)
        self.settings = replace(self.settings, handshake_timeout=FOR_EVER)

    def _make_room(_self: Any) -> bool:
        return False

    async def _tick(self: Any, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.notify()
        self._certificate.look()

    put(worker.HoldfastWorker, __init__)
    put(worker.HoldfastWorker, _make_room)
    put(worker.HoldfastWorker, _tick)


def guesses() -> None:
    """A VM's pod whose VM cannot be looked up is let in as it is."""
    proper = sticky.Sticky._wanted

    def _wanted(self: Any, pod: Any, review: Any) -> Any:
        try:
            return proper(self, pod, review)
        except ClusterError:
            return ()

    put(sticky.Sticky, _wanted)


def reads_on() -> None:
    """What a client sends is read ahead without end."""

    def _pause_reading(_self: Any) -> None:
        return

    put(ASGIProtocol, _pause_reading)


def leaves_the_dead() -> None:
    """A worker that has ended is not replaced."""
    proper = Arbiter.manage_workers

    def manage_workers(self: Any) -> None:
        if not self.worker_age:
            proper(self)

    put(Arbiter, manage_workers)


async def linger(seconds: float) -> None:
    """Wait as what is slow does."""
    await asyncio.sleep(seconds)


def slow_down(file: Path) -> None:
    """Let each review take as many seconds longer as the file says.

    The file stays open: a row may let descriptors run out.
    """
    proper, hasty = asgi.Bridge._answer, asgi.Bridge.begin
    opened = os.open(file, os.O_RDONLY)

    def seconds() -> float:
        return float(os.pread(opened, 64, 0) or 0)

    async def _answer(self: Any, scope: Any, receive: Any) -> Any:
        if scope["method"] == "POST" and (longer := seconds()):
            await linger(longer)
        return await proper(self, scope, receive)

    async def later(longer: float, self: Any, scope: Any, body: bytes) -> Any:
        await linger(longer)
        answer = hasty(self, scope, body)
        return answer if isinstance(answer, tuple) else await answer

    def begin(self: Any, scope: Any, body: bytes) -> Any:
        longer = seconds()
        return later(longer, self, scope, body) if longer else hasty(self, scope, body)

    put(asgi.Bridge, _answer)
    put(asgi.Bridge, begin)
