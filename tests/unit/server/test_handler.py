import base64
import json
import logging
from functools import partial
from typing import Any

import pytest

from holdfast.webhook.framework.plugin import Context, Plugin, Result, success
from holdfast.webhook.model.annotations import HELD_ANNOTATION, NOT_BEFORE, PROFILE_ANNOTATION
from holdfast.webhook.model.edits import SetAnnotation
from holdfast.webhook.model.kubevirt import STICKY_NODE, STICKY_NODE_UID
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.delay import Delay
from holdfast.webhook.server.app import create_app
from holdfast.webhook.server.handler import (
    BODY_LIMIT,
    JSON,
    TEXT,
    AdmissionHandler,
    HttpResponse,
    PreparedReview,
)
from holdfast.webhook.telemetry.metrics import ServerMetrics
from tests.support.builders import (
    CREATED_MS,
    DEPLOYMENT,
    GATE,
    HOUR,
    VM,
    body,
    held,
    instant,
    make_pipeline,
    make_pod,
)
from tests.support.fakes import apply_patch, status_error
from tests.support.scripted import Blocking, Scripted, answering, pipeline_of, raising
from tests.support.vm_builders import VM_UID, make_vm

ALLOWED = {"uid": "c0ffee", "allowed": True, "auditAnnotations": {"review": "c0ffee"}}


class World:
    """A handler at CREATED_MS, called directly or through Flask; by default with all plugins."""

    def __init__(self, *plugins: Plugin, by_flask: bool = False, **settings: Any) -> None:
        self.metrics = ServerMetrics()
        self.ready = True
        make = partial(pipeline_of, *plugins) if plugins else partial(make_pipeline, **settings)
        self.pipeline = make(observe=self.metrics.observe_plugin)
        self.handler = AdmissionHandler(
            self.pipeline,
            self.metrics,
            digest="abc",
            now_ms=lambda: CREATED_MS,
            ready=lambda: self.ready,
        )
        self.client = create_app(self.handler).test_client() if by_flask else None

    def post(self, path: str, content: bytes, kind: str = JSON, coding: str = "") -> HttpResponse:
        if self.client is None:
            return self.handler.handle(path, kind, content, coding, "127.0.0.1")
        headers = {"Content-Encoding": coding} if coding else {}
        response = self.client.post(path, data=content, content_type=kind, headers=headers)
        return HttpResponse(response.status_code, response.data, response.content_type)

    def page(self, method: str, path: str) -> HttpResponse:
        if self.client is None:
            return self.handler.page(method, path)
        response = self.client.open(path, method=method)
        return HttpResponse(response.status_code, response.data, response.content_type)

    def answer(self, path: str, content: bytes) -> Any:
        response = self.post(path, content)
        assert (response.status, response.content_type) == (200, JSON)
        return json.loads(response.body)["response"]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"holdfast_{name}", labels)

    def reviews(self, path: str, outcome: str) -> float | None:
        return self.metric("reviews_total", path=path, outcome=outcome)


@pytest.fixture(params=[False, True], ids=["handler", "flask"])
def world(request: pytest.FixtureRequest) -> World:
    return World(by_flask=request.param)


# --- reviews -----------------------------------------------------------------------------------


def test_mutate_holds_a_pod(world: World) -> None:
    pod = make_pod({"delay": "15"})
    response = world.answer("/mutate", body(pod))
    patched = apply_patch(pod, json.loads(base64.b64decode(response["patch"])))

    assert (response["uid"], response["allowed"]) == ("c0ffee", True)
    assert response["patchType"] == "JSONPatch"
    assert patched["spec"]["schedulingGates"] == [{"name": GATE}]
    assert patched["metadata"]["annotations"] == {
        "delay": "15",
        HELD_ANNOTATION: "delay=15s",
        PROFILE_ANNOTATION: "*",
    }
    assert world.reviews("mutate", "patched") == 1


@pytest.mark.parametrize(
    ("path", "pod"), [("mutate", make_pod()), ("validate", held({"delay": "15"}))]
)
def test_other_and_held_pods_are_left_alone(world: World, path: str, pod: Any) -> None:
    assert world.answer(f"/{path}", body(pod)) == ALLOWED
    assert world.reviews(path, "allowed") == 1


@pytest.mark.parametrize("path", ["mutate", "validate"])
def test_invalid_pod_is_rejected_and_logged(
    world: World, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.review")
    response = world.answer(f"/{path}", body(make_pod({"delay": "soon\n"})))

    assert {"uid", "allowed", "status", "auditAnnotations"} == set(response)
    assert not response["allowed"]
    assert (response["status"]["code"], response["status"]["reason"]) == (422, "Invalid")
    assert response["status"]["message"].startswith(
        'annotation delay: invalid value "soon\\n": use'
    )
    assert world.reviews(path, "refused") == 1
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"{path} refused: default/web-0 uid=c0ffee peer=127.0.0.1: annotation "
    )


def test_warnings_are_returned(world: World) -> None:
    response = world.answer("/mutate", body(make_pod({"delay": "15"}, node="n1")))

    assert response["warnings"] == [
        "holdfast: not held: spec.nodeName is already set: use a nodeSelector instead"
    ]
    assert "patch" not in response


def test_sticky_record_removed_by_an_update_is_restored(world: World) -> None:
    record = {STICKY_NODE: "node-1", STICKY_NODE_UID: VM_UID}
    old, new = make_vm(record), make_vm()
    response = world.answer("/mutate", body(new, operation="UPDATE", old=old, kind=VM))
    operations = json.loads(base64.b64decode(response["patch"]))

    assert apply_patch(new, operations) == old
    assert world.reviews("mutate", "patched") == 1.0
    assert world.post("/mutate", body(new, kind=VM)).status == 400


@pytest.mark.parametrize(
    ("milliseconds", "patched"), [(HOUR, True), (-HOUR, False)], ids=["future", "past"]
)
def test_injected_clock_is_used(world: World, milliseconds: int, patched: bool) -> None:
    pod = make_pod({NOT_BEFORE: instant(CREATED_MS + milliseconds)})

    assert patched == ("patch" in world.answer("/mutate", body(pod)))


def test_system_clock_is_the_default() -> None:
    handler = AdmissionHandler(World().pipeline, ServerMetrics(), digest="")
    content = body(make_pod({NOT_BEFORE: "2020-01-01T00:00:00Z"}))
    response = json.loads(handler.handle("/mutate", JSON, content).body)

    assert "patch" not in response["response"]
    assert handler.page("GET", "/readyz").body == b"ok\n"


# --- invalid requests and failures -------------------------------------------------------------


@pytest.mark.parametrize("path", ["mutate", "validate"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000], ids=["empty", "truncated", "nested"]
)
def test_invalid_body_is_rejected_and_logged_with_its_peer(
    world: World, path: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    response = world.post(f"/{path}", content)

    assert response.status == 400
    assert response.body.decode().startswith(
        "the body is not an AdmissionReview of admission.k8s.io/v1: "
    )
    assert world.reviews(path, "bad") == 1
    (record,) = caplog.records
    assert record.getMessage().endswith(" peer=127.0.0.1")


@pytest.mark.parametrize("kind", ["k" * 100_000, "\u23f0" * 100_000], ids=["plain", "escaped"])
def test_error_for_a_long_invalid_review_is_short(world: World, kind: str) -> None:
    response = world.post("/mutate", json.dumps({"kind": kind}).encode())

    assert response.status == 400
    assert len(response.body.decode()) < 500
    assert response.body.decode().rstrip().endswith("- at `$.kind`")


def test_workload_sent_to_mutate_is_rejected_with_advice(world: World) -> None:
    response = world.post("/mutate", template_review())

    assert response.status == 400
    assert response.body.decode() == (
        "unexpected review of kind Deployment at /mutate; register only pods and updates of VMs "
        "there\n"
    )


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("text/plain", 415),
        ("application/yaml", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
    ],
)
def test_content_type(world: World, content_type: str, status: int) -> None:
    response = world.post("/mutate", body(), content_type)

    assert status == response.status
    if status == 415:
        assert response.body.decode() == "send an AdmissionReview as application/json\n"
        assert world.reviews("mutate", "bad") == 1


@pytest.mark.parametrize("path", ["mutate", "validate"])
@pytest.mark.parametrize(
    ("coding", "status"), [("identity", 200), ("gzip", 415), ("GZip", 415), ("br, gzip", 415)]
)
def test_content_encoding(world: World, path: str, coding: str, status: int) -> None:
    """The body itself is readable: only its header is rejected."""
    response = world.post(f"/{path}", body(), coding=coding)

    assert status == response.status
    if status == 415:
        assert response.body == b"send an AdmissionReview without Content-Encoding\n"
        assert world.reviews(path, "bad") == 1


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 413)], ids=["just fits", "too large"])
def test_flask_enforces_the_body_limit(more: int, status: int) -> None:
    content = body()
    content += b" " * (BODY_LIMIT - len(content) + more)

    assert status == World(by_flask=True).post("/mutate", content).status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/mutate", 405),
        ("PUT", "/validate", 405),
        ("OPTIONS", "/mutate", 405),
        ("POST", "/healthz", 405),
        ("DELETE", "/metrics", 405),
        ("GET", "/", 404),
        ("POST", "/mutate/", 404),
        ("GET", "/static/x", 404),
        ("GET", "/../etc/passwd", 404),
    ],
)
def test_unsupported_methods_and_paths(world: World, method: str, path: str, status: int) -> None:
    assert status == world.page(method, path).status


class Failing(Delay):
    def mutate(self, pod: Pod, context: Context) -> Result:
        raise RuntimeError(f"secret of {pod.metadata.name} in {context.profile}")


FAILED = HttpResponse(500, b"the review failed; the reason is in the webhook's log\n", TEXT)


def test_plugin_failure_returns_500_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World(known={"delay": Failing})

    assert world.handler.handle("/mutate", JSON, body(make_pod({"delay": "1"}))) == FAILED
    (record,) = caplog.records
    assert record.getMessage() == "mutate failed: default/web-0 uid=c0ffee"
    assert "plugin 'delay' failed in mutate: RuntimeError: secret of web-0 in *" in caplog.text
    assert world.reviews("mutate", "failed") == 1
    labels = {"plugin": "delay", "extension_point": "mutate", "status": "Error", "profile": "*"}
    assert world.metric("plugin_execution_duration_seconds_count", **labels) == 1


UNABLE = Scripted(raising(status_error(503)), raising(status_error(503)))


@pytest.mark.parametrize("path", ["mutate", "validate"])
def test_failed_lookup_rejects_the_pod_with_the_reason(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With HTTP 500, forged pods could raise the error rate, and no user would see the reason."""
    world = World(UNABLE)
    http_response = world.handler.handle(f"/{path}", JSON, body(make_pod({"scripted": ""})))

    assert http_response.status == 200
    reason = f"plugin 'scripted' could not look up what it needs: {status_error(503)}"
    response = json.loads(http_response.body)["response"]
    assert response["allowed"] is False
    assert response["status"] == {
        "code": 429,
        "reason": "TooManyRequests",
        "message": f"{reason}; try again",
    }
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == f"{path} failed: default/web-0 uid=c0ffee: {reason}"
    assert world.reviews(path, "failed") == 1


def test_failed_lookup_for_a_template_returns_500() -> None:
    assert World(UNABLE).handler.handle("/validate", JSON, template_review()) == FAILED


def test_response_that_cannot_be_built_returns_500(caplog: pytest.LogCaptureFixture) -> None:
    key: Any = 5
    edits = success(SetAnnotation("a", "1"), SetAnnotation(key, "1"))
    world = World(Scripted(answering(edits)))

    assert world.handler.handle("/mutate", JSON, body(make_pod({}))) == FAILED
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    counts = [world.reviews("mutate", outcome) for outcome in ("failed", "patched", "allowed")]
    assert counts == [1, 0, 0]


# --- reviews that may block --------------------------------------------------------------------


def prepared(world: World, content: bytes | None = None, path: str = "/mutate") -> PreparedReview:
    review = world.handler.prepare(path, JSON, body() if content is None else content)
    assert isinstance(review, PreparedReview)
    return review


def template_review() -> bytes:
    template = {"metadata": {}, "spec": make_pod()["spec"]}
    return body({"metadata": {"name": "w"}, "spec": {"template": template}}, kind=DEPLOYMENT)


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
def test_undecided_pod_is_rejected_with_the_reason(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    document = json.loads(world.handler.reject_full(prepared(world, path=path)).body)

    assert document["apiVersion"] == "admission.k8s.io/v1"
    assert document["response"] == {
        "uid": "c0ffee",
        "allowed": False,
        "auditAnnotations": {"review": "c0ffee"},
        "status": {
            "code": 429,
            "reason": "TooManyRequests",
            "message": "too many reviews are waiting on plugins that block; try again",
        },
    }
    assert world.metric("reviews_turned_away_total") == 1
    assert caplog.messages == ["rejected, too many reviews are waiting: default/web-0 uid=c0ffee"]


def test_undecided_template_returns_429() -> None:
    world = World()
    review = prepared(world, template_review(), "/validate")

    assert world.handler.reject_full(review).status == 429
    assert world.handler.reject_late(review, 2.5) == (
        429,
        b"a plugin did not finish the review within 2.5 s; try again\n",
        TEXT,
        "",
    )


DEADLINES = "plugin_deadlines_exceeded_total"


def test_plugin_that_exceeds_its_deadline_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def give_up(_pod: Pod, _context: Context) -> Result:
        world.handler.reject_late(review, 2.5)  # as the event loop does while this still runs
        return success()

    world = World(Scripted(), Blocking(give_up))
    names = ("blocking", "unknown", "scripted")
    assert [world.metric(DEADLINES, plugin=name) for name in names] == [0, 0, None]
    review = prepared(world, body(make_pod({"scripted": ""})))
    assert review.may_block
    world.handler.decide(review)

    assert world.metric(DEADLINES, plugin="blocking") == 1
    assert caplog.messages == [
        "given up at its deadline: default/web-0 uid=c0ffee, in plugin blocking"
    ]


def test_deadline_exceeded_outside_any_plugin() -> None:
    world = World(Blocking())
    world.handler.reject_late(prepared(world), 2.5)

    assert world.metric(DEADLINES, plugin="unknown") == 1


def test_review_with_mismatched_namespaces_may_block() -> None:
    """Only a forged review has two namespaces; plugins could look up objects in the other."""
    world, pod = World(), make_pod({"delay": "15"}, namespace="default")
    for namespace, may_block in (("default", False), ("other", True), ("", True)):
        assert prepared(world, body(pod, namespace=namespace)).may_block is may_block


@pytest.mark.parametrize(("length", "status"), [(253, 200), (254, 400)])
def test_uid_length_is_limited(world: World, length: int, status: int) -> None:
    assert world.post("/mutate", body(uid="u" * length)).status == status


# --- health and metrics ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ready", "expected"), [(True, (200, "ok\n")), (False, (503, "not ready\n"))]
)
def test_readiness(world: World, ready: bool, expected: tuple[int, str]) -> None:
    world.ready = ready
    response = world.page("GET", "/readyz")

    assert expected == (response.status, response.body.decode())
    assert world.page("GET", "/healthz").body == b"ok\n"


def test_conditions_page_returns_the_digest(world: World) -> None:
    assert world.page("GET", "/conditions").body == b"abc\n"


def test_metrics(world: World) -> None:
    world.answer("/mutate", body(make_pod({"delay": "15"})))
    response = world.page("GET", "/metrics")

    assert ServerMetrics.content_type == response.content_type
    count, end = 'duration_seconds_count{extension_point="mutate",', 'profile="*",status="Success"}'
    for sample in (
        'reviews_total{outcome="patched",path="mutate"} 1.0',
        "build_info{version=",
        f'plugin_execution_{count}plugin="delay",{end} 1.0',
        f"framework_extension_point_{count}{end} 1.0",
    ):
        assert f"holdfast_{sample}" in response.body.decode()


def test_body_limit_fits_two_objects_of_etcds_maximum_size() -> None:
    assert BODY_LIMIT > 2 * 1.5 * 2**20
