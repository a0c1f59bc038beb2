"""Check that the compared servers are equivalent: each adds the same gate."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.request
from collections.abc import Sequence
from typing import Any

from bench import reviews
from bench.servers import OURS, BenchError, Server
from holdfast.webhook.model.annotations import HELD_ANNOTATION, HELD_LABEL, PROFILE_ANNOTATION
from tests.support.fakes import apply_patch

OWN_ANNOTATIONS = (HELD_ANNOTATION, PROFILE_ANNOTATION)
"""Annotations that Holdfast adds along with the gate and a label. Peers do not add them."""


def check(servers: Sequence[Server]) -> None:
    """Send the same pod to all servers. Raises BenchError if their results differ."""
    pods = {server.name: _made(server) for server in servers}
    ours = pods[OURS]
    if ours["spec"]["schedulingGates"] != [{"name": reviews.GATE}]:
        raise BenchError(f"{OURS} does not hold the pod: {ours['spec']}")
    for name, pod in pods.items():
        if _plain(pod) != _plain(ours):
            raise BenchError(f"{name} and {OURS} return different pods: {pod}")
        _validates(next(server for server in servers if server.name == name), pod)


def _made(server: Server) -> dict[str, Any]:
    pod = reviews.pod()
    response = _asked(server, "/mutate", reviews.review(pod))
    if not response["allowed"]:
        raise BenchError(f"{server.name} rejects the pod: {response}")
    return dict(apply_patch(pod, json.loads(base64.b64decode(response["patch"]))))


def _validates(server: Server, pod: dict[str, Any]) -> None:
    response = _asked(server, "/validate", reviews.review(pod))
    if not response["allowed"]:
        raise BenchError(f"{server.name} rejects the pod that it mutated: {response}")


def text(server: Server, path: str, body: bytes | None = None) -> str:
    """Return the body of a server's response to a POST of `body`, or to a GET without one."""
    context = ssl._create_unverified_context()  # noqa: S323 - issued by the benchmark
    url = f"https://127.0.0.1:{server.port}{path}"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, context=context, timeout=10) as response:
        return str(response.read(), "utf-8")


def _asked(server: Server, path: str, body: bytes) -> dict[str, Any]:
    return dict(json.loads(text(server, path, body))["response"])


def _plain(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod without Holdfast's metadata, and without the empty fields of typed clients."""
    plain: dict[str, Any] = json.loads(json.dumps(pod))
    for key in OWN_ANNOTATIONS:
        plain["metadata"]["annotations"].pop(key, None)
    plain["metadata"].get("labels", {}).pop(HELD_LABEL, None)
    result: dict[str, Any] = _without_empty(plain)
    return result


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        fields = {key: _without_empty(field) for key, field in value.items()}
        return {key: field for key, field in fields.items() if field not in ({}, None, [])}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value
