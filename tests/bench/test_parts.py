"""The calculations of the benchmarks, and the page that shows their results."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import load, page, results, reviews, stats
from bench.results import Bar, Outcome
from bench.rows import creation
from bench.size import FULL, SHORT
from holdfast.webhook.model import review as webhook_review


def test_ratio_is_the_median_of_the_rounds() -> None:
    # the machine was busy in the second round, for both sides
    assert stats.median_ratio([1.0, 30.0, 1.2], [2.0, 60.0, 2.0]) == 0.5


def test_interval_holds_the_ratio_and_is_the_same_each_time() -> None:
    holdfast_values, other_values = [1.0, 1.1, 0.9, 1.0, 1.2], [2.0, 2.1, 2.2, 1.9, 2.0]
    low, high = stats.interval(stats.median_ratio, holdfast_values, other_values)
    assert low <= stats.median_ratio(holdfast_values, other_values) <= high
    assert stats.interval(stats.median_ratio, holdfast_values, other_values) == (low, high)


@pytest.mark.parametrize(
    ("way", "kinds"),
    [
        pytest.param(creation.BOTH, ["Mutating", "Validating"], id="both"),
        pytest.param(creation.ALONE, ["Mutating"], id="the mutating one alone"),
    ],
)
def test_each_installation_registers_its_webhooks(way: str, kinds: list[str]) -> None:
    world: Any = SimpleNamespace(certificate=SimpleNamespace(ca=b"PEM"))
    server: Any = SimpleNamespace(port=8443)
    configurations = creation._configurations(world, way, server).values()
    assert [
        configuration["kind"].removesuffix("WebhookConfiguration")
        for configuration in configurations
    ] == kinds


@pytest.mark.parametrize(
    ("bar", "value", "interval", "met"),
    [
        pytest.param(Bar("k", "w", 0.5), 0.5, None, True, id="reached"),
        pytest.param(Bar("k", "w", 0.5), 0.51, None, False, id="missed"),
        pytest.param(Bar("k", "w", 0.5), 0.5, (0.4, 0.55), True, id="noise"),
        pytest.param(Bar("k", "w", 0.5), 0.5, (0.4, 0.56), False, id="too much noise"),
        pytest.param(Bar("k", "w", 1.4, at_least=True), 1.5, (1.2, 1.6), False, id="noise below"),
        pytest.param(Bar("k", "w", 1.4, at_least=True), 1.5, None, True, id="more is better"),
        pytest.param(Bar("k", "w", 1.4, at_least=True), 1.3, None, False, id="too little"),
        pytest.param(Bar("k", "w", 1.0, around=True), 1.02, (0.98, 1.05), True, id="no difference"),
        pytest.param(Bar("k", "w", 1.0, around=True), 1.09, (1.05, 1.1), False, id="a difference"),
    ],
)
def test_bar(bar: Bar, value: float, interval: tuple[float, float] | None, met: bool) -> None:
    assert bar.met(value, interval) is met


def test_benchmark_review_has_four_kilobytes() -> None:
    body = reviews.review()
    assert 3_000 < len(body) < 5_000
    assert webhook_review.parse(body).pod.annotations == {reviews.ANNOTATION: "15"}


@pytest.mark.parametrize(
    ("answer", "whole"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Le", False, id="in the head"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{", False, id="in the body"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", True, id="whole"),
        pytest.param(b"HTTP/1.1 201 Created\r\n\r\n2\r\n{}\r\n", False, id="chunks"),
        pytest.param(b"HTTP/1.1 201 Created\r\n\r\n2\r\n{}\r\n0\r\n\r\n", True, id="all chunks"),
    ],
)
def test_end_of_a_response_is_detected(answer: bytes, whole: bool) -> None:
    assert load.is_whole(answer) is whole


def test_page_shows_measurements_and_gaps() -> None:
    measurements: dict[str, Any] = {
        "burst_rate_vs_client_go": 0.9,
        "intervals": {"burst_rate_vs_client_go": [0.85, 0.95]},
    }
    text = page.measured(measurements)
    assert "| releases/s in a burst ÷ client-go | 0.9 | 0.85 to 0.95 | ≥ 1 | **no** |" in text
    assert "| CPU per review ÷ kopf | not measured |  | ≤ 0.15 |  |" in text


def test_page_shows_what_a_creation_takes_each_way() -> None:
    latency = {
        "medians_ms": {"16 clients": {"none": 14.04}, "1 client": {"none": 1.926}},
        "api_server_us": {"none": 1_483.2},
    }
    text = page.measured({"details": {"latency": latency}})
    assert "| no webhooks | 14.0 ms | 1.93 ms | 1483 µs |" in text


def test_page_calculates_from_measurements() -> None:
    measurements: dict[str, Any] = {
        "scale_rss_mb": 250.0,
        "details": {
            "cpu": {
                "medians": {
                    "Holdfast": {"cpu_us": 200, "p50_ms": 1, "p99_ms": 2, "per_second": 5_000}
                }
            },
            "burst": {"medians": {"holdfast": 500.0}},
            "latency": {"medians_ms": {"16 clients": {"none": 16.0}}},
            "scale": {
                "empty_rss_mb": 50.0,
                "steady_rss_mb": 240.0,
                "release_cpu_us": {"1000": 1_000.0, "100000": 1_100.0},
            },
        },
    }
    text = page.measured(measurements)
    assert "5,000 per second, or 0.5 min for all pods" in text  # 1 / 200 us
    assert "| CPU per release | | 1000 µs | 1100 µs |" in text
    assert "about 350 MiB" in text  # 50 + 200 x 1.5
    assert "The first bottleneck is: controller, releases in a burst." in text


def test_rounds_go_to_build_and_the_rest_into_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(results, "BUILD", tmp_path / "build")
    outcome = Outcome({"rate": 0.91234}, {"rate": (0.8, 1.0)}, {"medians": {}, "rounds": [1, 2]})

    results.save("burst", outcome, 3.2, asdict(FULL))

    summary = results.load()
    assert (summary["rate"], summary["intervals"]) == (0.9123, {"rate": [0.8, 1.0]})
    assert summary["details"]["burst"].keys() == {"when", "medians"}
    build_results = json.loads((tmp_path / "build" / "burst.json").read_text())
    assert build_results["details"]["rounds"] == [1, 2]
    assert results.is_measured("burst", asdict(FULL))
    assert not results.is_measured("burst", asdict(SHORT))
    assert not results.is_measured("cpu", asdict(FULL))


def test_the_summary_is_small() -> None:
    assert len(results.RESULTS.read_text("utf-8").splitlines()) <= 300


def test_page_and_readme_show_the_latest_measurement() -> None:
    measurements = results.load()
    for path, part in (
        (page.PAGE, page.measured(measurements)),
        (page.README, page.claims(measurements)),
    ):
        text = path.read_text("utf-8")
        assert text.count(page.BEGIN) == text.count(page.END) == 1
        assert page.placed(text, part) == text
    assert results.RESULTS.name in page.PAGE.read_text("utf-8")
