"""Draws the plots of the performance page. Run by the bench's own Python, which has matplotlib.

`python bench/plots.py RESULTS FOLDER` reads the figures and writes SVG files.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl  # type: ignore[import-not-found]
from matplotlib import pyplot as plt

OURS, OTHERS = "#1b6ca8", "#b8b8b8"
_SIZE = (7.0, 2.6)  # inches


def bars(rounds: Mapping[str, Sequence[float]], title: str, path: Path) -> None:
    """Draw a bar for each name, the median, and a point for each round."""
    figure, axes = plt.subplots(figsize=_SIZE)
    shown = list(rounds.items())[::-1]  # the first on top
    for index, (name, values) in enumerate(shown):
        color = OURS if name.lower().startswith("holdfast") else OTHERS
        axes.barh(index, statistics.median(values), color=color)
        axes.plot(values, [index] * len(values), ".", color="black", markersize=3)
    axes.set_yticks(range(len(shown)), [name for name, _ in shown])
    axes.set_xlim(left=0)
    _finish(figure, axes, title, path)


def shares(rounds: Sequence[Sequence[float]], title: str, path: Path) -> None:
    """Draw which share of all values does not exceed each value."""
    figure, axes = plt.subplots(figsize=_SIZE)
    for values in rounds:
        ordered = sorted(values)
        axes.plot(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], color=OURS)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
    _finish(figure, axes, title, path)


def _finish(figure: Any, axes: Any, title: str, path: Path) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main(results: Path, folder: Path) -> None:
    """Draw what has been measured."""
    mpl.rcParams["svg.hashsalt"] = "holdfast"  # the same figures give the same file
    details = json.loads(results.read_text("utf-8"))["details"]
    folder.mkdir(exist_ok=True)
    for row, key, title in (
        ("cpu", "cpu_us", "CPU of a review, µs"),
        ("cpu", "p99_ms", "p99 of a review at 4 connections, ms"),
        ("throughput", "per_second", "reviews a second, server on one core"),
        ("burst", "per_second", "releases a second in a burst"),
    ):
        if row in details:
            found = details[row]["rounds"]
            values = {name: [one[key] for one in rounds] for name, rounds in found.items()}
            bars(values, title, folder / f"{row}-{key}.svg")
    if "latency" in details:
        many = details["latency"]["rounds"]["16 clients"]
        bars(many, "mean time of a pod's creation, 16 clients, ms", folder / "creation.svg")
    if "lateness" in details:
        late = details["lateness"]["rounds"]
        shares(late, "share of releases no later than, ms", folder / "lateness.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
