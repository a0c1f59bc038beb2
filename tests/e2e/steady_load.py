"""Pod creations at a steady rate, and their results."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import msgspec

from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube.client import Cluster
from tests.e2e.namespace import Namespace, gates, pod

RATE = 20.0
"""Creations per second."""
_AT_ONCE = 40


@dataclass
class Load:
    made: int = 0
    ungated: list[str] = field(default_factory=list)
    """Pods with a delay that were admitted without a gate."""
    failures: list[tuple[float, str]] = field(default_factory=list)
    """When each failed creation began, by the monotonic clock, and the error."""
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def creating(ns: Namespace) -> Iterator[Load]:
    """Create pods with an hour's delay until the block ends; then wait for all responses.

    These are dry runs: webhooks are called, but no pods are stored.
    """
    load, stop = Load(), threading.Event()
    with (
        closing(Cluster.connect(ns.plane.kubeconfig)) as cluster,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        thread = threading.Thread(target=_drive, args=(ns, cluster, pool, load, stop))
        thread.start()
        try:
            yield load
        finally:
            stop.set()
            thread.join()


def creations(ns: Namespace, seconds: float) -> list[str]:
    """Create such pods for some seconds, and return all failures."""
    with creating(ns) as load:
        time.sleep(seconds)
    return [*load.ungated, *(message for _, message in load.failures)]


def _drive(
    ns: Namespace, cluster: Cluster, pool: ThreadPoolExecutor, load: Load, stop: threading.Event
) -> None:
    start, number = time.monotonic(), 0
    pending: list[Future[None]] = []
    while not stop.wait(max(0.0, start + number / RATE - time.monotonic())):
        pending.append(pool.submit(_create, ns, cluster, load, number))
        number += 1
    for future in pending:
        future.result()


def _create(ns: Namespace, cluster: Cluster, load: Load, number: int) -> None:
    began, path = time.monotonic(), f"/api/v1/namespaces/{ns.namespace}/pods"
    body = msgspec.json.encode(pod(f"load-{number}", {"delay": "3600"}))
    try:
        response = cluster.request("POST", path, query={"dryRun": "All"}, body=body)
    except ClusterError as exc:
        with load.lock:
            load.failures.append((began, str(exc)))
        return
    with load.lock:
        load.made += 1
        if not gates(msgspec.json.decode(response)):
            load.ungated.append(f"load-{number}")
