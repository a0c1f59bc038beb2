"""A steady load of twenty pod creations a second, with the outcome of each."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec

from controlplane.launcher import ControlPlane
from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube.client import Cluster
from tests.e2e.namespace import Object, created, gates, pod
from tests.support.background import in_background

RATE = 20.0
"""Creations a second."""
GATE = "holdfast.dev/delay"
ROLE = "kubernetes.io/role"
"""The node label that placed pods require."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
DELAY = (1.0, 12.0)
"""Least and most seconds by which pods are delayed."""
SHORT_DELAY = (1.0, 6.0)
"""The same for the short form."""
TIMED_OUT = ("deadline exceeded", "imed out", "imeout")
"""Messages of creations that timed out."""
_MAX_IN_FLIGHT = 128
"""Creations in flight: twelve in twenty pods are annotated, and each of their two webhook calls may
time out."""
_SWEEP_SECONDS = 2.0
_MAX_BEHIND = 5
"""Creations that an overloaded machine may catch up on; more than these are skipped."""


@dataclass(frozen=True)
class LoadPod:
    """A pod of the load, as it is to be created."""

    name: str
    delay: float
    """Seconds; 0 if it is not delayed."""
    placed: bool
    """Whether a placement rule applies to it."""

    @property
    def annotated(self) -> bool:
        """Whether it has annotations for Holdfast."""
        return bool(self.delay) or self.placed

    def manifest(self) -> Object:
        annotations = {"delay": f"{self.delay:.3f}s"} if self.delay else {}
        annotations |= {"type": "space"} if self.placed else {}
        return pod(self.name, annotations, terminationGracePeriodSeconds=0)


@dataclass(frozen=True)
class Failure:
    at: float
    """When the creation started: seconds since 1970."""
    ended: float
    """When it had failed."""
    pod: LoadPod
    message: str

    @property
    def by_webhook(self) -> bool:
        """Whether an admission webhook is the reason, rather than the API server or its etcd."""
        return "webhook" in self.message

    @property
    def timed_out(self) -> bool:
        """Whether the creation timed out, as happens on an overloaded machine."""
        return any(phrase in self.message for phrase in TIMED_OUT)


class Latency(NamedTuple):
    """How long a creation took."""

    began: float
    """Seconds since 1970."""
    seconds: float
    annotated: bool
    """Whether Holdfast reviewed the pod."""


@dataclass
class Load:
    plane: ControlPlane
    namespace: str
    rng: random.Random
    rate: float = RATE
    delay: tuple[float, float] = DELAY
    due: dict[str, float] = field(default_factory=dict)
    """When each delayed pod is due: seconds since 1970, from the stored annotations."""
    created: int = 0
    failures: list[Failure] = field(default_factory=list)
    ungated: list[str] = field(default_factory=list)
    """Delayed pods that were admitted without a gate."""
    malformed: list[str] = field(default_factory=list)
    """Pods with more gates of ours, or with more or fewer terms, than their annotations ask for."""
    latencies: list[Latency] = field(default_factory=list)
    """How long successful creations took."""
    start_times: list[float] = field(default_factory=list)
    """When each creation started, whether it succeeded or failed: seconds since 1970."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    annotate: bool = True
    """Whether pods get annotations; `without_annotations` sets this to false for a while."""
    period: tuple[float, float] = (0.0, 0.0)
    """When the load started and ended: seconds since 1970."""
    in_flight: set[str] = field(default_factory=set)
    """Annotated pods that are being created."""
    window: tuple[float, float] | None = None
    """When pods that are created now fall due, inside a `due_within` block."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Create pods until the block ends; then no creation is in flight."""
        began = time.time()
        with (
            closing(Cluster.connect(self.plane.kubeconfig)) as cluster,
            in_background(partial(self._drive, cluster), partial(self._sweep, cluster)),
        ):
            try:
                yield
            finally:
                self.period = began, time.time()

    @contextmanager
    def without_annotations(self) -> Iterator[None]:
        """Create only pods without annotations while the block runs.

        The block starts when no annotated pod is in flight.
        """
        with self.lock:
            self.annotate = False
        try:
            while self.in_flight:
                time.sleep(0.05)
            yield
        finally:
            self.annotate = True

    @contextmanager
    def due_within(self, began: float, ended: float) -> Iterator[None]:
        """Let delayed pods that are created while the block runs fall due between two times.

        These are seconds since 1970; the first is not before the end of the block.
        """
        self.window = began, ended
        try:
            yield
        finally:
            self.window = None

    def next_pod(self, number: int) -> LoadPod:
        """Return the pod of that number: half of them are delayed, and a fifth are placed."""
        minimum, maximum = self.delay
        if (window := self.window) is not None:
            minimum, maximum = (max(minimum, end - time.time()) for end in window)
        delay = round(self.rng.uniform(minimum, maximum), 3) if number % 2 else 0.0
        load_pod = LoadPod(f"load-{number}", delay, placed=number % 5 == 0)
        with self.lock:
            if not self.annotate:
                return LoadPod(load_pod.name, 0.0, placed=False)
            if load_pod.annotated:
                self.in_flight.add(load_pod.name)
        return load_pod

    def burst(self, number: int, name: str) -> None:
        """Create this many more delayed pods at once, and wait until they are created."""
        pods = [LoadPod(f"{name}-{index}", self.delay[0], placed=True) for index in range(number)]
        with (
            closing(Cluster.connect(self.plane.kubeconfig)) as cluster,
            ThreadPoolExecutor(number) as pool,
        ):
            for future in [pool.submit(self.create, cluster, load_pod) for load_pod in pods]:
                future.result()

    def create(self, cluster: Cluster, load_pod: LoadPod) -> None:
        try:
            self._create(cluster, load_pod)
        finally:
            with self.lock:
                self.in_flight.discard(load_pod.name)

    def _create(self, cluster: Cluster, load_pod: LoadPod) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        began = time.time()
        with self.lock:
            self.start_times.append(began)
        try:
            response = cluster.request("POST", path, body=msgspec.json.encode(load_pod.manifest()))
        except ClusterError as exc:
            with self.lock:
                self.failures.append(Failure(began, time.time(), load_pod, str(exc)))
            return
        stored = msgspec.json.decode(response)
        with self.lock:
            self.latencies.append(Latency(began, time.time() - began, load_pod.annotated))
            self.record(load_pod, stored)

    def record(self, load_pod: LoadPod, stored: Object) -> None:
        """Record a pod that the API server has stored."""
        self.created += 1
        own_gates = [gate for gate in gates(stored) if gate == GATE]
        if load_pod.delay:
            self.due[load_pod.name] = created(stored) + load_pod.delay
            if not own_gates:
                self.ungated.append(load_pod.name)
        requirements = sum(count_requirements(stored))
        if len(own_gates) > int(bool(load_pod.delay)) or requirements != int(load_pod.placed):
            self.malformed.append(load_pod.name)

    def _drive(self, cluster: Cluster, stop: threading.Event) -> None:
        began, number = time.monotonic(), 0
        with ThreadPoolExecutor(_MAX_IN_FLIGHT) as pool:
            while not stop.wait(max(0.0, began + number / self.rate - time.monotonic())):
                behind = (time.monotonic() - began) * self.rate - number
                if behind > _MAX_BEHIND:  # do not catch up after a stall
                    began += behind / self.rate
                pool.submit(self.create, cluster, self.next_pod(number))
                number += 1

    def _sweep(self, cluster: Cluster, stop: threading.Event) -> None:
        """Delete running pods, so that the nodes do not fill up."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        query = {"fieldSelector": "status.phase=Running"}
        while not stop.wait(_SWEEP_SECONDS):
            with suppress(ClusterError):
                cluster.request("DELETE", path, query=query)


def terms(manifest: Object) -> list[Object]:
    """Return the required terms of a pod's node affinity."""
    affinity = manifest["spec"].get("affinity", {}).get("nodeAffinity", {})
    return list(affinity.get(REQUIRED, {}).get("nodeSelectorTerms", ()))


def count_requirements(manifest: Object) -> list[int]:
    """Return how often each of a pod's terms requires the node label ROLE."""
    return [
        sum(expression["key"] == ROLE for expression in term.get("matchExpressions", ()))
        for term in terms(manifest)
    ]
