"""Medians, ratios and confidence intervals. Pure functions."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

RESAMPLES = 5_000
CONFIDENCE = 0.95
_SEED = 1  # the same rounds always give the same interval


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the per-round ratios.

    A disturbance in a round affects both sides, and cancels out in the ratio.
    """
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the ratio of the medians.

    Use it for differences, which may be near zero in a single round.
    """
    return statistics.median(ours) / statistics.median(theirs)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile of `values` at `share`, a number from 0 to 1."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def interval(
    figure: Callable[[Sequence[float], Sequence[float]], float],
    ours: Sequence[float],
    theirs: Sequence[float],
) -> tuple[float, float]:
    """Return the 95 % confidence interval of `figure`, bootstrapped over whole rounds."""
    generator = random.Random(_SEED)  # noqa: S311 - resampling, not cryptography
    rounds = range(len(ours))
    figures = []
    for _ in range(RESAMPLES):
        sample = generator.choices(rounds, k=len(ours))
        try:
            figures.append(
                figure([ours[index] for index in sample], [theirs[index] for index in sample])
            )
        except ZeroDivisionError:
            continue
    tail = (1 - CONFIDENCE) / 2
    return percentile(figures, tail), percentile(figures, 1 - tail)
