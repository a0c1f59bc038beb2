"""The application as tests with hostile input ask it, and what has to hold of each answer."""

from __future__ import annotations

import asyncio
import atexit
import base64
import json
import logging
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from tests.fakes import FakeLookup, apply_patch
from tests.unit.builders import CREATED_MS
from tests.unit.vm_builders import make_vm, make_vmi
from webhook import config, plugins, vms
from webhook.app import create_app, deadline_reporter, full_reporter, prepare, refuse_pod
from webhook.asgi import Answer, Bridge, Scope
from webhook.bodies import Message
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
      - {name: space, when: {annotation: type, exists: true}, nodeSelector: {role: edge},
         tolerations: [{operator: Exists}]}
      - {name: near, when: {annotation: type, exists: true},
         require: [{key: disk, operator: Exists}, {key: rack, operator: NotIn, values: [a, b]}]}
      - {name: late, when: {label: type, exists: true}, onConflict: refuse, resolveAtRelease: true,
         require: [{key: zone, operator: In, values: [a]}], prefer: [{weight: 1,
         require: [{key: zone, operator: Exists}]}]}
"""
T = TypeVar("T")
PATIENCE = 60.0
"""Seconds for a review that may block: none is given up for want of a processor."""
_VM, _VMI = vms.vm_path("default", "vm"), vms.vmi_path("default", "vm")


class Lines(logging.Handler):
    """Takes down what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.threads: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.threads.add((record.threadName or "").partition("_")[0])
        self.lines += [OneLine().format(record), Json().format(record)]


class Server:
    """The application as `holdfast serve` runs it, with its log, in a cluster of one VM.

    What comes is given to the bridge as a connection gives it; what may block goes to its pool.
    `ask_flask` is the application without the bridge.
    """

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
        self.bridge = Bridge(
            app.wsgi_app,
            prepare=prepare(self.pipeline),
            on_deadline=deadline_reporter(self.pipeline, self.metrics),
            on_full=full_reporter(self.metrics),
            refuse=refuse_pod,
            deadline=PATIENCE,
        )
        self.log = Lines()

    def annotate_vm(self, annotations: dict[str, str]) -> None:
        self.lookup.objects = {_VM: make_vm(annotations), _VMI: make_vmi()}

    def ask(self, path: str, content: bytes) -> tuple[int, bytes]:
        """Send a body; `log` then has the lines of this request alone."""
        status, _, answer = self._logged(lambda: self._answer(path, content))
        return status, answer

    def ask_flask(self, path: str, content: bytes) -> tuple[int, bytes]:
        """Do as `ask` does, without the bridge."""
        answer = self._logged(
            lambda: self.client.post(path, data=content, content_type="application/json")
        )
        return answer.status_code, answer.data

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

    def _answer(self, path: str, content: bytes) -> Answer:
        scope = _scope(path, len(content))
        if len(content) % 2:  # every other one goes the way of what is no usual request
            return _loop().run_until_complete(self._answer_as_asgi(scope, content))
        answer = self.bridge.begin(scope, content)
        return answer if isinstance(answer, tuple) else _loop().run_until_complete(answer)

    async def _answer_as_asgi(self, scope: Scope, content: bytes) -> Answer:
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": content}

        async def send(message: Message) -> None:
            sent.append(message)

        await self.bridge(scope, receive, send)
        start, rest = sent
        return start["status"], start["headers"], rest["body"]

    def labels(self) -> set[tuple[str, str]]:
        """Give all values of all labels that any series has."""
        return {
            label
            for metric in self.metrics.registry.collect()
            for sample in metric.samples
            for label in sample.labels.items()
        }


def _scope(path: str, length: int) -> Scope:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "https",
        "path": path,
        "query_string": b"timeout=3s",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % length),
        ],
    }


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Give the loop of all servers: one each would cost more than what is asked."""
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


SERVER = Server()


def check(path: str, content: bytes, server: Server = SERVER) -> Any:
    """Send a body, check what has to hold for each, and give the response; None for a 400."""
    status, answer = server.ask(path, content)
    for line in server.log.lines:
        assert line.isprintable(), line
        assert len(line) < 3_000, line
    assert status in {200, 400}, (answer, server.log.lines[-1:])
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
