"""Seeds of each target in addition to the corpus, from tables and builders of other tests."""

import json
from collections.abc import Callable
from typing import Any

import yaml

from holdfast.webhook.model import kubevirt
from tests.server.shapes import ENDLESS, HIDDEN, OURS, SHAPES
from tests.support.after_values import OBJECTS
from tests.support.builders import held, make_pod, make_review
from tests.support.config_cases import FILES, HEAD
from tests.support.delay_values import DELAYS, INSTANTS
from tests.support.hostile import CONFIGURATION
from tests.support.kubeconfigs import RIGHT
from tests.support.vm_builders import VM_UID, make_launcher
from tests.support.window_values import WINDOWS

SHORT = 100
"""Values with fewer bytes are used as seeds; some values in the tables have megabytes."""


def seeds(target: str) -> list[bytes]:
    makers: dict[str, Callable[[], list[bytes]]] = {
        "reviews": _reviews,
        "configuration": _configurations,
        "kubeconfig": _kubeconfigs,
        "requests": _requests,
        "delays": lambda: _values(DELAYS),
        "instants": lambda: _values(INSTANTS),
        "hints": lambda: [b"delay=15s,not-before=2026-12-24T17:00:00Z,jitter=1h", b"x=1s"],
        "windows": lambda: _values(WINDOWS),
        "paces": lambda: [b"4", b"10/1m", b"4,10/1m30s", b"1/24h", b"10000/1ms", b"web"],
        "waits": lambda: _values(OBJECTS),
        "objects": lambda: [b"{}", b'{"a":[1,{"b":"]"}]}', rb'"\"}"', b"[" * 300 + b"]" * 300],
        "freezes": lambda: [b"why\n2026-12-24T17:00:00Z", b"why\nsoon", b"\n", b"why"],
    }
    return makers[target]()


def _requests() -> list[bytes]:
    streams = [*SHAPES.values(), *OURS.values(), HIDDEN, *(head for head, _ in ENDLESS.values())]
    return [cuts + stream for stream in streams for cuts in (bytes(3), b"\x04\x20\x40")]


def _values(rows: Any) -> list[bytes]:
    return [row.value.encode() for row in rows if len(row.value) < SHORT]


def _reviews() -> list[bytes]:
    delay_annotations = {"delay": "15", "holdfast.dev/jitter": "5s", "type": "x"}
    instant_annotations = {"holdfast.dev/not-before": "2026-12-24T18:00:00Z"}
    pod = make_pod(delay_annotations, labels={"type": "x"})
    template = {"template": {"metadata": pod["metadata"], "spec": pod["spec"]}, "replicas": 2}

    def workload(group: str, kind: str, spec: Any) -> Any:
        return make_review(
            {"metadata": {"name": "w"}, "spec": spec},
            kind={"group": group, "version": "v1", "kind": kind},
        )

    launcher = make_review(make_launcher(), userInfo={"username": kubevirt.CONTROLLER_ACCOUNT})
    reviews = [
        make_review(pod),
        make_review(make_pod(instant_annotations)),
        make_review(held(delay_annotations), operation="UPDATE", old=held({"delay": "20"})),
        workload("apps", "Deployment", template),
        workload("batch", "CronJob", {"jobTemplate": {"spec": template}}),
        workload("kubevirt.io", kubevirt.VM, template),
        launcher,
        launcher | {"vm": {kubevirt.STICKY_NODE: "node-1", kubevirt.STICKY_NODE_UID: VM_UID}},
    ]
    return [json.dumps(review, separators=(",", ":")).encode() for review in reviews]


def _configurations() -> list[bytes]:
    texts = [CONFIGURATION, *(HEAD + case.values[0] for case in FILES)]
    contents = [text.encode() for text in texts if len(text) < 20 * SHORT]
    return [*contents, *(json.dumps(yaml.safe_load(text)).encode() for text in texts[:1])]


def _kubeconfigs() -> list[bytes]:
    user: dict[str, Any] = {"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}
    changes: list[dict[str, Any]] = [
        {},
        {"users": [{"name": "u", "user": user | {"exec": user["exec"] | {"command": "x"}}}]},
        {"users": [{"name": "u", "user": {"client-certificate-data": "AAAA"}}]},
        {"clusters": [{"name": "c", "cluster": {"server": "x", "proxy-url": "http://[::1]:1"}}]},
    ]
    return [json.dumps(RIGHT | change).encode() for change in changes]
