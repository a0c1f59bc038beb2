"""Watching one Deployment's pod through its life, with the time of each step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from webhook.cluster import Cluster

_PODS = "/api/v1/namespaces/default/pods"


@dataclass(frozen=True, slots=True)
class Sighting:
    """The pod as it was seen, `age` seconds after its creationTimestamp."""

    age: float
    pod: dict[str, Any]

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.pod["metadata"]["name"])

    @property
    def gates(self) -> list[str]:
        """Its scheduling gates."""
        return [gate["name"] for gate in self.pod["spec"].get("schedulingGates", ())]

    @property
    def node(self) -> str:
        """The node that it is bound to, or nothing."""
        return str(self.pod["spec"].get("nodeName", ""))

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return bool(self.pod["status"].get("phase") == "Running")

    def annotation(self, key: str) -> str:
        """One of its annotations."""
        return str(self.pod["metadata"].get("annotations", {}).get(key, ""))


def sightings(cluster: Cluster, selector: str, seconds: float) -> Iterator[Sighting]:
    """Watch the pods of a label selector, from now on, for so many seconds."""
    query: dict[str, str | int] = {"labelSelector": selector, "watch": 1}
    query["timeoutSeconds"] = int(seconds)
    for line in cluster.lines(_PODS, query=query, timeout=seconds + 5):
        seen = time.time()
        event = msgspec.json.decode(line)
        if event["type"] in {"ADDED", "MODIFIED"}:
            pod = event["object"]
            created = msgspec.convert(pod["metadata"]["creationTimestamp"], datetime)
            yield Sighting(seen - created.timestamp(), pod)
