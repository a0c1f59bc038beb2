"""A real control plane to measure on, and the operations that the rows share."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import yaml

from bench import load, reviews
from bench.servers import BenchError, Certificate, certificate
from controlplane import ControlPlane
from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.model.annotations import DELAY_KEYS, NOT_BEFORE

PATIENCE = 120.0
"""Default timeout of a wait, in seconds."""
NO_SCHEDULER = "none"
"""Name of a scheduler that does not exist, which keeps scheduling out of the measurement."""

LEAD_SECONDS = 5.0
"""Seconds added to the expected creation time of pods that fall due together."""
LEAD_FACTOR = 1.5
"""Safety factor on the creation time measured with PROBE pods."""
CREATED_SECONDS = 1.0
"""Seconds before the due time at which the controller has to know all pods.

Their creation is then not part of the measurement."""
TRIES = 4
NODES = 3
"""Enough nodes for the pods of the pace row. A node takes 110 pods."""
SLOW_PODS = Path(__file__).with_name("slow_pods.yaml")
"""kwok stage: pods with the label `slow` become ready 1 to 5 s after scheduling."""
CLIENTS = 16
"""Connections that create pods; each first creates one extra pod to warm up."""
PROBE = 100
"""Number of pods created to measure the creation rate."""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class World:
    """A cluster, and the files needed to connect to it."""

    plane: ControlPlane
    cluster: Cluster
    certificate: Certificate
    """The admission servers' serving certificate."""
    client_cert: Path
    client_key: Path

    @property
    def kubeconfig(self) -> Path:
        """Path of the admin kubeconfig."""
        return self.plane.kubeconfig

    @property
    def port(self) -> int:
        """The API server's port."""
        return int(self.plane.server.rpartition(":")[2])

    def get(self, path: str, query: Mapping[str, str | int] | None = None) -> Object:
        """Return an object or a list from the API server. Raises ClusterError."""
        return dict(msgspec.json.decode(self.cluster.request("GET", path, query=query)))

    def post(self, path: str, content: Object) -> Object:
        """Create an object, and return it as stored. Raises ClusterError."""
        body = msgspec.json.encode(content)
        return dict(msgspec.json.decode(self.cluster.request("POST", path, body=body)))

    def namespace(self, name: str) -> str:
        """Create a namespace, wait until pods can be created in it, and return its name."""
        self.post("/api/v1/namespaces", {"metadata": {"name": name}})
        self.until(lambda: self.has(f"/api/v1/namespaces/{name}/serviceaccounts/default"))
        return name

    def until(self, look: Any, seconds: float = PATIENCE, step: float = 0.05) -> None:
        """Poll `look` every `step` seconds until it returns true.

        Raises BenchError after `seconds`.
        """
        end = time.monotonic() + seconds
        while not look():
            if time.monotonic() > end:
                raise BenchError(f"the cluster did not reach the expected state in {seconds:.0f} s")
            time.sleep(step)

    def create(
        self, namespace: str, pods: Iterable[Object], number: int, connections: int = CLIENTS
    ) -> load.Figures:
        """Create `number` pods, cycling through `pods`, and return the latencies."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        bodies = [msgspec.json.encode(pod) for pod in pods]
        job = load.Job(
            port=self.port,
            requests=[reviews.request(body, path, query="") for body in bodies],
            number=number,
            connections=connections,
            status=201,
            certificate=str(self.client_cert),
            key=str(self.client_key),
        )
        return load.run(job)

    def lead(self, namespace: str, number: int) -> float:
        """Return how many seconds before their due time to start creating `number` held pods."""
        figures = self.create(namespace, [held_pod({DELAY_KEYS[0]: "24h"})], PROBE)
        self.clear(namespace)
        return LEAD_SECONDS + LEAD_FACTOR * number / figures.per_second

    def hold(self, namespace: str, number: int, held_count: Callable[[], float]) -> float:
        """Create pods that fall due in the same second, and return that due time.

        The due time is in seconds since 1970. `held_count` counts the held pods that the controller
        knows. If the machine is too slow, the pods are created again with twice the lead time.
        Raises BenchError after TRIES attempts.
        """
        baseline = held_count()  # before `lead` creates its probe pods
        lead = self.lead(namespace, number)
        for _ in range(TRIES):
            due = math.ceil(time.time() + lead)
            timestamp = datetime.fromtimestamp(due, UTC).isoformat()
            self.create(namespace, [held_pod({NOT_BEFORE: timestamp})], number - CLIENTS)
            while time.time() < due - CREATED_SECONDS:
                if held_count() == baseline + number:
                    return due
                time.sleep(0.05)
            self.until(lambda: held_count() == baseline, step=0.5)
            self.clear(namespace)
            lead *= 2
        raise BenchError(f"could not create {number} held pods before their due time")

    def clear(self, namespace: str) -> None:
        """Delete all pods of a namespace, and wait until they are gone."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        self.until(lambda: self._deleted(path), step=0.1)

    def count(self, namespace: str) -> int:
        """Return the number of pods in a namespace."""
        page = self.get(f"/api/v1/namespaces/{namespace}/pods", {"limit": 1})
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

    def _deleted(self, path: str) -> bool:
        try:
            self.cluster.request("DELETE", path, query={"gracePeriodSeconds": 0}, timeout=PATIENCE)
        except ClusterError:
            return False  # a long deletion may time out; `clear` retries it
        return not self.get(path, {"limit": 1})["items"]

    def has(self, path: str) -> bool:
        """Return whether the path can be read."""
        try:
            self.get(path)
        except ClusterError:
            return False
        return True


@contextmanager
def world(*, audit: bool = False) -> Iterator[World]:
    """Run a control plane until the context exits, and yield its World."""
    with (
        TemporaryDirectory(prefix="holdfast-bench-") as name,
        ControlPlane(nodes=NODES, audit=audit, stages=[SLOW_PODS]) as plane,
    ):
        folder = Path(name)
        user = yaml.safe_load(plane.kubeconfig.read_text())["users"][0]["user"]
        cert, key = folder / "client.crt", folder / "client.key"
        cert.write_bytes(base64.b64decode(user["client-certificate-data"]))
        key.touch(mode=0o600)
        key.write_bytes(base64.b64decode(user["client-key-data"]))
        cluster = Cluster.connect(plane.kubeconfig)
        try:
            yield World(plane, cluster, certificate(folder), cert, key)
        finally:
            cluster.close()


def held_pod(annotations: Mapping[str, str]) -> Object:
    """Return the manifest of a held pod, as the webhook leaves it."""
    gates = [{"name": reviews.GATE}]
    pod = small_pod(annotations)
    pod["spec"]["schedulingGates"] = gates
    return pod


def usual_pod(annotations: Mapping[str, str]) -> Object:
    """Return the manifest of the pod that the other rows review, 4 KB once it is stored.

    It has no owner, because a pod whose ReplicaSet is missing is garbage-collected. Its scheduler
    does not exist. Fields that the API server fills in are omitted.
    """
    pod = reviews.pod(annotations)
    metadata, spec = pod["metadata"], pod["spec"]
    (container,) = spec["containers"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {key: metadata[key] for key in ("generateName", "labels", "annotations")},
        "spec": {
            "schedulerName": NO_SCHEDULER,
            "restartPolicy": spec["restartPolicy"],
            "terminationGracePeriodSeconds": spec["terminationGracePeriodSeconds"],
            "containers": [
                {field: value for field, value in container.items() if field != "volumeMounts"}
            ],
        },
    }


def small_pod(annotations: Mapping[str, str]) -> Object:
    """Return the manifest of a small pod whose scheduler does not exist."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "bench-", "annotations": dict(annotations)},
        "spec": {
            "schedulerName": NO_SCHEDULER,
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "busybox", "args": ["sleep", "1"]}],
        },
    }
