"""The cost of creating a pod through the real API server, for each way to hold it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import psutil
import yaml

from bench import reviews, stats
from bench.peers import build
from bench.results import Outcome
from bench.same import text
from bench.servers import FIXED, GO, OURS, BenchError, Server, cpu_seconds, running
from bench.size import Size
from bench.world import CLIENTS, Object, World, usual_pod
from controlplane.components import API_SERVER
from holdfast.webhook.registration.configurations import Registration, by_url
from holdfast.webhook.runtime import pipelines

SETTLE_SECONDS = 0.3
"""Seconds between the deletion of one way's pods and the next measurement."""
NOTICE_SECONDS = 1.0
"""Seconds until the API server applies a new webhook configuration."""
DELAY = {reviews.ANNOTATION: "3600"}

NONE, BOTH, CALLED, PEER, ALONE, CEL, LEAST, UNCONCERNED, UNSELECTED = (
    "none",
    "holdfast",
    "holdfast-called-twice",
    "controller-runtime",
    "holdfast-mutating",
    "cel",
    "fixed-answer",
    "unconcerned",
    "unselected",
)
WAYS = (NONE, BOTH, CALLED, PEER, ALONE, CEL, LEAST, UNCONCERNED, UNSELECTED)
"""Each has its own namespace, so all can exist at the same time."""
NOT_HELD = (NONE, UNCONCERNED, UNSELECTED)
MUTATING = (ALONE, LEAST)
"""Ways with only a mutating webhook."""
ASKING = {
    **dict.fromkeys(WAYS, DELAY),
    CALLED: {reviews.ANNOTATION: "60m"},  # a duration, which the API server cannot validate itself
    UNCONCERNED: {},
}
"""Pod annotations for each way."""

Times = Mapping[str, list[float]]


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Results of each round, by way."""

    times: Times
    """Mean time of a creation, in milliseconds."""
    api_server: Times
    """The API server's CPU per creation, in microseconds."""


@dataclass(frozen=True, slots=True)
class _Ways:
    """A cluster with all ways set up."""

    there: World
    holdfast: Server

    def create(self, way: str, number: int, clients: int) -> tuple[float, float]:
        """Create pods one way, and return the mean time in ms and API server CPU in µs per pod."""
        if way == UNSELECTED:
            with self._registered_elsewhere():
                return self._create(way, number, clients)
        return self._create(way, number, clients)

    def calls(self) -> float:
        """Return the number of reviews that Holdfast has received."""
        return _calls(self.holdfast)

    @contextmanager
    def _registered_elsewhere(self) -> Iterator[None]:
        """Register Holdfast once more, with selectors that no namespace matches, until exit."""
        configurations = _configurations(self.there, UNSELECTED, self.holdfast, "no-namespace")
        for path, configuration in configurations.items():
            self.there.post(path.rpartition("/")[0], configuration)
        time.sleep(NOTICE_SECONDS)
        try:
            yield
        finally:
            for path in configurations:
                self.there.cluster.request("DELETE", path)

    def _create(self, way: str, number: int, clients: int) -> tuple[float, float]:
        api_server = [psutil.Process(self.there.plane.process(API_SERVER).pid)]
        cpu_before = cpu_seconds(api_server)
        figures = self.there.create(way, [usual_pod(ASKING[way])], number, clients)
        cpu = cpu_seconds(api_server) - cpu_before
        self.there.clear(way)
        time.sleep(SETTLE_SECONDS)
        return figures.mean_ms, cpu / figures.number * 1e6


def measure(world: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Compare the time that each way adds to a creation, with 16 clients and with one."""
    with running([OURS, GO, FIXED], world.certificate, world.kubeconfig) as (ours, peer, least):
        ways = _Ways(world, ours)
        _set_up(world, {PEER: peer, LEAST: least}, ours)
        rounds = _rounds(ways, size, step, size.creations, CLIENTS)
        single_times = _rounds(ways, size, step, max(4, size.creations // 8), 1).times
        calls_before = ways.calls()
        ways.create(UNCONCERNED, size.creations, CLIENTS)
        calls = ways.calls() - calls_before
    times = rounds.times
    figures = {"unconcerned_calls": calls, **_added(times)}
    single_figures = {f"one_client_{key}": value for key, value in _added(single_times).items()}
    intervals = {
        key: stats.interval(stats.ratio_of_medians, *pair) for key, pair in _pairs(times).items()
    }
    for way in (UNCONCERNED, UNSELECTED):
        intervals[f"{way}_added_ratio"] = stats.interval(
            stats.median_ratio, times[way], times[NONE]
        )
    details: dict[str, Any] = {
        "rounds": {"16 clients": times, "1 client": single_times},
        **single_figures,
    }
    details["medians_ms"] = {
        "16 clients": {way: statistics.median(times[way]) for way in WAYS},
        "1 client": {way: statistics.median(single_times[way]) for way in WAYS},
    }
    details["api_server_us"] = {way: statistics.median(rounds.api_server[way]) for way in WAYS}
    return Outcome(figures, intervals, details)


def _rounds(
    ways: _Ways, size: Size, step: Callable[[str], None], number: int, clients: int
) -> _Rounds:
    """Measure all ways in each round, in random order, and return the results."""
    rounds = _Rounds({way: [] for way in WAYS}, {way: [] for way in WAYS})
    generator = random.Random(clients)  # noqa: S311 - shuffling, not cryptography
    for turn in range(size.creation_rounds + 1):  # the first round warms everything up
        for way in generator.sample(WAYS, len(WAYS)):
            step(f"{clients} clients, round {turn} of {size.creation_rounds}: {way}")
            time_ms, cpu_us = ways.create(way, number, clients)
            if turn:
                rounds.times[way].append(time_ms)
                rounds.api_server[way].append(cpu_us)
    return rounds


def _pairs(times: Times) -> dict[str, tuple[list[float], list[float]]]:
    """Return the added times of both sides of each figure, round by round."""
    added = {
        way: [total - base for total, base in zip(times[way], times[NONE], strict=True)]
        for way in WAYS
    }
    return {
        "added_latency_vs_controller_runtime": (added[BOTH], added[PEER]),
        "added_latency_vs_cel": (added[BOTH], added[CEL]),
        "added_latency_called_twice_vs_cel": (added[CALLED], added[CEL]),
        "added_latency_mutating_only_vs_cel": (added[ALONE], added[CEL]),
        "added_latency_fixed_answer_vs_cel": (added[LEAST], added[CEL]),
    }


def _added(times: Times) -> dict[str, float]:
    figures = {key: stats.ratio_of_medians(*pair) for key, pair in _pairs(times).items()}
    for way in (UNCONCERNED, UNSELECTED):
        figures[f"{way}_added_ratio"] = stats.median_ratio(times[way], times[NONE])
    return figures


# --- setting up --------------------------------------------------------------------------------


def _set_up(world: World, servers: Mapping[str, Server], ours: Server) -> None:
    """Register every way for its namespace, and wait until each works as expected.

    `ours` serves the ways that are not in `servers`.
    """
    for way in WAYS:
        world.namespace(way)
    for way in WAYS:
        if way in {NONE, CEL, UNSELECTED}:
            continue
        for path, configuration in _configurations(world, way, servers.get(way, ours)).items():
            world.post(path.rpartition("/")[0], configuration)
    policy = (build.HERE / "mutating_policy.yaml").read_text().replace("NAMESPACE", CEL)
    for document in yaml.safe_load_all(policy):
        kind = "mutatingadmissionpolicybindings" if "Binding" in document["kind"] else ""
        kind = kind or "mutatingadmissionpolicies"
        world.post(f"/apis/admissionregistration.k8s.io/v1/{kind}", document)
    for way in WAYS:
        world.until(partial(_works, world, way))


def _configurations(
    world: World, way: str, server: Server, namespace: str = ""
) -> Mapping[str, Object]:
    """Return the webhook configurations of a server for one namespace, by path.

    All have Holdfast's match conditions.
    """
    profiles = pipelines.load_profiles(pipelines.Setup())
    address = by_url(f"127.0.0.1:{server.port}", world.certificate.ca)
    configurations = Registration(f"bench-{way}", address).configurations(profiles)
    for configuration in configurations.values():
        for webhook in configuration["webhooks"]:
            labels = {"kubernetes.io/metadata.name": namespace or way}
            webhook["namespaceSelector"] = {"matchLabels": labels}
    return {
        path: manifest
        for path, manifest in configurations.items()
        if way not in MUTATING or manifest["kind"].startswith("Mutating")
    }


def _works(world: World, way: str) -> bool:
    """Return whether a new pod is held exactly if this way should hold it.

    Raises BenchError if the pod has other gates.
    """
    path = f"/api/v1/namespaces/{way}/pods"
    body = msgspec.json.encode(usual_pod(ASKING[way]))
    pod = msgspec.json.decode(world.cluster.request("POST", path, body=body))
    world.clear(way)
    gates = pod["spec"].get("schedulingGates", [])
    expected = [] if way in NOT_HELD else [{"name": reviews.GATE}]
    if gates and gates != expected:
        raise BenchError(f"{way}: unexpected scheduling gates on the pod: {gates}")
    return bool(gates == expected)


def _calls(server: Server) -> float:
    return sum(
        float(line.rpartition(" ")[2])
        for line in text(server, "/metrics").splitlines()
        if line.startswith("holdfast_reviews_total")
    )
