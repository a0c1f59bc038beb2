"""Every metric of Holdfast, in one registry of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_PLUGIN_BUCKETS = (2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 0.5, 1.0, 2.5)
_LOOKUP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
_LATENESS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0)


class _Metrics:
    """What both processes measure: themselves, and their plugins."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        # a second series for each, which says when it began
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        Info("holdfast_build", "The version that runs.", registry=self.registry).info(
            {"version": version("holdfast")}
        )
        self.configuration = Info(
            "holdfast_configuration",
            "The configuration that is followed: the digest of what it says, comments aside.",
            registry=self.registry,
        )
        self.lookup_seconds = Histogram(
            "holdfast_lookup_duration_seconds",
            "How long a plugin waited for an object that it looked up (answered, failed).",
            ["outcome"],
            buckets=_LOOKUP_BUCKETS,
            registry=self.registry,
        )
        self.point_seconds = Histogram(
            "holdfast_framework_extension_point_duration_seconds",
            "How long all plugins of a profile together took at one extension point.",
            ["extension_point", "status", "profile"],
            buckets=_PLUGIN_BUCKETS,
            registry=self.registry,
        )
        self.plugin_seconds = Histogram(
            "holdfast_plugin_execution_duration_seconds",
            "How long one plugin took at one extension point.",
            ["plugin", "extension_point", "status", "profile"],
            buckets=_PLUGIN_BUCKETS,
            registry=self.registry,
        )
        # finding a series costs the client library more than what is then done with it
        self._series: dict[tuple[str, str, str, str], Histogram] = {}
        self._lookups: dict[str, Histogram] = {}

    def observe_plugin(
        self, *, plugin: str, extension_point: str, status: str, profile: str, seconds: float
    ) -> None:
        """Take the runner's measurement of one plugin, or of a whole extension point."""
        key = (plugin, extension_point, status, profile)
        series = self._series.get(key)
        if series is None:
            histogram, labels = (
                (self.plugin_seconds, key) if plugin else (self.point_seconds, key[1:])
            )
            series = self._series[key] = histogram.labels(*labels)
        series.observe(seconds)

    def observe_lookup(self, outcome: str, seconds: float) -> None:
        """Take the measurement of one lookup."""
        series = self._lookups.get(outcome)
        if series is None:
            series = self._lookups[outcome] = self.lookup_seconds.labels(outcome)
        series.observe(seconds)

    def exposition(self) -> bytes:
        """Write all of them in Prometheus' text format."""
        return generate_latest(self.registry)


class ServerMetrics(_Metrics):
    """What the admission server measures."""

    def __init__(self) -> None:
        super().__init__()
        self.reviews = Counter(
            "holdfast_reviews",
            "Reviews answered, by path and outcome (allowed, patched, refused, bad, failed).",
            ["path", "outcome"],
            registry=self.registry,
        )
        self.deadlines = Counter(
            "holdfast_plugin_deadlines_exceeded",
            "Reviews given up at their deadline, by the plugin that was at work.",
            ["plugin"],
            registry=self.registry,
        )
        self.turned_away = Counter(
            "holdfast_reviews_turned_away",
            "Reviews turned away because too many waited for plugins that may block.",
            registry=self.registry,
        )
        self.certificate_expiry = Gauge(
            "holdfast_certificate_expiry_timestamp_seconds",
            "When the certificate that is served expires, in seconds since 1970; 0 before the "
            "first.",
            registry=self.registry,
        )
        self.certificate_failures = Counter(
            "holdfast_certificate_reload_failures",
            "Changes of the certificate's files that could not be used; the last good pair is "
            "served on.",
            registry=self.registry,
        )
        self._counters: dict[tuple[str, str], Counter] = {}

    def count(self, path: str, outcome: str) -> None:
        """Count a review, by where it was asked and how it ended."""
        counter = self._counters.get((path, outcome))
        if counter is None:
            counter = self._counters[path, outcome] = self.reviews.labels(path, outcome)
        counter.inc()


class ControllerMetrics(_Metrics):
    """What the controller measures."""

    def __init__(self) -> None:
        super().__init__()
        self.held = Gauge("holdfast_held_pods", "Pods held now.", registry=self.registry)
        self.holds = Gauge(
            "holdfast_holds",
            "Holds on pods now, by plugin and what they wait for (time, plugin, or release where "
            "the time has come); a pod may have several.",
            ["plugin", "reason"],
            registry=self.registry,
        )
        self.count_holds: Callable[[], Mapping[tuple[str, str], int]] = dict
        """Counts them, for each exposition; the controller's to set."""
        self._counting = threading.Lock()
        self.overdue = Gauge(
            "holdfast_overdue_pods",
            "Held pods whose time has come by the API server's clock, not yet released.",
            registry=self.registry,
        )
        self.releases = Counter(
            "holdfast_releases",
            "Attempts to release a pod, by outcome (released; gone: deleted, or made anew; "
            "changed: since it was read, or its plugins now say another thing; retried: failed).",
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
            "Lists and watches begun anew, by reason (end, error, expired, relist).",
            ["reason"],
            registry=self.registry,
        )
        self.vm_records = Counter(
            "holdfast_vm_records",
            "Records of a VM's node, by outcome (recorded, followed, marked, retried).",
            ["outcome"],
            registry=self.registry,
        )
        self.vm_pods_kept = Gauge(
            "holdfast_vm_pods_kept",
            "Pods of VMs that our finalizer keeps now: they have not landed, or are not recorded.",
            registry=self.registry,
        )
        self.vm_pods_kept_back = Gauge(
            "holdfast_vm_pods_kept_back",
            "Of these, pods that have ended or are being deleted: their VMs wait for the record.",
            registry=self.registry,
        )
        self.events_dropped = Counter(
            "holdfast_events_dropped",
            "Events not told: they came faster than they may, or could not be sent.",
            registry=self.registry,
        )
        self.leader = Gauge(
            "holdfast_leader",
            "1 while this controller leads: releases, tells, and writes; 0 while it stands by.",
            registry=self.registry,
        )
        self.leader_transitions = Counter(
            "holdfast_leader_transitions",
            "How often this controller became the leader, or ceased to be it (leading, standby).",
            ["to"],
            registry=self.registry,
        )
        self.ca_expiry = Gauge(
            "holdfast_ca_expiry_timestamp_seconds",
            "When the CA that signs now expires, in seconds since 1970; 0 where this controller "
            "keeps none.",
            registry=self.registry,
        )
        self.certificate_writes = Counter(
            "holdfast_certificate_writes",
            "Secrets written, by what was done (new_authority, introduce, promote, forget, issue).",
            ["action"],
            registry=self.registry,
        )
        self.registered = Gauge(
            "holdfast_webhooks_registered",
            "1 where the leading controller found the webhooks registered as configured.",
            registry=self.registry,
        )
        self.registrations = Counter(
            "holdfast_webhook_configuration_writes",
            "Webhook configurations written: filled in, changed, or put back.",
            registry=self.registry,
        )
        self.publisher_failures = Counter(
            "holdfast_publisher_failures",
            "Looks at certificates and webhook configurations that failed; they are repeated.",
            registry=self.registry,
        )
        self.clock_uncertainty = Gauge(
            "holdfast_clock_uncertainty_seconds",
            "How uncertain the estimate of the API server's clock is; releases are late by it.",
            registry=self.registry,
        )

    def exposition(self) -> bytes:
        """Write all of them in Prometheus' text format; holds are counted now."""
        with self._counting:
            self.holds.clear()
            for labels, count in self.count_holds().items():
                self.holds.labels(*labels).set(count)
            return super().exposition()
