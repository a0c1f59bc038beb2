"""The application as tests with hostile input ask it, and what has to hold of each answer."""

from __future__ import annotations

import base64
import json
import logging
from typing import Any

from tests.fakes import FakeLookup, apply_patch
from tests.unit.builders import CREATED_MS
from tests.unit.vm_builders import make_vm, make_vmi
from webhook import config, plugins, vms
from webhook.app import create_app
from webhook.framework import Handle
from webhook.logs import Json, OneLine
from webhook.metrics import ServerMetrics
from webhook.objects import Pod
from webhook.pipeline import Pipeline

PATHS = ["/mutate", "/validate"]
EVIL = "\u202e\x1b[2J\r\nERROR forged\x00\u2028" + "é" * 3
CONFIGURATION = """
apiVersion: holdfast.dev/v1alpha1
kind: HoldfastConfiguration
profiles:
- schedulerName: other
  runAllFilters: false
- pluginConfig:
  - name: placement
    args:
      rules:
      - {name: space, when: {annotation: type, exists: true}, nodeSelector: {role: edge}}
      - {name: late, when: {label: type, exists: true}, onConflict: refuse, resolveAtRelease: true,
         require: [{key: zone, operator: In, values: [a]}], prefer: [{weight: 1,
         require: [{key: zone, operator: Exists}]}], tolerations: [{operator: Exists}]}
"""
_VM, _VMI = vms.vm_path("default", "vm"), vms.vmi_path("default", "vm")


class Lines(logging.Handler):
    """Takes down what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += [OneLine().format(record), Json().format(record)]


class Server:
    """The application with its log, in a cluster of one VM."""

    def __init__(self) -> None:
        self.metrics = ServerMetrics()
        self.lookup = FakeLookup()
        self.annotate_vm({})
        handle = Handle()
        handle.connect(lookup=self.lookup)
        self.pipeline: Pipeline = config.build_pipeline(
            config.parse(CONFIGURATION.encode(), "x"),
            plugins.registry([]),
            source="x",
            timer=lambda: 0.0,
            observe=self.metrics.observe_plugin,
            handle=handle,
        )
        app = create_app(self.pipeline, self.metrics, now_ms=lambda: CREATED_MS)
        self.client = app.test_client()
        self.log = Lines()

    def annotate_vm(self, annotations: dict[str, str]) -> None:
        self.lookup.objects = {_VM: make_vm(annotations), _VMI: make_vmi()}

    def ask(self, path: str, content: bytes) -> tuple[int, bytes]:
        """Send a body; `log` then has the lines of this request alone."""
        self.log.lines.clear()
        self.lookup.asked.clear()
        logger = logging.getLogger("holdfast")
        level = logger.level
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self.log)
        try:
            answer = self.client.post(path, data=content, content_type="application/json")
        finally:
            logger.removeHandler(self.log)
            logger.setLevel(level)
        return answer.status_code, answer.data

    def labels(self) -> set[tuple[str, str]]:
        """Give all values of all labels that any series has."""
        return {
            label
            for metric in self.metrics.registry.collect()
            for sample in metric.samples
            for label in sample.labels.items()
        }


SERVER = Server()


def check(path: str, content: bytes, server: Server = SERVER) -> Any:
    """Send a body, check what has to hold for each, and give the response; None for a 400."""
    status, answer = server.ask(path, content)
    for line in server.log.lines:
        assert line.isprintable(), line
        assert len(line) < 3_000, line
    assert status in {200, 400}, answer
    if status == 400:
        assert answer.decode().rstrip("\n").isprintable()
        assert len(answer) < 1_000
        return None
    read = json.loads(answer)
    response = read["response"]
    assert (read["apiVersion"], read["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert isinstance(response["allowed"], bool)
    assert all(len(one.encode()) <= 256 for one in response.get("warnings", ()))
    if not response["allowed"]:
        assert response["status"]["code"] == 422
        assert 0 < len(response["status"]["message"]) <= 2_000
        assert "patch" not in response
    return response


def check_document(path: str, review: Any, server: Server = SERVER) -> Any:
    """Check an answer as `check` does, and that it is the answer to this review."""
    response = check(path, json.dumps(review).encode(), server)
    if response is not None:
        check_answer(response, review)
    return response


def check_answer(response: Any, review: Any) -> None:
    """Check that a response belongs to the review, and that its patch makes a pod of its object."""
    assert response["uid"] == review["request"]["uid"]
    if "patch" in response:
        operations = json.loads(base64.b64decode(response["patch"]))
        Pod.of(apply_patch(review["request"]["object"], operations))
