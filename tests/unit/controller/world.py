"""A release controller whose clock and threads are controlled by a test."""

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.webhook.controller import controller as module
from holdfast.webhook.controller.controller import ReleaseController
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.framework.plugin import Plugin
from holdfast.webhook.kube.server_clock import ServerClock
from holdfast.webhook.model.annotations import HELD_ANNOTATION
from holdfast.webhook.model.freezes import FREEZE, FREEZE_UNTIL
from holdfast.webhook.model.objects import ApiObject, Metadata, ObjectKey, Pod
from holdfast.webhook.plugins.pace.groups import PacedPod
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from tests.support.builders import CREATED_MS, GATE, held, make_decider, make_delay
from tests.support.fakes import FakeApi, FakeRecorder
from tests.support.manual import RecordingCondition, ThreadPool
from tests.support.scripted import Holding, decider_of

KEY = ("default", "web-0")
CREATED_S = CREATED_MS / 1_000


class World:
    """A controller without threads, on a clock that only the test advances.

    Local time is seconds since the pods were created. The server's clock is known exactly.
    """

    def __init__(
        self,
        *pods: dict[str, Any],
        synced: bool = True,
        clock_known: bool = True,
        decider: ReleaseDecider | None = None,
        metrics: ControllerMetrics | None = None,
        begin: Callable[..., bool] | None = None,
    ) -> None:
        self.local = 0.0
        self.leads = True
        self.api = FakeApi(*pods)
        self.clock = ServerClock()
        self.metrics = metrics or ControllerMetrics()
        self.recorder = FakeRecorder()
        self.pool = ThreadPool()
        self.waits = RecordingCondition()
        self.controller = ReleaseController(
            self.api,
            decider or make_decider(),
            self.clock,
            self.metrics,
            recorder=self.recorder,
            leading=lambda: self.leads,
            now=lambda: self.local,
            begin=begin,
        )
        self.controller._loop.changed = self.controller._changed = self.waits
        if clock_known:
            self.sync_clock(CREATED_S)
        if synced:
            self.sync()

    def sync_clock(self, date: float) -> None:
        self.clock.observe(sent=self.local, received=self.local, date=date)

    def advance(self, seconds: float) -> None:
        """Advance local time; at a full second, read the server clock."""
        self.local += seconds
        if self.local == int(self.local):
            self.sync_clock(CREATED_S + self.local)

    def connect(self, handle: Handle) -> None:
        """Connect plugins to the controller; what they watch is listed once."""

        def follow(path: str, kind: type[Any], handler: Any, **_: Any) -> Callable[[], None]:
            handler.on_sync([PacedPod.of(pod) for pod in self.api.pods.values()])
            return lambda: None

        handle.connect(
            waiting=self.controller,
            record_event=self.controller.record_event,
            follow=follow,
            bounds_ms=self.controller.bounds_ms,
        )

    def list_pods(self) -> None:
        self.controller.on_sync([Pod.of(pod) for pod in self.api.pods.values()])

    def sync(self) -> None:
        self.list_pods()
        self.freeze()

    def freeze(self, **reasons: str) -> None:
        """List the namespaces, with freeze reasons by name."""
        self.controller.freeze_watch.on_sync([namespace(*freeze) for freeze in reasons.items()])

    def deliver(self, key: ObjectKey = KEY) -> None:
        """Deliver the pod's current state, as the watch does."""
        self.controller.on_update(Pod.of(self.api.pods[key]))

    def allow(self, plugin: str) -> None:
        """Allow the release on behalf of a plugin, and deliver the resulting update."""
        self.controller.allow(KEY, plugin)
        self.deliver()

    def dispatch(self) -> float:
        """Run the loop once without running its jobs, and return its sleep time in seconds."""
        self.controller._loop._dispatch(self.pool)
        return self.waits.waits[-1]

    def settle(self) -> None:
        """Dispatch and run jobs until none is left."""
        self.dispatch()
        while self.pool.jobs:
            self.pool.run()
            self.dispatch()

    def run(self, seconds: float) -> None:
        """Advance time, then settle."""
        self.advance(seconds)
        self.settle()

    @property
    def released(self) -> list[str]:
        return [path.rsplit("/", 1)[1] for method, path in self.api.requests if method == "PATCH"]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"holdfast_{name}", labels)


def namespace(name: str, reason: str | None, until: str | None = None) -> ApiObject:
    values = {FREEZE: reason, FREEZE_UNTIL: until}
    annotations = {key: value for key, value in values.items() if value is not None}
    return ApiObject(Metadata(name=name, annotations=annotations))


def pods(**delays: str) -> list[dict[str, Any]]:
    return [
        held({"delay": delay, HELD_ANNOTATION: f"delay={delay}"}, name=name, uid=f"uid-{name}")
        for name, delay in delays.items()
    ]


def single_pod_world(delay: str = "15") -> World:
    return World(held({"delay": delay, HELD_ANNOTATION: f"delay={delay}s"}))


def in_namespaces(namespaces: Iterable[str], *documents: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a copy of the pods for each namespace."""
    return [
        {**document, "metadata": {**document["metadata"], "namespace": namespace}}
        for namespace in namespaces
        for document in documents
    ]


def saturated_world() -> World:
    """Return a world with due pods in more namespaces than the workers can serve."""
    documents = pods(**{f"p{number:02}": "1" for number in range(30)})
    namespaces = [f"space-{number}" for number in range(1 + module.WORKERS // module.FIRST_OF_ONE)]
    world = World(*in_namespaces(namespaces, *documents))
    world.advance(60)
    world.dispatch()
    return world


def world_held_by(*plugins: Holding, delay: str | None = None) -> World:
    """Return a world with one pod held by these plugins, and by the delay if given."""
    gates = [plugin.gate for plugin in plugins]
    all_plugins: list[Plugin] = [make_delay(), *plugins]
    pod = held({"delay": delay} if delay else {}, gates=[GATE, *gates] if delay else gates)
    return World(pod, decider=decider_of(*all_plugins))
