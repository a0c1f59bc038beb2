"""Assemble the controllers of a process."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from holdfast.certs.rotation import Plan
from holdfast.webhook.controller.controller import ReleaseController
from holdfast.webhook.errors import StartError
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.profiles import Profiles
from holdfast.webhook.kube.api import boot_time
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.kube.events import EventRecorder
from holdfast.webhook.kube.leader_election import Leader
from holdfast.webhook.kube.lookup import ClusterLookup
from holdfast.webhook.kube.server_clock import ServerClock
from holdfast.webhook.model.annotations import OWN_PREFIX
from holdfast.webhook.model.freezes import OWN_NAMESPACE
from holdfast.webhook.policies import guard_check
from holdfast.webhook.registration.reconciler import Mode, WebhookReconciler
from holdfast.webhook.registration.replicas import Service
from holdfast.webhook.registration.secrets import CertificateSecrets
from holdfast.webhook.runtime import pipelines
from holdfast.webhook.runtime.following import Follower
from holdfast.webhook.sticky.controller import StickyController
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.threads import ThreadGroup

_NEED_NO_LEAD = frozenset({"events", "guard"})
"""Threads that may run in two processes at once: one records Events, one writes nothing."""


@dataclass(frozen=True, slots=True)
class Manager:
    """The controllers of a process, and the objects that they share.

    `server_time` is the API server's time in seconds since 1970, None until its first response.
    """

    cluster: Cluster
    profiles: Profiles
    metrics: ControllerMetrics
    server_time: Callable[[], float | None]
    leader: Leader | None
    releases: ReleaseController
    sticky: StickyController
    threads: ThreadGroup
    recorder: EventRecorder
    ended: threading.Event

    @property
    def synced(self) -> bool:
        """Whether all held pods and all VM pods that wait for a record are known."""
        return self.releases.synced and self.sticky.synced

    def publish(self, mode: Mode, service: Service, plan: Plan) -> None:
        """Add the reconciliation of certificates and webhook configurations.

        Raises ValueError without leader election.
        """
        if self.leader is None:
            raise ValueError("publishing requires leader election")
        certificates = None
        if mode is Mode.SELF:
            certificates = CertificateSecrets(
                self.cluster,
                plan,
                self.metrics,
                namespace=service.namespace,
                identity=self.leader.identity,
                may_write=self.leader.leading,
            )
        publisher = WebhookReconciler(
            self.cluster,
            self.profiles,
            service,
            self.metrics,
            certificates=certificates,
            leading=self.leader.leading,
            server_time=self.server_time,
        )
        self.threads.add("publisher", publisher.run)

    def run(self) -> None:
        """Run until stopped, then release the Lease. Raises StartError if a thread has died."""
        self.work()
        if self.threads.failed:
            raise StartError("the controller failed; see the log above")

    def work(self) -> None:
        """Run like `run`, without raising. `threads.failed` is true if a thread has died."""
        with self.threads:
            self.ended.wait()
            self.threads.stop()
            # Both may sleep until the next due time. Wake them, so they notice the shutdown.
            self.releases.wake()
            self.sticky.wake()
        # Release the Lease only after the last write, because the next leader starts at once. If
        # a request still hangs, let the Lease expire, as after a crash.
        if self.leader is not None and self.threads.unfinished <= _NEED_NO_LEAD:
            self.leader.resign()

    def stop(self) -> None:
        """Stop after finishing the work in flight."""
        self.ended.set()


def controller(
    connect: Callable[[Callable[..., None]], Cluster],
    setup: pipelines.Setup,
    metrics: ControllerMetrics,
    *,
    lease_namespace: str | None = None,
) -> Manager:
    """Assemble the controllers, with leader election in `lease_namespace`, if given.

    `connect` receives the observer of the server's time. A freeze of that namespace, or of
    holdfast-system without leader election, applies to all namespaces.
    """
    handle = Handle()
    decider = pipelines.release_decider(setup, metrics.observe_plugin, handle)
    profiles = decider.profiles
    _describe(metrics, setup, profiles)
    clock = ServerClock(checks=True)
    cluster = connect(clock.observe)
    server_time = partial(_server_time, clock)
    recorder = EventRecorder(
        cluster, now_ms=partial(_now_ms, clock), on_dropped=metrics.events_dropped.inc
    )
    leader = _leader(cluster, metrics, lease_namespace, server_time)
    leading = leader.leading if leader else lambda: True
    releases = ReleaseController(
        cluster,
        decider,
        clock,
        metrics,
        recorder=recorder,
        leading=leading,
        namespace=lease_namespace or OWN_NAMESPACE,
        begin=cluster.begin,
    )
    recorder.saturated = lambda: releases.saturated
    sticky = _sticky(cluster, profiles, metrics, recorder, leading=leading, releases=releases)
    ended = threading.Event()
    threads = _threads(cluster, releases, sticky, leader, ended)
    handle.connect(
        lookup=ClusterLookup(lambda: cluster, observe=metrics.observe_lookup),
        waiting=releases,
        record_event=releases.record_event,
        follow=Follower(cluster, threads, metrics),
        bounds_ms=releases.bounds_ms,
        term=None if leader is None else leader.term,
    )
    return Manager(
        cluster, profiles, metrics, server_time, leader, releases, sticky, threads, recorder, ended
    )


def _describe(metrics: ControllerMetrics, setup: pipelines.Setup, profiles: Profiles) -> None:
    """Give the metrics what they show about the configuration and its plugins."""
    metrics.configuration.info({"digest": pipelines.digest(setup)})
    metrics.count_paces = partial(pipelines.count_paces, profiles)
    gates = (plugin.gate for plugin in profiles.plugins if plugin.gate)
    metrics.hold_plugins = {gate.removeprefix(OWN_PREFIX) for gate in gates}
    metrics.add_permits(
        (plugin.name, profile.name)
        for profile in profiles.by_name.values()
        for plugin in profile.holding
    )


def _server_time(clock: ServerClock) -> float | None:
    return clock.lower_bound(boot_time())


def _now_ms(clock: ServerClock) -> int:
    return int((_server_time(clock) or time.time()) * 1_000)


def _leader(
    cluster: Cluster,
    metrics: ControllerMetrics,
    namespace: str | None,
    server_time: Callable[[], float | None],
) -> Leader | None:
    if namespace is None:
        metrics.leader.set(1)
        return None
    return Leader(cluster, metrics, namespace=namespace, server_time=server_time)


def _sticky(
    cluster: Cluster,
    profiles: Profiles,
    metrics: ControllerMetrics,
    recorder: EventRecorder,
    *,
    leading: Callable[[], bool],
    releases: ReleaseController,
) -> StickyController:
    return StickyController(
        cluster,
        partial(pipelines.sticky_args, profiles),
        metrics,
        enabled=pipelines.has_sticky(profiles),
        recorder=recorder,
        may_write=leading,
        may_sweep=lambda: releases.synced,  # both list all waiting pods: at once, twice the memory
    )


def _threads(
    cluster: Cluster,
    releases: ReleaseController,
    sticky: StickyController,
    leader: Leader | None,
    ended: threading.Event,
) -> ThreadGroup:
    threads = ThreadGroup(on_failure=ended.set)
    releases.add_to(threads)
    sticky.add_to(threads)
    threads.add("responses", cluster.receive, grace=0)
    if leader is not None:
        leader.on_started_leading(releases.wake)
        leader.on_started_leading(sticky.wake)
        threads.add("leader", leader.run)
        measure = partial(guard_check.measure, cluster, leader.namespace, leader.metrics.guard.set)
        threads.add("guard", lambda _stop: measure())
    return threads
