"""The cost of a review on each server: CPU, latency and throughput."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench import load, reviews, same, stats
from bench.results import Outcome
from bench.servers import FLASK, GO, KOPF, OURS, Server, running
from bench.size import Size
from bench.world import World

WARM_UP = 500
"""Uncounted requests before the first round."""
SERVER_CORE, LOAD_CORE = 0, 1

Rounds = dict[str, list[dict[str, float]]]


def cpu(world: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Compare CPU and latency of a review, with four connections and without CPU pinning."""
    with running([OURS, GO, KOPF, FLASK], world.certificate, world.kubeconfig) as servers:
        same.check(servers)
        rounds = compare(servers, size, step)
    costs = {name: [sample["cpu_us"] for sample in samples] for name, samples in rounds.items()}
    p99 = {name: [sample["p99_ms"] for sample in samples] for name, samples in rounds.items()}
    pairs = {
        "cpu_per_review_vs_controller_runtime": (costs[OURS], costs[GO]),
        "cpu_per_review_vs_kopf": (costs[OURS], costs[KOPF]),
        "p99_vs_controller_runtime": (p99[OURS], p99[GO]),
    }
    return ratios(pairs, rounds)


def throughput(world: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Compare reviews per second, with each server on one core and the load on the other."""
    names = [OURS, GO]
    with running(names, world.certificate, world.kubeconfig, core=SERVER_CORE) as servers:
        rounds = compare(servers, size, step, core=LOAD_CORE if (os.cpu_count() or 1) > 1 else None)
    speeds = {
        name: [sample["per_second"] for sample in samples] for name, samples in rounds.items()
    }
    return ratios({"throughput_vs_controller_runtime": (speeds[OURS], speeds[GO])}, rounds)


def compare(
    servers: Sequence[Server],
    size: Size,
    step: Callable[[str], None],
    *,
    bodies: dict[str, bytes] | None = None,
    core: int | None = None,
) -> Rounds:
    """Measure the servers in turn, and return the figures of each by round.

    Each round starts with the next server.
    """
    requests = {
        server.name: [reviews.request((bodies or {}).get(server.name, _BODY))] for server in servers
    }
    rounds: Rounds = {server.name: [] for server in servers}
    for server in servers:
        load.run(
            load.Job(server.port, requests[server.name], min(WARM_UP, size.reviews)), core=core
        )
    for turn in range(size.rounds):
        first = turn % len(servers)
        for server in [*servers[first:], *servers[:first]]:
            step(f"round {turn + 1} of {size.rounds}: {server.name}")
            cpu_before = server.cpu_seconds()
            figures = load.run(
                load.Job(server.port, requests[server.name], size.reviews), core=core
            )
            cpu_us = (server.cpu_seconds() - cpu_before) / figures.number * 1e6
            values: dict[str, Any] = msgspec.to_builtins(figures)
            rounds[server.name].append({"cpu_us": cpu_us, **values})
    return rounds


def ratios(pairs: dict[str, tuple[list[float], list[float]]], rounds: Rounds) -> Outcome:
    """Return the median ratio of each pair, with its interval and the medians of all rounds."""
    return Outcome(
        {key: stats.median_ratio(*pair) for key, pair in pairs.items()},
        {key: stats.interval(stats.median_ratio, *pair) for key, pair in pairs.items()},
        {"medians": medians(rounds), "rounds": rounds},
    )


def medians(rounds: Rounds) -> dict[str, dict[str, float]]:
    """Return the median of each figure, by server."""
    return {
        name: {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}
        for name, samples in rounds.items()
    }


_BODY = reviews.review()
