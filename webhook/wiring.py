"""Putting a process together: its pipeline, its connection to a cluster, its controller."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webhook import config, plugins
from webhook.errors import StartError
from webhook.framework import Handle, Starting
from webhook.lookup import ClusterLookup
from webhook.objects import Pod
from webhook.pipeline import Pipeline
from webhook.profiles import Profile
from webhook.runner import Observe, described, may_block
from webhook.vms import StickyArgs

if TYPE_CHECKING:
    from certs.rotation import Plan
    from webhook.chronicle import Chronicle
    from webhook.cluster import Cluster
    from webhook.controller import Controller
    from webhook.leader import Leader
    from webhook.metrics import ControllerMetrics
    from webhook.publisher import Mode
    from webhook.recorder import LandingRecorder
    from webhook.replicas import Service
    from webhook.workers import Workers

_log = logging.getLogger("holdfast.plugins")


@dataclass(frozen=True, slots=True)
class Setup:
    """What a process is configured by: a file, or the defaults, and the plugins that it lacks."""

    path: Path | None = None
    disabled: Sequence[str] = ()

    @property
    def source(self) -> str:
        """How errors name it."""
        return str(self.path or "the default configuration")

    def load(self, known: Collection[str]) -> config.Configuration:
        """Read it. Raises ConfigurationError."""
        return config.without(config.load(self.path), self.disabled, known, source=self.source)


def pipeline(setup: Setup, observe: Observe, handle: Handle | None = None) -> Pipeline:
    """Make the pipeline of a configuration. Raises ConfigurationError."""
    known = plugins.registry()
    return config.build_pipeline(
        setup.load(known),
        known,
        source=setup.source,
        timer=time.perf_counter,
        observe=observe,
        handle=handle,
    )


def digest(setup: Setup) -> str:
    """Give the digest of a configuration, by which replicas are compared.

    Raises ConfigurationError.
    """
    return config.digest(setup.load(plugins.registry()))


def connect(
    kubeconfig: Path | None,
    context: str | None,
    on_answer: Callable[[Any], None] | None = None,
) -> Cluster:
    """Connect to a cluster. Raises StartError."""
    from webhook.cluster import Cluster  # noqa: PLC0415 - the kubernetes client is slow to import

    return Cluster.connect(kubeconfig, context, on_answer=on_answer)


def look_around(pipeline: Pipeline, lookup: ClusterLookup) -> None:
    """Connect where a plugin may look something up, and let the plugins look around, in a thread.

    For the admission server's worker, ahead of its first review. Raises StartError where there are
    no credentials; an API server that does not answer stops nothing.
    """
    found = [plugin for profile in pipeline.profiles.values() for plugin in profile.plugins]
    blocking = list(dict.fromkeys(plugin.name for plugin in found if may_block(plugin)))
    if not blocking:
        return
    try:
        lookup.connect()
    except StartError as exc:
        raise StartError(
            f"{exc}; or leave out what looks things up: --disable-plugin {' '.join(blocking)}"
        ) from None
    starting = {plugin.name: plugin for plugin in found if isinstance(plugin, Starting)}
    threading.Thread(target=_start, args=(starting,), name="look-around", daemon=True).start()


def _start(plugins: Mapping[str, Starting]) -> None:
    """Let one plugin of each name look around: it would say the same in every profile."""
    for name, plugin in plugins.items():
        try:
            plugin.started()
        except Exception as exc:  # noqa: BLE001 - whatever it was, reviews will tell
            _log.warning("plugin %s could not look around: %s", name, described(exc))


@dataclass(frozen=True, slots=True)
class Assembly:
    """A controller, and what it is made of and works by.

    `server_time` is the API server's clock, in seconds since 1970, and None until its first answer.
    """

    cluster: Cluster
    pipeline: Pipeline
    metrics: ControllerMetrics
    server_time: Callable[[], float | None]
    leader: Leader | None
    loop: Controller
    recorder: LandingRecorder
    workers: Workers
    chronicle: Chronicle

    @property
    def synced(self) -> bool:
        """True once all held pods, and all pods of VMs that wait for a record, are known."""
        return self.loop.synced and self.recorder.synced

    @property
    def sticky_args(self) -> StickyArgs | None:
        """What the sticky plugin was given, in the first profile that enables it."""
        return first_sticky_args(self.pipeline)

    @property
    def failed(self) -> bool:
        """True when a thread has died; all end then."""
        return self.loop.failed or self.workers.failed

    def publish(self, mode: Mode, service: Service, plan: Plan) -> None:
        """Keep certificates and webhook configurations right beside the loop.

        Raises ValueError where nobody is elected to do so.
        """
        from webhook.certificates import Certificates  # noqa: PLC0415
        from webhook.publisher import Mode, Publisher  # noqa: PLC0415

        if self.leader is None:
            raise ValueError("only a controller that stands for election may publish")
        certificates = None
        if mode is Mode.SELF:
            certificates = Certificates(
                self.cluster,
                plan,
                self.metrics,
                namespace=service.namespace,
                identity=self.leader.identity,
                may_write=self.leader.leading,
            )
        publisher = Publisher(
            self.cluster,
            self.pipeline,
            service,
            self.metrics,
            certificates=certificates,
            leading=self.leader.leading,
            server_time=self.server_time,
        )
        self.workers.add("publisher", publisher.run)

    def run(self) -> None:
        """Stand for election, if there is one, and work until told to stop.

        The Lease is given up when all work is done. Raises StartError when a thread has died.
        """
        self.work()
        if self.failed:
            raise StartError("the controller died; its reason is above")

    def work(self) -> None:
        """Do as `run` does; whether a thread has died, `failed` tells."""
        with self.workers:
            self.loop.run()
        if self.leader is not None:
            self.leader.resign()

    def stop(self) -> None:
        """End the work; what is under way is finished first."""
        self.loop.stop()


def controller(
    kubeconfig: Path | None,
    context: str | None,
    setup: Setup,
    metrics: ControllerMetrics,
    *,
    lease_namespace: str | None = None,
) -> Assembly:
    """Make a controller, with the pipeline that decides and the connection that it works by.

    It stands for election by a Lease in `lease_namespace`; without one it always leads.
    """
    from webhook.chronicle import Chronicle  # noqa: PLC0415
    from webhook.clock import ServerClock  # noqa: PLC0415
    from webhook.cluster import boot_time  # noqa: PLC0415
    from webhook.controller import Controller  # noqa: PLC0415
    from webhook.events import Recorder  # noqa: PLC0415
    from webhook.leader import Leader  # noqa: PLC0415
    from webhook.recorder import LandingRecorder  # noqa: PLC0415
    from webhook.workers import Workers  # noqa: PLC0415

    handle = Handle()
    decider = pipeline(setup, metrics.observe_plugin, handle)
    metrics.configuration.info({"digest": digest(setup)})
    clock = ServerClock()
    cluster = connect(
        kubeconfig,
        context,
        lambda timing: clock.observe(sent=timing.sent, received=timing.received, date=timing.date),
    )

    def server_time() -> float | None:
        return clock.surely_passed(boot_time())

    def some_time() -> float:
        return server_time() or time.time()

    recorder = Recorder(
        cluster,
        now_ms=lambda: int(some_time() * 1_000),
        on_dropped=metrics.events_dropped.inc,
    )
    leader = None
    if lease_namespace is not None:
        leader = Leader(cluster, metrics, namespace=lease_namespace, server_time=server_time)
    else:
        metrics.leader.set(1)
    leading = always if leader is None else leader.leading
    chronicle = Chronicle(recorder, now_ms=lambda: int(some_time() * 1_000))
    loop = Controller(cluster, decider, clock, metrics, told=chronicle, leading=leading)
    recorder.busy = lambda: loop.busy
    landings = LandingRecorder(
        cluster,
        partial(sticky_args, decider),
        metrics,
        enabled=first_sticky_args(decider) is not None,
        told=recorder,
        may_write=leading,
        may_sweep=lambda: loop.synced,  # both list all pods that wait: together they take twice
    )
    workers = Workers(on_failure=loop.stop)
    workers.add("recorder", landings.run)
    if leader is not None:
        leader.on_gained(loop.wake)
        leader.on_gained(landings.wake)
        workers.add("leader", leader.run)
    lookup = ClusterLookup(lambda: cluster, observe=metrics.observe_lookup)
    handle.connect(lookup=lookup, held=loop, tell=loop.tell)
    return Assembly(
        cluster, decider, metrics, server_time, leader, loop, landings, workers, chronicle
    )


def sticky_args(decider: Pipeline, pod: Pod) -> StickyArgs | None:
    """Give the sticky plugin's arguments for a pod; None where its profile does not enable it."""
    profile = decider.profile_for(pod)
    return None if profile is None else next(_sticky_args(profile), None)


def first_sticky_args(decider: Pipeline) -> StickyArgs | None:
    """Give the sticky plugin's arguments in the first profile that enables it; else None."""
    return next((args for one in decider.profiles.values() for args in _sticky_args(one)), None)


def _sticky_args(profile: Profile) -> Iterator[StickyArgs]:
    arguments = (getattr(plugin, "args", None) for plugin in profile.plugins)
    return (args for args in arguments if isinstance(args, StickyArgs))


def always() -> bool:
    """Lead without an election."""
    return True


def unobserved(
    *, plugin: str, extension_point: str, status: str, profile: str, seconds: float
) -> None:
    """Take a measurement that nobody reads."""
