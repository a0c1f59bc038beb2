"""Peak memory and CPU time of `holdfast serve` with the largest and most expensive requests.

The kernel records each process's peak, so the time of sampling does not matter. The bound is the
memory limit in the manifests, for both processes together; shared memory counts twice.
"""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.certs.authority import KeyPair
from holdfast.webhook.server.handler import BODY_LIMIT
from tests.server.memory import allowed, peak
from tests.server.serving import JSON, PATHS, Serving, in_chunks, serve_holdfast
from tests.support.builders import padded
from tests.support.expensive import body_of

ROUNDS = 2
"""Rounds of all requests, so that a leak in each round shows."""
CPU_SECONDS = 1.0
"""Maximum CPU time of one request, which blocks the others."""
DEEP = b'{"a":' * (BODY_LIMIT // 5)
LISTS = b"[" * BODY_LIMIT


@pytest.fixture
def serving(tmp_path: Path, issued: list[KeyPair]) -> Iterator[Serving]:
    with serve_holdfast(tmp_path, issued[0]) as running:
        yield running


def largest(shape: str) -> bytes:
    """Make a body of that shape, just below the limit."""
    count = BODY_LIMIT * 1_000 // len(body_of(shape, 1_000))
    while len(body := body_of(shape, count)) > BODY_LIMIT:
        count = count * 9 // 10
    return body


WORST = (
    *("annotations", "a long value of others", "control characters", "a long record", "gates"),
    *("finalizers of ours", "different finalizers of ours"),
    *("finalizers of ours next to earlier ones", "refused, with short parts"),
    *("empty tolerations", "empty terms", "fields without requirements", "expressions", "values"),
)
"""The shapes that take the most memory for their length, and the longest values."""


@pytest.mark.timeout(600)
def test_memory_stays_within_the_limit_in_the_manifests(serving: Serving) -> None:
    parent, worker = psutil.Process(serving.command.pid), serving.worker
    peaks = {"start": peak(worker) >> 20}
    """MiB, for the failure message."""
    bodies = {shape: largest(shape) for shape in WORST}
    for turn in range(ROUNDS):
        for shape, body in bodies.items():
            for path in PATHS:
                with serving.cpu_time_within(CPU_SECONDS):
                    answer = serving.ask("POST", path, body, headers=JSON)
                assert answer.status == 200
            peaks[f"{turn} {shape}"] = peak(worker) >> 20
        for body, status in ((DEEP, 400), (LISTS, 400), (padded(BODY_LIMIT), 200)):
            for path in PATHS:
                plain = serving.ask("POST", path, body, headers=JSON)
                chunked = serving.ask(
                    "POST", path, in_chunks(body), headers=JSON, encode_chunked=True
                )
                assert (plain.status, chunked.status) == (status, status)
        peaks[f"{turn} deep"] = peak(worker) >> 20

    serving.check_healthy()
    assert peak(parent) + peak(worker) < allowed(), peaks
