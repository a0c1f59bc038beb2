"""A steady load: twenty pod creations a second, and what became of each."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from controlplane.launcher import ControlPlane
from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube.client import Cluster
from tests.e2e.namespace import Object, created, gates, pod

RATE = 20.0
"""Creations a second."""
GATE = "holdfast.dev/delay"
ROLE = "kubernetes.io/role"
"""The node label that placed pods require."""
DELAY = (1.0, 12.0)
"""Seconds for which delayed pods ask."""
SHORT_DELAY = (1.0, 6.0)
"""Likewise, in the short form."""
TIMED_OUT = ("deadline exceeded", "imed out", "imeout")
"""Messages of creations that timed out."""
_AT_ONCE = 128
"""Creations under way at once: twelve in twenty ask, and each of their two calls may time out."""
_SWEEP_SECONDS = 2.0
_BEHIND = 5
"""Creations that a crowded machine may catch up on; more are left out."""


@dataclass(frozen=True)
class Wish:
    name: str
    delay: float
    """Seconds; 0 asks for none."""
    placed: bool

    @property
    def asks(self) -> bool:
        return bool(self.delay) or self.placed

    def manifest(self) -> Object:
        annotations = {"delay": f"{self.delay:.3f}s"} if self.delay else {}
        annotations |= {"type": "space"} if self.placed else {}
        return pod(self.name, annotations, terminationGracePeriodSeconds=0)


@dataclass(frozen=True)
class Failure:
    at: float
    """When it was begun: seconds since 1970."""
    ended: float
    """When it had failed."""
    wish: Wish
    said: str

    @property
    def by_webhook(self) -> bool:
        """Whether an admission webhook is the reason, rather than the API server or its etcd."""
        return "webhook" in self.said

    @property
    def timed_out(self) -> bool:
        """Whether somebody did not wait any longer, as happens on a machine that is too busy."""
        return any(text in self.said for text in TIMED_OUT)


class Wait(NamedTuple):
    """How long a creation took."""

    began: float
    """Seconds since 1970."""
    seconds: float
    asks: bool
    """Whether Holdfast was asked about it."""


@dataclass
class Load:
    plane: ControlPlane
    namespace: str
    source: random.Random
    rate: float = RATE
    delay: tuple[float, float] = DELAY
    due: dict[str, float] = field(default_factory=dict)
    """When each delayed pod is due: seconds since 1970, from the stored annotations."""
    made: int = 0
    failures: list[Failure] = field(default_factory=list)
    ungated: list[str] = field(default_factory=list)
    """Pods that asked to be held, and were let through."""
    misshapen: list[str] = field(default_factory=list)
    """Pods that do not have exactly one gate of ours, or one term, where they asked for it."""
    waits: list[Wait] = field(default_factory=list)
    """How long creations took that succeeded."""
    begun: list[float] = field(default_factory=list)
    """When each creation was begun, those that failed too: seconds since 1970."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    asks: bool = True
    """Whether pods ask for anything; `asking_nothing` keeps them from it."""
    lasted: tuple[float, float] = (0.0, 0.0)
    """When it began and ended: seconds since 1970."""
    under_way: set[str] = field(default_factory=set)
    """Pods that ask, and are being created."""
    window: tuple[float, float] | None = None
    """When pods that are created now fall due, where `due_within` says so."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Create pods until the block ends; then all creations have been answered."""
        stop, began = threading.Event(), time.time()
        with closing(Cluster.connect(self.plane.kubeconfig)) as cluster:
            threads = [
                threading.Thread(target=run, args=(cluster, stop))
                for run in (self._drive, self._sweep)
            ]
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                self.lasted = began, time.time()
                stop.set()
                for thread in threads:
                    thread.join()

    @contextmanager
    def asking_nothing(self) -> Iterator[None]:
        """Create only pods that ask for nothing while the block lasts, and none that did."""
        with self.lock:
            self.asks = False
        try:
            while self.under_way:
                time.sleep(0.05)
            yield
        finally:
            self.asks = True

    @contextmanager
    def due_within(self, began: float, ended: float) -> Iterator[None]:
        """Have delayed pods that are created while the block lasts fall due between two moments.

        They are seconds since 1970, the first not before the block's end.
        """
        self.window = began, ended
        try:
            yield
        finally:
            self.window = None

    def wish(self, number: int) -> Wish:
        """Decide what the pod of that number asks for: half a delay, a fifth a place."""
        least, most = self.delay
        if (window := self.window) is not None:
            least, most = (max(least, each - time.time()) for each in window)
        delay = round(self.source.uniform(least, most), 3) if number % 2 else 0.0
        wish = Wish(f"load-{number}", delay, placed=number % 5 == 0)
        with self.lock:
            if not self.asks:
                return Wish(wish.name, 0.0, placed=False)
            if wish.asks:
                self.under_way.add(wish.name)
        return wish

    def burst(self, number: int, name: str) -> None:
        """Create this many more delayed pods at once, and wait until they are created."""
        wishes = [Wish(f"{name}-{each}", self.delay[0], placed=True) for each in range(number)]
        with (
            closing(Cluster.connect(self.plane.kubeconfig)) as cluster,
            ThreadPoolExecutor(number) as pool,
        ):
            for each in [pool.submit(self.create, cluster, wish) for wish in wishes]:
                each.result()

    def create(self, cluster: Cluster, wish: Wish) -> None:
        try:
            self._create(cluster, wish)
        finally:
            with self.lock:
                self.under_way.discard(wish.name)

    def _create(self, cluster: Cluster, wish: Wish) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        began = time.time()
        with self.lock:
            self.begun.append(began)
        try:
            answer = cluster.request("POST", path, body=msgspec.json.encode(wish.manifest()))
        except ClusterError as exc:
            with self.lock:
                self.failures.append(Failure(began, time.time(), wish, str(exc)))
            return
        seen = msgspec.json.decode(answer)
        with self.lock:
            self.waits.append(Wait(began, time.time() - began, wish.asks))
            self.take(wish, seen)

    def take(self, wish: Wish, seen: Object) -> None:
        """Note a pod that the API server has stored."""
        self.made += 1
        ours = [gate for gate in gates(seen) if gate == GATE]
        if wish.delay:
            self.due[wish.name] = created(seen) + wish.delay
            if not ours:
                self.ungated.append(wish.name)
        if len(ours) > int(bool(wish.delay)) or terms(seen) != int(wish.placed):
            self.misshapen.append(wish.name)

    def _drive(self, cluster: Cluster, stop: threading.Event) -> None:
        began, number = time.monotonic(), 0
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while not stop.wait(max(0.0, began + number / self.rate - time.monotonic())):
                behind = (time.monotonic() - began) * self.rate - number
                if behind > _BEHIND:  # do not catch up after a stall
                    began += behind / self.rate
                pool.submit(self.create, cluster, self.wish(number))
                number += 1

    def _sweep(self, cluster: Cluster, stop: threading.Event) -> None:
        """Delete pods that run: they have been bound, and the nodes must not fill up."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        query = {"fieldSelector": "status.phase=Running"}
        while not stop.wait(_SWEEP_SECONDS):
            with suppress(ClusterError):
                cluster.request("DELETE", path, query=query)


def terms(seen: Object) -> int:
    """Count the requirements of the placing label in a pod's node affinity."""
    affinity = seen["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    found = [
        one
        for term in required.get("nodeSelectorTerms", ())
        for one in term.get("matchExpressions", ())
        if one["key"] == ROLE
    ]
    return len(found)
