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
from holdfast.webhook.server import connection, offload, tls_transport, worker
from tests.faults.breaks.replacing import put

NO_TIMEOUT, TOO_SOON_SECONDS = 1e6, 20.0
HOLDS_SECONDS = 30.0
"""How long the admission server works before `lets_through` breaks it: rows need some held pods."""


def lets_through() -> None:
    """After 30 seconds, the admission server holds no pods, and does not validate gates."""
    end = time.monotonic() + HOLDS_SECONDS
    original_mutate, original_validate = delay.Delay.mutate, delay.Delay.validate

    def mutate(self: Any, pod: Any, context: Any) -> Any:
        return original_mutate(self, pod, context) if time.monotonic() < end else success()

    def validate(self: Any, pod: Any, context: Any) -> Any:
        return original_validate(self, pod, context) if time.monotonic() < end else success()

    put(delay.Delay, mutate)
    put(delay.Delay, validate)


def fails_open() -> None:
    """Pods are admitted if the webhook fails, and are not validated."""
    original = Registration.configurations

    def configurations(self: Any, pipeline: Any) -> Any:
        objects = original(self, pipeline)
        for configuration in objects.values():
            for webhook in configuration["webhooks"]:
                webhook["failurePolicy"] = "Ignore"
        return objects

    def validate(_self: Any, _pod: Any, _context: Any) -> Any:
        return success()

    put(Registration, configurations)
    put(delay.Delay, validate)


def serves_too_soon() -> None:
    """For its first 20 seconds, a replica fails every review although it is ready."""
    original, end = pipeline.AdmissionPipeline.mutate, time.monotonic() + TOO_SOON_SECONDS

    def mutate(self: Any, review: Any, *, now_ms: int) -> Any:
        if time.monotonic() < end:
            raise RuntimeError("not ready")
        return original(self, review, now_ms=now_ms)

    put(pipeline.AdmissionPipeline, mutate)


def one_at_a_time() -> None:
    """A slow review blocks all others."""

    async def pause(seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - blocks on purpose

    put(sys.modules[__name__], pause)


def dies_of_a_full_disk() -> None:
    """A logging failure raises an exception in the caller."""

    def handleError(_self: logging.Handler, record: logging.LogRecord) -> None:  # noqa: N802
        raise OSError(f"cannot log {record.name}")

    put(logging.StreamHandler, handleError)
    put(logging.Handler, handleError)


def dies_without_descriptors() -> None:
    """The worker exits if it cannot accept a connection."""

    def _pause_accepting(_self: Any, _listener: Any, error: OSError) -> None:
        os._exit(int(bool(error)))

    put(worker.HoldfastWorker, _pause_accepting)


def adds_again() -> None:
    """A requirement is added to terms that already have it."""
    original = node_affinity.terms

    class NeverContains(tuple[Any, ...]):
        __slots__ = ()

        def __contains__(self, _one: object) -> bool:
            return False

    def terms(pod: Any) -> Any:
        pod_terms, caller = original(pod), sys._getframe(1).f_code.co_name
        return (
            [NeverContains(term) for term in pod_terms]
            if pod_terms and caller == "operations"
            else pod_terms
        )

    put(node_affinity, terms)


def waits_for_ever() -> None:
    """The admission server has no timeouts, and closes no connections to accept new ones."""
    original = worker.HoldfastWorker.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - replaces the original
        original(self, *args, **kwargs)
        self.settings = replace(self.settings, handshake_timeout=NO_TIMEOUT)

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
    """Pods of VMs are admitted unchanged if the lookup fails."""
    original = sticky.Sticky._find_edits

    def _find_edits(self: Any, pod: Any, review: Any) -> Any:
        try:
            return original(self, pod, review)
        except ClusterError:
            return ()

    put(sticky.Sticky, _find_edits)


def reads_on() -> None:
    """Input from clients is buffered without limit."""

    def pause_reading(_self: Any) -> None:
        return

    def pause_writing(self: Any) -> None:
        self._writing_paused = True
        self._connection.pause_writing()

    connection.PIPELINE_LIMIT = sys.maxsize
    put(tls_transport.TlsTransport, pause_reading)
    put(tls_transport.TlsTransport, pause_writing)


def leaves_the_dead() -> None:
    """Workers that end are not replaced."""
    original = Arbiter.manage_workers

    def manage_workers(self: Any) -> None:
        if not self.worker_age:
            original(self)

    put(Arbiter, manage_workers)


async def pause(seconds: float) -> None:
    """Delay a review without blocking others."""
    await asyncio.sleep(seconds)


def slow_down(file: Path) -> None:
    """Delay each review by the number of seconds in a file.

    The file stays open, since rows may exhaust descriptors.
    """
    original = offload.AsyncHandler.post
    descriptor = os.open(file, os.O_RDONLY)

    def seconds() -> float:
        return float(os.pread(descriptor, 64, 0) or 0)

    async def delayed(delay: float, *args: Any) -> Any:
        await pause(delay)
        response = original(*args)
        return await response if asyncio.iscoroutine(response) else response

    def post(*args: Any) -> Any:
        delay = seconds()
        return delayed(delay, *args) if delay else original(*args)

    put(offload.AsyncHandler, post)
