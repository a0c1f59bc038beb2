"""Every metric of Holdfast, in one registry of its own."""

from __future__ import annotations

from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_REVIEW_BUCKETS = (2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 0.5, 1.0, 2.5)
_LATENESS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0)


def _build_info(registry: CollectorRegistry) -> None:
    Info("holdfast_build", "The version that runs.", registry=registry).info(
        {"version": version("holdfast")}
    )


class ServerMetrics:
    """What the admission server measures."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        _build_info(self.registry)
        self.reviews = Counter(
            "holdfast_reviews",
            "Reviews answered, by path and outcome (allowed, patched, refused, bad, failed).",
            ["path", "outcome"],
            registry=self.registry,
        )
        self.point_seconds = Histogram(
            "holdfast_framework_extension_point_duration_seconds",
            "How long all plugins of a profile together took at one extension point.",
            ["extension_point", "status", "profile"],
            buckets=_REVIEW_BUCKETS,
            registry=self.registry,
        )
        self.deadlines = Counter(
            "holdfast_plugin_deadlines_exceeded",
            "Reviews given up at their deadline, by the plugin that was at work.",
            ["plugin"],
            registry=self.registry,
        )
        self.plugin_seconds = Histogram(
            "holdfast_plugin_execution_duration_seconds",
            "How long one plugin took at one extension point.",
            ["plugin", "extension_point", "status", "profile"],
            buckets=_REVIEW_BUCKETS,
            registry=self.registry,
        )

    def observe_plugin(
        self, *, plugin: str, extension_point: str, status: str, profile: str, seconds: float
    ) -> None:
        """Take the runner's measurement of one plugin."""
        if plugin:
            self.plugin_seconds.labels(plugin, extension_point, status, profile).observe(seconds)
        else:
            self.point_seconds.labels(extension_point, status, profile).observe(seconds)

    def exposition(self) -> bytes:
        """Write all of them in Prometheus' text format."""
        return generate_latest(self.registry)


class ControllerMetrics:
    """What the controller measures."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        _build_info(self.registry)
        self.held = Gauge("holdfast_held_pods", "Pods held now.", registry=self.registry)
        self.overdue = Gauge(
            "holdfast_overdue_pods",
            "Held pods whose time has come by the API server's clock, not yet released.",
            registry=self.registry,
        )
        self.releases = Counter(
            "holdfast_releases",
            "Attempts to release a pod, by outcome (released, gone, retried).",
            ["outcome"],
            registry=self.registry,
        )
        self.lateness = Histogram(
            "holdfast_release_lateness_seconds",
            "How long after its due time a pod was released, by the API server's clock.",
            buckets=_LATENESS_BUCKETS,
            registry=self.registry,
        )
        self.watch_restarts = Counter(
            "holdfast_watch_restarts",
            "Lists and watches of pods begun anew, by reason (end, error, expired, relist).",
            ["reason"],
            registry=self.registry,
        )
        self.events_dropped = Counter(
            "holdfast_events_dropped",
            "Events not told: they came faster than they may, or could not be sent.",
            registry=self.registry,
        )
        self.clock_uncertainty = Gauge(
            "holdfast_clock_uncertainty_seconds",
            "How uncertain the estimate of the API server's clock is; releases are late by it.",
            registry=self.registry,
        )

    def exposition(self) -> bytes:
        """Write all of them in Prometheus' text format."""
        return generate_latest(self.registry)
