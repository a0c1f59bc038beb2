"""All metrics of Holdfast, in a separate registry."""

import math
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import version
from itertools import product

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_PATHS = ("mutate", "validate")
_PLUGIN_BUCKETS = (2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 0.5, 1.0, 2.5)
_LOOKUP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
_LATENESS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0)


class _Metrics:
    """Metrics that the admission server and the controller share."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        # `_created` series would double the number of series
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._gauge = partial(Gauge, namespace="holdfast", registry=self.registry)
        self._info = partial(Info, namespace="holdfast", registry=self.registry)
        self._histogram = partial(Histogram, namespace="holdfast", registry=self.registry)
        self._info("build", "The running version.").info({"version": version("holdfast")})
        self.configuration = self._info(
            "configuration", "Digest of the active configuration, without comments."
        )
        self.lookup_seconds = self._histogram(
            "lookup_duration_seconds",
            "Duration of reads by plugins from the API server, by outcome (answered, failed).",
            ["outcome"],
            buckets=_LOOKUP_BUCKETS,
        )
        self.point_seconds = self._histogram(
            "framework_extension_point_duration_seconds",
            "Duration of an extension point for all plugins of a profile.",
            ["extension_point", "status", "profile"],
            buckets=_PLUGIN_BUCKETS,
        )
        self.plugin_seconds = self._histogram(
            "plugin_execution_duration_seconds",
            "Duration of one plugin at one extension point, unless it skips the pod.",
            ["plugin", "extension_point", "status", "profile"],
            buckets=_PLUGIN_BUCKETS,
        )
        # cached, because looking up a series takes longer than updating it
        self._series = cache(self._labelled)

    def _counter(
        self, name: str, text: str, labels: Sequence[str] = (), series: Iterable[Sequence[str]] = ()
    ) -> Counter:
        counter = Counter(f"holdfast_{name}", text, labels, registry=self.registry)
        # create these series at 0: rate() does not count the event with which a series appears
        for values in series:
            counter.labels(*values)
        return counter

    def _labelled(self, plugin: str, *labels: str) -> Histogram:
        if plugin:
            return self.plugin_seconds.labels(plugin, *labels)
        return self.point_seconds.labels(*labels)

    def observe_plugin(
        self, *, plugin: str, extension_point: str, status: str, profile: str, seconds: float
    ) -> None:
        """Record the duration of one plugin, or of an extension point if `plugin` is empty."""
        self._series(plugin, extension_point, status, profile).observe(seconds)

    def observe_lookup(self, outcome: str, seconds: float) -> None:
        self.lookup_seconds.labels(outcome).observe(seconds)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)


class ServerMetrics(_Metrics):
    """The metrics of the admission server."""

    def __init__(self) -> None:
        super().__init__()
        self.reviews = self._counter(
            "reviews",
            "Reviews answered, by path and outcome (allowed, patched, refused, bad, failed).",
            ["path", "outcome"],
            product(_PATHS, ("allowed", "patched", "refused", "bad", "failed")),
        )
        self.deadlines = self._counter(
            "plugin_deadlines_exceeded",
            "Reviews that exceeded their deadline, by the plugin that was running.",
            ["plugin"],
        )
        self.turned_away = self._counter(
            "reviews_turned_away",
            "Reviews rejected because too many were waiting for plugins that may block.",
        )
        self.certificate_expiry = self._gauge(
            "certificate_expiry_timestamp_seconds",
            "Expiry of the serving certificate, in seconds since 1970; 0 before it is loaded.",
        )
        self.certificate_failures = self._counter(
            "certificate_reload_failures",
            "Certificate files that could not be loaded; the last valid pair stays in use.",
        )
        self._counted = cache(self.reviews.labels)

    def count(self, path: str, outcome: str) -> None:
        """Count a review by path and outcome."""
        self._counted(path, outcome).inc()


class ControllerMetrics(_Metrics):
    """The metrics of the controller."""

    def __init__(self) -> None:
        super().__init__()
        self._counting = threading.Lock()
        self._add_holds()
        self._add_releases()
        self._add_vms_and_events()
        self._add_leader()

    def _add_holds(self) -> None:
        self.held = self._gauge("held_pods", "Held pods.")
        self.holds = self._gauge(
            "holds",
            "Holds, by plugin and reason: time, plugin (it waits for an event), release (due), or "
            "freeze (due in a frozen namespace). A pod may have several. Unknown plugins are "
            "`other`.",
            ["plugin", "reason"],
        )
        self.count_holds: Callable[[], Mapping[tuple[str, str], int]] = dict
        """Returns the numbers of holds at each scrape; set by the controller."""
        self.hold_plugins: Container[str] | None = None
        """Plugins counted by name, None for all. Others are `other`: users can choose any name."""
        self.pace_starting = self._gauge(
            "pace_starting",
            "Paced pods that are released but not ready yet, by the name of the pace; `inline` "
            "stands for all unnamed paces.",
            ["pace"],
        )
        self.pace_waiting = self._gauge(
            "pace_waiting", "Held pods that wait for a slot of a pace.", ["pace"]
        )
        self.count_paces: Callable[[], Mapping[str, tuple[int, int]]] = dict
        """Returns the numbers of starting and waiting pods of each pace; set at startup."""
        self.freezes = self._gauge(
            "freezes",
            "Freezes of namespaces that have not ended; NaN while this controller cannot list "
            "namespaces.",
        )
        self.overdue = self._gauge(
            "overdue_pods",
            "Held pods past their due time by the API server's clock, except in frozen namespaces.",
        )

    def _add_releases(self) -> None:
        self.releases = self._counter(
            "releases",
            "Attempts to release a pod, by outcome: released, gone (deleted or recreated), changed "
            "(the pod or its holds), retried (after a failure), or early (someone else removed "
            "the gate before the due time).",
            ["outcome"],
            zip(("released", "gone", "changed", "retried", "early")),
        )
        self.lateness = self._histogram(
            "release_lateness_seconds",
            "Time from due time to release, by the API server's clock.",
            buckets=_LATENESS_BUCKETS,
        )
        self.watch_restarts = self._counter(
            "watch_restarts",
            "Restarts of lists and watches, by reason (end, error, expired, relist).",
            ["reason"],
            zip(("end", "error", "expired", "relist")),
        )

    def add_permits(self, plugins: Iterable[tuple[str, str]]) -> None:
        """Create the series of failed decisions at 0, so rate() counts the first failure."""
        for plugin, profile in plugins:
            self._series(plugin, "permit", "Error", profile)

    def _add_vms_and_events(self) -> None:
        self.vm_records = self._counter(
            "vm_records",
            "Writes of VM node records, by outcome (recorded, followed, marked, unmarked, "
            "retried).",
            ["outcome"],
            zip(("recorded", "followed", "marked", "unmarked", "retried")),
        )
        self.vm_pods_kept = self._gauge(
            "vm_pods_kept", "VM pods with Holdfast's finalizer, whose node is not recorded yet."
        )
        self.vm_pods_kept_back = self._gauge(
            "vm_pods_kept_back",
            "VM pods that have ended or are being deleted, but keep the finalizer; their VMs wait "
            "for the record.",
        )
        self.events_dropped = self._counter(
            "events_dropped", "Events dropped by the rate limit or because they could not be sent."
        )

    def _add_leader(self) -> None:
        self.leader = self._gauge(
            "leader", "1 while this controller is the leader, 0 while it is on standby."
        )
        self.leader_transitions = self._counter(
            "leader_transitions",
            "Times this controller became or stopped being the leader (leading, standby).",
            ["to"],
            zip(("leading", "standby")),
        )
        self.ca_expiry = self._gauge(
            "ca_expiry_timestamp_seconds",
            "Expiry of the signing CA, in seconds since 1970; 0 if this controller manages no CA.",
        )
        self.certificate_writes = self._counter(
            "certificate_writes",
            "Writes of Secrets, by action (new_authority, retain, introduce, promote, forget, "
            "issue).",
            ["action"],
            zip(("new_authority", "retain", "introduce", "promote", "forget", "issue")),
        )
        self.registered = self._gauge(
            "webhooks_registered",
            "1 if the webhooks are registered as configured; NaN if the leader does not register "
            "them (--certificates=none).",
        )
        self.registrations = self._counter(
            "webhook_configuration_writes", "Writes of webhook configurations."
        )
        self.publisher_failures = self._counter(
            "publisher_failures",
            "Failed reconciliations of certificates and webhook configurations.",
        )
        self.guard = self._gauge(
            "guard_refuses",
            "1 if the guard rejected a forbidden patch at startup, in a dry run; NaN if it could "
            "not be tried.",
        )
        self.guard.set(math.nan)
        self.clock_uncertainty = self._gauge(
            "clock_uncertainty_seconds",
            "Uncertainty of the API server's clock; releases are late by up to this.",
        )

    def exposition(self) -> bytes:
        """Count holds and paces, and return all metrics in the Prometheus text format."""
        with self._counting:
            self.holds.clear()
            for (plugin, reason), count in self.count_holds().items():
                is_named = self.hold_plugins is None or plugin in self.hold_plugins
                self.holds.labels(plugin if is_named else "other", reason).inc(count)
            self.pace_starting.clear()
            self.pace_waiting.clear()
            for name, (starting, waiting) in self.count_paces().items():
                self.pace_starting.labels(name).set(starting)
                self.pace_waiting.labels(name).set(waiting)
            return super().exposition()
