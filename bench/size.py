"""How much is measured: the full run, and a short one that only shows that everything works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How often, how many."""

    rounds: int
    """Interleaved rounds of everything that is compared."""
    reviews: int
    """Reviews a server is asked in a round."""
    creations: int
    """Pods that 16 clients create in a round, each way; one client creates an eighth of them. Few
    enough that the ways of a round are close together in time."""
    creation_rounds: int
    """Rounds of creations: differences of times need more of them than ratios, since the API
    server's garbage collection makes single rounds differ by half."""
    due: int
    """Pods that fall due at random over `due_seconds`, in each of `due_rounds`."""
    due_seconds: float
    due_rounds: int
    scheduled: int
    """Pods that the delay scheduler plugin holds back, once."""
    burst: int
    """Pods that are due in the same second."""
    paced: int
    """Pods of a pace, which become ready after some seconds."""
    jobs: int
    """Jobs that complete one after the other, each with `waiters` pods that wait for it."""
    waiters: int
    held: tuple[int, int]
    """Few and many held pods, between which the cost of a release is compared."""
    streamed: tuple[int, int]
    """The same, of pods that no API server stores."""
    released: int
    """Pods whose release is measured among those."""
    idle_seconds: float
    """How long the controller is watched at rest."""
    growth_reviews: int
    """Reviews after which the admission server's memory is looked at again."""


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
    due=40,  # more than twice the 16 clients, each of which asks once to warm up
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
