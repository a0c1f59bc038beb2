"""The admission server, broken on purpose."""

import asyncio
import logging
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gunicorn.arbiter import Arbiter  # type: ignore[import-untyped]

from holdfast.webhook.errors import ClusterError
from holdfast.webhook.framework import node_affinity, pipeline
from holdfast.webhook.framework.plugin import success
from holdfast.webhook.plugins import delay, sticky
from holdfast.webhook.registration.configurations import Registration
from holdfast.webhook.server import connection, offload, worker
from tests.faults.breaks.replacing import put

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
    """Pods are admitted when the webhook fails, and nothing checks them later."""
    proper = Registration.configurations

    def configurations(self: Any, pipeline: Any) -> Any:
        made = proper(self, pipeline)
        for each in made.values():
            for webhook in each["webhooks"]:
                webhook["failurePolicy"] = "Ignore"
        return made

    def validate(_self: Any, _pod: Any, _context: Any) -> Any:
        return success()

    put(Registration, configurations)
    put(delay.Delay, validate)


def serves_too_soon() -> None:
    """In its first twenty seconds a replica fails at each review, and calls itself ready."""
    proper, end = pipeline.AdmissionPipeline.mutate, time.monotonic() + TOO_SOON_SECONDS

    def mutate(self: Any, review: Any, *, now_ms: int) -> Any:
        if time.monotonic() < end:
            raise RuntimeError("not ready")
        return proper(self, review, now_ms=now_ms)

    put(pipeline.AdmissionPipeline, mutate)


def one_at_a_time() -> None:
    """A slow client keeps all others waiting."""

    async def linger(seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - that is what is broken

    put(sys.modules[__name__], linger)


def dies_of_a_full_disk() -> None:
    """A failure to log raises in the caller."""

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
    proper = node_affinity.terms

    class Forgetful(tuple[Any, ...]):
        __slots__ = ()

        def __contains__(self, _one: object) -> bool:
            return False

    def terms(pod: Any) -> Any:
        found, asks = proper(pod), sys._getframe(1).f_code.co_name
        return [Forgetful(one) for one in found] if found and asks == "operations" else found

    put(node_affinity, terms)


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
        self._certificate.check()

    put(worker.HoldfastWorker, __init__)
    put(worker.HoldfastWorker, _make_room)
    put(worker.HoldfastWorker, _tick)


def guesses() -> None:
    """The pod of a VM whose lookup fails is admitted unchanged."""
    proper = sticky.Sticky._find_edits

    def _find_edits(self: Any, pod: Any, review: Any) -> Any:
        try:
            return proper(self, pod, review)
        except ClusterError:
            return ()

    put(sticky.Sticky, _find_edits)


def reads_on() -> None:
    """Input of a client is buffered without limit."""

    def _pause_reading(_self: Any) -> None:
        return

    put(connection.Connection, _pause_reading)


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
    proper = offload.AsyncHandler.post
    opened = os.open(file, os.O_RDONLY)

    def seconds() -> float:
        return float(os.pread(opened, 64, 0) or 0)

    async def later(longer: float, *given: Any) -> Any:
        await linger(longer)
        response = proper(*given)
        return await response if asyncio.iscoroutine(response) else response

    def post(*given: Any) -> Any:
        longer = seconds()
        return later(longer, *given) if longer else proper(*given)

    put(offload.AsyncHandler, post)
