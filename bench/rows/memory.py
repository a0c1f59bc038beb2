"""The admission server's memory: all its processes, shared pages counted once."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench import load, reviews
from bench.results import Outcome
from bench.servers import OURS, running
from bench.size import Size
from bench.world import World

SETTLE_SECONDS = 2.0
PARTS = 10
"""Number of memory samples, which show whether growth continues or levels off."""


def measure(world: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Measure idle memory, and its growth over many reviews."""
    with running([OURS], world.certificate, world.kubeconfig) as (server,):
        requests = [reviews.request(reviews.review())]
        load.run(load.Job(server.port, requests, 1))
        time.sleep(SETTLE_SECONDS)
        samples = [server.pss_mb()]
        for part in range(PARTS):
            step(f"{part * size.growth_reviews // PARTS:,} of {size.growth_reviews:,} reviews")
            load.run(load.Job(server.port, requests, size.growth_reviews // PARTS))
            samples.append(server.pss_mb())
    figures = {"webhook_rss_mb": samples[0], "webhook_rss_growth_mb": samples[-1] - samples[0]}
    return Outcome(figures, details={"mb": samples})
