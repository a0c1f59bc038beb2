"""Medians, ratios and how sure they are. Pure."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

RESAMPLES = 5_000
CONFIDENCE = 0.95
_SEED = 1  # the same rounds always give the same interval


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Take the median of the rounds' ratios: what strikes one round strikes both sides of it."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Divide the medians, for differences, of which a single round's may be near zero."""
    return statistics.median(ours) / statistics.median(theirs)


def percentile(values: Sequence[float], share: float) -> float:
    """Give the value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def interval(
    figure: Callable[[Sequence[float], Sequence[float]], float],
    ours: Sequence[float],
    theirs: Sequence[float],
) -> tuple[float, float]:
    """Bootstrap over whole rounds: between what, with 95 % confidence, a figure of pairs lies."""
    chance = random.Random(_SEED)  # noqa: S311 - resampling, no secret
    rounds = range(len(ours))
    found = []
    for _ in range(RESAMPLES):
        drawn = chance.choices(rounds, k=len(ours))
        try:
            found.append(figure([ours[i] for i in drawn], [theirs[i] for i in drawn]))
        except ZeroDivisionError:
            continue
    tail = (1 - CONFIDENCE) / 2
    return percentile(found, tail), percentile(found, 1 - tail)
