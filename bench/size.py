"""Run sizes: the full benchmark, and a short one that only checks that every row works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Rounds, counts and durations of a run."""

    rounds: int
    """Number of interleaved rounds in each comparison."""
    reviews: int
    """Reviews sent to each server per round."""
    creations: int
    """Pods that 16 clients create per round, each way. One client creates an eighth of them.

    A small number keeps the ways of a round close together in time."""
    creation_rounds: int
    """Rounds of creations.

    Time differences need more rounds than ratios, because the API server's garbage collection
    makes single rounds differ by half."""
    due: int
    """Pods due at random times within `due_seconds`, in each of `due_rounds` rounds."""
    due_seconds: float
    due_rounds: int
    scheduled: int
    """Pods that the delay scheduler plugin delays, in a single round."""
    burst: int
    """Pods due in the same second."""
    paced: int
    """Pods that share a pace. Each becomes ready after a few seconds."""
    jobs: int
    """Jobs that complete one after another, each with `waiters` pods waiting for it."""
    waiters: int
    held: tuple[int, int]
    """Small and large number of held pods at which the cost of a release is compared."""
    streamed: tuple[int, int]
    """The same for pods that a fake API server lists."""
    released: int
    """Number of releases measured at each of these sizes."""
    idle_seconds: float
    """How long the idle controller's CPU is measured."""
    growth_reviews: int
    """Reviews over which the admission server's memory growth is measured."""


FULL = Size(
    rounds=7,
    reviews=5_000,
    creations=400,
    creation_rounds=25,
    due=1_000,
    due_seconds=60.0,
    due_rounds=7,
    scheduled=20,
    burst=5_000,
    paced=200,
    jobs=50,
    waiters=20,
    held=(1_000, 100_000),
    streamed=(1_000, 500_000),
    released=1_000,
    idle_seconds=20.0,
    growth_reviews=1_000_000,
)

SHORT = Size(
    rounds=1,
    reviews=200,
    creations=32,
    creation_rounds=1,
    due=40,  # more than twice the 16 clients, each of which sends a warm-up request
    due_seconds=3.0,
    due_rounds=1,
    scheduled=2,
    burst=100,
    paced=6,
    jobs=2,
    waiters=2,
    held=(50, 200),
    streamed=(50, 1_200),
    released=50,
    idle_seconds=1.0,
    growth_reviews=500,
)
