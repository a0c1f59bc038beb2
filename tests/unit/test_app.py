from __future__ import annotations

import base64
import json
import logging
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.fakes import apply_patch, status_error
from tests.unit.builders import (
    CREATED_MS,
    GATE,
    HOUR,
    body,
    held,
    instant,
    make_pod,
    make_review,
    read_review,
)
from tests.unit.scripted import Blocking, Scripted, answering, pipeline_of, raising
from webhook import config, plugins, review
from webhook.app import (
    create_app,
    deadline_reporter,
    full_reporter,
    prepare,
    refuse_pod,
)
from webhook.asgi import REVIEW
from webhook.bodies import BODY_LIMIT
from webhook.errors import ReviewError
from webhook.framework import Context, Result, success
from webhook.holds import HELD, NOT_BEFORE, PROFILE
from webhook.metrics import ServerMetrics
from webhook.objects import Pod
from webhook.pipeline import Pipeline
from webhook.plugins.delay import Delay
from webhook.review import PodReview, SetAnnotation

JSON = "application/json"

ALLOWED = {"uid": "c0ffee", "allowed": True, "auditAnnotations": {"review": "c0ffee"}}


class World:
    """The application on the pipeline of an empty configuration, at the time of CREATED.

    `bridged` has reviews come parsed, as the bridge hands them over.
    """

    def __init__(self, *, bridged: bool = False) -> None:
        self.bridged = bridged
        self.metrics = ServerMetrics()
        self.ready = True
        self.pipeline: Pipeline = config.build_pipeline(
            config.Configuration(),
            plugins.registry([]),
            source="x",
            timer=lambda: 0.0,
            observe=self.metrics.observe_plugin,
        )
        self.app = create_app(
            self.pipeline,
            self.metrics,
            now_ms=lambda: CREATED_MS,
            ready=lambda: self.ready,
        )

    @property
    def client(self) -> FlaskClient:
        return self.app.test_client()

    def post(self, path: str, content: bytes, content_type: str = JSON) -> Any:
        parsed = {REVIEW: _parsed(content)} if self.bridged else {}
        return self.client.post(
            path, data=content, content_type=content_type, environ_overrides=parsed
        )

    def answer(self, path: str, content: bytes) -> Any:
        found = self.post(path, content)
        assert found.status_code == 200
        assert found.content_type == JSON
        return found.get_json()["response"]

    def reviews(self, path: str, outcome: str) -> float | None:
        labels = {"path": path, "outcome": outcome}
        return self.metrics.registry.get_sample_value("holdfast_reviews_total", labels)


@pytest.fixture(params=[False, True], ids=["alone", "behind the bridge"])
def world(request: pytest.FixtureRequest) -> World:
    return World(bridged=request.param)


def _parsed(content: bytes) -> PodReview | ReviewError:
    try:
        return review.parse(content)
    except ReviewError as error:
        return error


# --- reviews -----------------------------------------------------------------------------------


def test_mutate_holds_a_pod(world: World) -> None:
    pod = make_pod({"delay": "15"})
    answer = world.answer("/mutate", body(pod))
    patched = apply_patch(pod, json.loads(base64.b64decode(answer["patch"])))

    assert (
        answer["uid"],
        answer["allowed"],
        answer["patchType"],
    ) == ("c0ffee", True, "JSONPatch")
    assert patched["spec"]["schedulingGates"] == [{"name": GATE}]
    assert patched["metadata"]["annotations"] == {"delay": "15", HELD: "delay=15s", PROFILE: "*"}
    assert world.reviews("mutate", "patched") == 1


def test_mutate_leaves_other_pods_alone(world: World) -> None:
    assert world.answer("/mutate", body(make_pod())) == ALLOWED
    assert world.reviews("mutate", "allowed") == 1


@pytest.mark.parametrize("path", ["mutate", "validate"])
def test_refusal(world: World, path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.review")
    answer = world.answer(f"/{path}", body(make_pod({"delay": "soon\n"})))

    assert {"uid", "allowed", "status", "auditAnnotations"} == set(answer)
    assert not answer["allowed"]
    assert (answer["status"]["code"], answer["status"]["reason"]) == (422, "Invalid")
    assert answer["status"]["message"].startswith('annotation delay: "soon\\n" is no duration; ')
    assert world.reviews(path, "refused") == 1
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{path} refused: default/web-0 uid=c0ffee: annotation ")


def test_validate_allows_what_is_held(world: World) -> None:
    answer = world.answer("/validate", body(held({"delay": "15"})))

    assert answer == ALLOWED


def test_warnings_are_answered(world: World) -> None:
    answer = world.answer("/mutate", body(make_pod({"delay": "15"}, node="n1")))

    assert answer["warnings"] == ["holdfast: not held: spec.nodeName is set already"]
    assert "patch" not in answer


def test_template_is_validated(world: World) -> None:
    template = {"metadata": {"annotations": {"delay": "soon"}}}
    deployment = {"metadata": {"name": "w"}, "spec": {"template": template}}
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    answer = world.answer("/validate", body(deployment, kind=kind))

    assert answer["status"]["message"].startswith("spec.template.metadata: annotation delay: ")


@pytest.mark.parametrize(
    ("milliseconds", "patched"), [(HOUR, True), (-HOUR, False)], ids=["ahead", "past"]
)
def test_time_is_the_one_that_was_passed_in(world: World, milliseconds: int, patched: bool) -> None:
    pod = make_pod({NOT_BEFORE: instant(CREATED_MS + milliseconds)})

    assert patched == ("patch" in world.answer("/mutate", body(pod)))


def test_time_of_the_machine_is_the_default() -> None:
    app = create_app(World().pipeline, ServerMetrics())
    past = body(make_pod({NOT_BEFORE: "2020-01-01T00:00:00Z"}))
    answer = app.test_client().post("/mutate", data=past, content_type=JSON).get_json()

    assert "patch" not in answer["response"]
    assert app.test_client().get("/readyz").data == b"ok\n"


# --- what cannot be answered -------------------------------------------------------------------


@pytest.mark.parametrize("path", ["mutate", "validate"])
@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000], ids=["empty", "cut", "nested"])
def test_body_that_is_no_review(world: World, path: str, content: bytes) -> None:
    answer = world.post(f"/{path}", content)

    assert answer.status_code == 400
    assert answer.text.startswith("the body is no AdmissionReview of admission.k8s.io/v1: ")
    assert world.reviews(path, "bad") == 1


@pytest.mark.parametrize("kind", ["k" * 100_000, "\u23f0" * 100_000], ids=["plain", "escaped"])
def test_what_is_no_review_is_told_shortly_however_long_it_is(world: World, kind: str) -> None:
    answer = world.post("/mutate", json.dumps({"kind": kind}).encode())

    assert answer.status_code == 400
    assert len(answer.text) < 500
    assert answer.text.rstrip().endswith("- at `$.kind`")


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
    answer = world.post("/mutate", body(), content_type)

    assert status == answer.status_code
    if status == 415:
        assert answer.text == "send an AdmissionReview as application/json\n"
        assert world.reviews("mutate", "bad") == 1


@pytest.mark.parametrize("path", ["mutate", "validate"])
@pytest.mark.parametrize(
    ("coding", "status"),
    [("identity", 200), ("gzip", 415), ("GZip", 415), ("br, gzip", 415), ("", 415)],
)
def test_content_encoding(world: World, path: str, coding: str, status: int) -> None:
    """The body can be read as it is: only its header is what is refused."""
    answer = world.client.post(
        f"/{path}", data=body(), content_type=JSON, headers={"Content-Encoding": coding}
    )

    assert status == answer.status_code
    if status == 415:
        assert answer.text == "send an AdmissionReview without Content-Encoding\n"
        assert world.reviews(path, "bad") == 1


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 413)], ids=["just fits", "too large"])
def test_size(more: int, status: int) -> None:
    content = body()
    content += b" " * (BODY_LIMIT - len(content) + more)

    assert status == World().post("/mutate", content).status_code  # the bridge has its own limit


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
def test_other_methods_and_paths(world: World, method: str, path: str, status: int) -> None:
    assert status == world.client.open(path, method=method).status_code


class Failing(Delay):
    """A plugin with a bug."""

    def mutate(self, pod: Pod, context: Context) -> Result:
        raise RuntimeError(f"secret of {pod.metadata.name} in {context.profile}")


def test_failure_is_answered_with_500_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    metrics = ServerMetrics()
    pipeline = config.build_pipeline(
        config.Configuration(),
        {"delay": Failing},
        source="x",
        timer=lambda: 0.0,
        observe=metrics.observe_plugin,
    )
    client = create_app(pipeline, metrics).test_client()
    answer = client.post("/mutate", data=body(), content_type=JSON)

    assert answer.status_code == 500
    assert answer.text == "the review failed; the reason is in the webhook's log\n"
    (record,) = caplog.records
    assert record.getMessage() == "mutate failed: default/web-0 uid=c0ffee"
    assert "plugin 'delay' failed in mutate: RuntimeError: secret of web-0 in *" in caplog.text
    found = metrics.registry.get_sample_value
    assert found("holdfast_reviews_total", {"path": "mutate", "outcome": "failed"}) == 1
    assert (
        found(
            "holdfast_plugin_execution_duration_seconds_count",
            {"plugin": "delay", "extension_point": "mutate", "status": "Error", "profile": "*"},
        )
        == 1
    )


@pytest.mark.parametrize("path", ["mutate", "validate"])
def test_pod_for_which_a_lookup_fails_is_refused_with_the_reason(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As HTTP 500, whoever forges a pod could bring it about, and nobody would read why."""
    metrics = ServerMetrics()
    fails = raising(status_error(503))
    client = create_app(pipeline_of(Scripted(fails, fails)), metrics).test_client()
    answer = client.post(f"/{path}", data=body(make_pod({"scripted": ""})), content_type=JSON)

    assert answer.status_code == 200
    why = f"plugin 'scripted' could not look up what decides: {status_error(503)}"
    response = answer.get_json()["response"]
    assert response["allowed"] is False
    assert response["status"] == {
        "code": 429,
        "reason": "TooManyRequests",
        "message": f"{why}; try again",
    }
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == f"{path} failed: default/web-0 uid=c0ffee: {why}"
    labels = {"path": path, "outcome": "failed"}
    assert metrics.registry.get_sample_value("holdfast_reviews_total", labels) == 1


def test_template_for_which_a_lookup_fails_is_left_to_its_failure_policy() -> None:
    fails = raising(status_error(503))
    client = create_app(pipeline_of(Scripted(fails, fails)), ServerMetrics()).test_client()
    template = {"metadata": {"annotations": {"scripted": ""}}, "spec": make_pod()["spec"]}
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    sent = {"metadata": {"name": "w"}, "spec": {"template": template}}
    answer = client.post("/validate", data=body(sent, kind=kind), content_type=JSON)

    assert answer.status_code == 500
    assert answer.text == "the review failed; the reason is in the webhook's log\n"


def test_answer_that_cannot_be_built_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    nonsense: Any = 5
    edits = success(SetAnnotation("a", "1"), SetAnnotation(nonsense, "1"))
    metrics = ServerMetrics()
    client = create_app(pipeline_of(Scripted(answering(edits))), metrics).test_client()
    answer = client.post("/mutate", data=body(make_pod({})), content_type=JSON)

    assert answer.status_code == 500
    assert answer.text == "the review failed; the reason is in the webhook's log\n"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    found = {
        outcome: metrics.registry.get_sample_value(
            "holdfast_reviews_total", {"path": "mutate", "outcome": outcome}
        )
        for outcome in ("failed", "patched", "allowed")
    }
    assert found == {"failed": 1, "patched": None, "allowed": None}


# --- reviews that are given up -----------------------------------------------------------------


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
def test_pod_that_nobody_could_decide_about_is_refused_with_the_reason(path: str) -> None:
    environ = {"PATH_INFO": path, REVIEW: read_review()}
    answered = json.loads(refuse_pod(environ, "too many at once; try again") or b"")

    assert answered["apiVersion"] == "admission.k8s.io/v1"
    assert answered["response"] == {
        "uid": "c0ffee",
        "allowed": False,
        "auditAnnotations": {"review": "c0ffee"},
        "status": {
            "code": 429,
            "reason": "TooManyRequests",
            "message": "too many at once; try again",
        },
    }


def test_template_that_nobody_could_decide_about_is_left_to_its_failure_policy() -> None:
    template = {"metadata": {}, "spec": make_pod()["spec"]}
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    sent = make_review({"metadata": {"name": "w"}, "spec": {"template": template}}, kind=kind)
    found = review.parse(json.dumps(sent).encode())

    assert refuse_pod({"PATH_INFO": "/validate", REVIEW: found}, "late") is None


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({"PATH_INFO": "/x", REVIEW: read_review()}, id="another path"),
        pytest.param({"PATH_INFO": "/mutate", REVIEW: ReviewError("x")}, id="no review"),
    ],
)
def test_what_is_no_review_is_not_refused_as_one(environ: dict[str, Any]) -> None:
    assert refuse_pod(environ, "late") is None


def test_reviews_that_are_turned_away_are_counted_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = ServerMetrics()
    full_reporter(metrics)(read_review())
    full_reporter(metrics)("no review")

    assert metrics.registry.get_sample_value("holdfast_reviews_turned_away_total") == 2
    assert [record.getMessage() for record in caplog.records] == [
        "turned away: default/web-0 uid=c0ffee"
    ]


def deadlines(metrics: ServerMetrics, plugin: str) -> float | None:
    return metrics.registry.get_sample_value(
        "holdfast_plugin_deadlines_exceeded_total", {"plugin": plugin}
    )


def test_late_plugin_is_named(caplog: pytest.LogCaptureFixture) -> None:
    metrics, found = ServerMetrics(), read_review(make_pod({"scripted": ""}))

    def give_up(_pod: Pod, _context: Context) -> Result:
        deadline_reporter(pipeline, metrics)(found)  # as the bridge does while this still runs
        return success()

    pipeline = pipeline_of(Scripted(), Blocking(give_up))
    pipeline.mutate(found, now_ms=0)

    assert deadlines(metrics, "blocking") == 1
    assert [record.getMessage() for record in caplog.records] == [
        "given up at its deadline: default/web-0 uid=c0ffee, in plugin blocking"
    ]


@pytest.mark.parametrize(
    ("given_up", "logged"),
    [
        pytest.param(read_review(), 1, id="a review that was never begun"),
        pytest.param(ReviewError("no review"), 0, id="what is no review"),
    ],
)
def test_deadline_while_no_plugin_is_at_work(
    given_up: object, logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = ServerMetrics()
    deadline_reporter(pipeline_of(Blocking()), metrics)(given_up)

    assert deadlines(metrics, "unknown") == 1
    assert len(caplog.records) == logged


# --- what the bridge has parsed already --------------------------------------------------------


def test_review_of_the_bridge_is_used(world: World) -> None:
    found = review.parse(body(make_pod({"delay": "soon"})))
    answer = world.client.post(
        "/mutate", data=b"", content_type=JSON, environ_overrides={"holdfast.review": found}
    )

    assert not answer.get_json()["response"]["allowed"]


def test_error_of_the_bridge_is_used(world: World) -> None:
    answer = world.client.post(
        "/mutate",
        data=body(),
        content_type=JSON,
        environ_overrides={"holdfast.review": ReviewError("no review")},
    )

    assert (answer.status_code, answer.text) == (400, "no review\n")


def test_prepare_gives_the_review_and_whether_it_may_block(world: World) -> None:
    found, blocks = prepare(world.pipeline)(body(make_pod({"delay": "15"})))

    assert found.pod.annotations == {"delay": "15"}
    assert not blocks


def test_prepare_refuses_what_is_no_review(world: World) -> None:
    with pytest.raises(ReviewError):
        prepare(world.pipeline)(b"{")


def test_review_of_a_pod_in_another_namespace_than_its_request_may_block() -> None:
    """As nobody but a forger makes one: which of them plugins go by decides what they look up."""
    world = World()
    for namespace, blocks in (("default", False), ("other", True), ("", True)):
        forged = make_pod({"delay": "15"}, namespace="default")
        assert prepare(world.pipeline)(body(forged, namespace=namespace))[1] is blocks


@pytest.mark.parametrize(("length", "status"), [(253, 200), (254, 400)])
def test_uid_is_no_longer_than_any_can_be(length: int, status: int) -> None:
    data = body(uid="u" * length)
    answer = World().client.post("/mutate", data=data, content_type="application/json")
    assert answer.status_code == status


# --- health and metrics ------------------------------------------------------------------------


def test_health(world: World) -> None:
    answer = world.client.get("/healthz")

    assert (answer.status_code, answer.text) == (200, "ok\n")


@pytest.mark.parametrize(
    ("ready", "expected"), [(True, (200, "ok\n")), (False, (503, "not ready\n"))]
)
def test_readiness(world: World, ready: bool, expected: tuple[int, str]) -> None:
    world.ready = ready
    answer = world.client.get("/readyz")

    assert expected == (answer.status_code, answer.text)


def test_metrics(world: World) -> None:
    world.answer("/mutate", body(make_pod({"delay": "15"})))
    answer = world.client.get("/metrics")

    assert ServerMetrics.content_type == answer.content_type
    assert 'holdfast_reviews_total{outcome="patched",path="mutate"} 1.0' in answer.text
    assert "holdfast_build_info{version=" in answer.text
    assert (
        'holdfast_plugin_execution_duration_seconds_count{extension_point="mutate",plugin="delay",'
        'profile="*",status="Success"} 1.0'
    ) in answer.text
    assert (
        'holdfast_framework_extension_point_duration_seconds_count{extension_point="mutate",'
        'profile="*",status="Success"} 1.0'
    ) in answer.text


def test_limit_leaves_room_for_two_objects_of_etcds_size() -> None:
    assert BODY_LIMIT > 2 * 1.5 * 2**20
