"""Watch the pod of a Deployment, with the time of each change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from holdfast.webhook.kube.client import Cluster

_PODS = "/api/v1/namespaces/default/pods"


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of the pod `age` seconds after its creationTimestamp."""

    age: float
    pod: dict[str, Any]

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.pod["metadata"]["name"])

    @property
    def gates(self) -> list[str]:
        """The names of its scheduling gates."""
        return [gate["name"] for gate in self.pod["spec"].get("schedulingGates", ())]

    @property
    def node(self) -> str:
        """The name of its node, empty if it is not bound."""
        return str(self.pod["spec"].get("nodeName", ""))

    @property
    def running(self) -> bool:
        """Whether its phase is Running."""
        return bool(self.pod["status"].get("phase") == "Running")

    def annotation(self, key: str) -> str:
        """Return the value of an annotation, empty if it is not set."""
        return str(self.pod["metadata"].get("annotations", {}).get(key, ""))


def observe(cluster: Cluster, selector: str, seconds: float) -> Iterator[Observation]:
    """Watch the pods that match a label selector for `seconds`, and yield each change."""
    query: dict[str, str | int] = {"labelSelector": selector, "watch": 1}
    query["timeoutSeconds"] = int(seconds)
    for line in cluster.lines(_PODS, query=query, timeout=seconds + 5):
        now = time.time()
        event = msgspec.json.decode(line)
        if event["type"] in {"ADDED", "MODIFIED"}:
            pod = event["object"]
            created = msgspec.convert(pod["metadata"]["creationTimestamp"], datetime)
            yield Observation(now - created.timestamp(), pod)
