"""Send hostile input to the application, and check what every response must have."""

import asyncio
import atexit
import base64
import json
import logging
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.server.app import create_app
from holdfast.webhook.server.handler import JSON, AdmissionHandler, HttpResponse
from holdfast.webhook.server.offload import AsyncHandler
from holdfast.webhook.telemetry.logs import Json, OneLine
from holdfast.webhook.telemetry.metrics import ServerMetrics
from tests.support.builders import CREATED_MS, handle_with, make_pipeline
from tests.support.fakes import FakeLookup, apply_patch
from tests.support.vm_builders import make_vm, make_vmi

PATHS = ["/mutate", "/validate"]
EVIL = "\u202e\x1b[2J\r\nERROR forged\x00\u2028" + "é" * 3
CONFIGURATION = """
apiVersion: holdfast.dev/v1beta1
kind: HoldfastConfiguration
profiles:
- schedulerName: other
  runAllFilters: false
- pluginConfig:
  - name: placement
    args:
      rules:
      - {name: space, when: {annotation: type, exists: true}, nodeSelector: {role: edge},
         tolerations: [{operator: Exists}]}
      - {name: near, when: {annotation: type, exists: true},
         require: [{key: disk, operator: Exists}, {key: rack, operator: NotIn, values: [a, b]}]}
      - {name: late, when: {label: type, exists: true}, onConflict: reject, resolveAtRelease: true,
         require: [{key: zone, operator: In, values: [a]}], prefer: [{weight: 1,
         require: [{key: zone, operator: Exists}]}]}
"""
T = TypeVar("T")
PATIENCE = 60.0
"""Seconds for a review that may block; long enough for a busy test machine."""
_VM, _VMI = kubevirt.vm_path("default", "vm"), kubevirt.vmi_path("default", "vm")


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.threads: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.threads.add((record.threadName or "").partition("_")[0])
        self.lines += [OneLine().format(record), Json().format(record)]


class Server:
    """The application as `holdfast serve` runs it, with its log, in a cluster of one VM.

    The handler gets a body as from a connection, and reviews that may block run in its pool.
    `ask_flask` uses the Flask application instead, and `ask_here` uses no other thread.
    """

    def __init__(self) -> None:
        self.metrics = ServerMetrics()
        self.lookup = FakeLookup()
        self.annotate_vm({})
        observe, handle = self.metrics.observe_plugin, handle_with(lookup=self.lookup)
        self.pipeline = make_pipeline(CONFIGURATION, observe=observe, handle=handle)
        handler = AdmissionHandler(
            self.pipeline, self.metrics, digest="", now_ms=lambda: CREATED_MS
        )
        self.client = create_app(handler).test_client()
        self.handler = AsyncHandler(handler, deadline=PATIENCE)
        self.log = Lines()

    def annotate_vm(self, annotations: dict[str, str]) -> None:
        self.lookup.objects = {_VM: make_vm(annotations), _VMI: make_vmi()}

    def ask(self, path: str, content: bytes) -> tuple[int, bytes]:
        """Send a body; `log` then has only the lines of this request."""
        response = self._logged(lambda: self._answer(path, content))
        return response.status, response.body

    def ask_flask(self, path: str, content: bytes) -> tuple[int, bytes]:
        response = self._logged(lambda: self.client.post(path, data=content, content_type=JSON))
        return response.status_code, response.data

    def ask_here(self, path: str, content: bytes) -> HttpResponse:
        return self._logged(lambda: self._decide(path, content))

    def _decide(self, path: str, content: bytes) -> HttpResponse:
        handler = self.handler.handler
        prepared = handler.prepare(path, JSON, content, "identity")
        return prepared if isinstance(prepared, HttpResponse) else handler.decide(prepared)

    def _logged(self, act: Callable[[], T]) -> T:
        self.log.lines.clear()
        self.lookup.asked.clear()
        logger = logging.getLogger("holdfast")
        level = logger.level
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self.log)
        try:
            return act()
        finally:
            logger.removeHandler(self.log)
            logger.setLevel(level)

    def _answer(self, path: str, content: bytes) -> HttpResponse:
        async def ask() -> HttpResponse:
            response = self.handler.post(path, JSON, content, "identity")
            return response if isinstance(response, HttpResponse) else await response

        return _loop().run_until_complete(ask())

    def labels(self) -> set[tuple[str, str]]:
        return {
            label
            for metric in self.metrics.registry.collect()
            for sample in metric.samples
            for label in sample.labels.items()
        }


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all servers: one for each server would cost too much."""
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


SERVER = Server()


def check(path: str, content: bytes, server: Server = SERVER) -> Any:
    """Send a body, check the response, and return it; None for a 400."""
    status, body = server.ask(path, content)
    for line in server.log.lines:
        assert line.isprintable(), line
        assert len(line) < 3_000, line
    assert status in {200, 400}, (body, server.log.lines[-1:])
    if status == 400:
        assert body.decode().rstrip("\n").isprintable()
        assert len(body) < 1_000
        return None
    review = json.loads(body)
    response = review["response"]
    assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert isinstance(response["allowed"], bool)
    assert all(len(warning.encode()) <= 256 for warning in response.get("warnings", ()))
    if not response["allowed"]:
        assert response["status"]["code"] == 422
        assert 0 < len(response["status"]["message"]) <= 2_000
        assert "patch" not in response
    return response


def check_document(path: str, review: Any, server: Server = SERVER) -> Any:
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
