"""The admission endpoints: the only place that knows Flask."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from flask import Flask, Request, Response, request
from werkzeug.routing import MapAdapter

from webhook import logs, registration
from webhook import review as reviews
from webhook.errors import ReviewError
from webhook.framework import Code
from webhook.metrics import ServerMetrics
from webhook.patch import patch
from webhook.pipeline import Pipeline
from webhook.profiles import Verdict
from webhook.review import PodReview

BODY_LIMIT = 7 << 20
"""Bytes of a request: an object is 1.5 MiB at most in etcd, comes old and new, in an envelope."""

_log = logging.getLogger("holdfast.review")
_JSON = "application/json"

Review = Callable[[PodReview], Verdict]


class _Endpoints(Flask):
    """Flask without hooks, signals and host matching: none is used, and they cost a third."""

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Match by path and method: whatever host a client names, it is us."""
        if request is None:
            return None
        return MapAdapter(self.url_map, "", "/", "", "https", request.path, request.method)

    def full_dispatch_request(self) -> Response:
        """Call the view, and make a response of what it returns or raises."""
        try:
            answer = self.dispatch_request()
        except Exception as exc:  # noqa: BLE001 - Flask's own handling, 404 and 405 among it
            answer = self.handle_user_exception(exc)
        return self.make_response(answer)

    def do_teardown_request(self, exc: BaseException | None = None) -> None:
        """Nothing is to be torn down."""

    def do_teardown_appcontext(self, exc: BaseException | None = None) -> None:
        """Nothing is to be torn down."""


def prepare(pipeline: Pipeline) -> Callable[[bytes], tuple[PodReview, bool]]:
    """Make the bridge's look at a body: the parsed review, and whether answering it may block."""

    def parse(body: bytes) -> tuple[PodReview, bool]:
        review = reviews.parse(body)
        return review, pipeline.may_block(review.pod)

    return parse


def deadline_reporter(pipeline: Pipeline, metrics: ServerMetrics) -> Callable[[object], None]:
    """Make what the bridge calls when a review is given up: it names the plugin that is late."""

    def report(review: object) -> None:
        plugin = pipeline.at_work(review) if isinstance(review, PodReview) else None
        metrics.deadlines.labels(plugin or "unknown").inc()
        if isinstance(review, PodReview):
            _log.error(
                "given up at its deadline: %s uid=%s, in plugin %s",
                review.described,
                review.uid,
                plugin,
            )

    return report


def create_app(
    pipeline: Pipeline,
    metrics: ServerMetrics,
    *,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ready: Callable[[], bool] = lambda: True,
) -> Flask:
    """Make the Flask application.

    `now_ms` is this machine's time, which only decides about a not-before that is long past or too
    far away. `ready` says whether the server can do its work. /conditions tells in short which pods
    it knows what to do with, for who registers it with the cluster.
    """
    app = _Endpoints(__name__, static_folder=None)
    known = registration.digest(pipeline)
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False  # OPTIONS is no method of ours
    app.url_map.merge_slashes = False  # else //mutate were redirected

    @app.post("/mutate")
    def mutate() -> Response:
        return _admit(metrics, "mutate", lambda one: pipeline.mutate(one, now_ms=now_ms()))

    @app.post("/validate")
    def validate() -> Response:
        return _admit(metrics, "validate", lambda one: pipeline.validate(one, now_ms=now_ms()))

    @app.get("/healthz")
    def healthz() -> Response:
        return _text("ok")

    @app.get("/readyz")
    def readyz() -> Response:
        return _text("ok") if ready() else _text("not ready", 503)

    @app.get("/conditions")
    def conditions() -> Response:
        return _text(known)

    @app.get("/metrics")
    def exposition() -> Response:
        return Response(metrics.exposition(), content_type=metrics.content_type)

    return app


def _admit(metrics: ServerMetrics, path: str, decide: Review) -> Response:
    asked = request._get_current_object()  # type: ignore[attr-defined]
    if asked.content_type != _JSON != asked.mimetype:  # the one is had, the other parsed
        metrics.count(path, "bad")
        return _text(f"send an AdmissionReview as {_JSON}", 415)
    if asked.environ.get("HTTP_CONTENT_ENCODING", "identity").lower() != "identity":
        metrics.count(path, "bad")  # never inflated: a few bytes can stand for gigabytes
        return _text("send an AdmissionReview without Content-Encoding", 415)
    try:
        review = _parsed(asked, path)
    except ReviewError as exc:
        metrics.count(path, "bad")
        _log.warning("%s: %s", path, exc)
        return _text(str(exc), 400)
    try:
        return _answered(metrics, path, review, decide(review))
    except Exception:  # noqa: BLE001 - whatever it was, it is logged and answered
        # HTTP 500: the API server then follows failurePolicy, and nothing is let through unheld
        metrics.count(path, "failed")
        told = _fields(path, review, "failed")
        _log.exception("%s failed: %s uid=%s", path, review.described, review.uid, extra=told)
        return _text("the review failed; the reason is in the webhook's log", 500)


def _parsed(asked: Request, path: str) -> PodReview:
    parsed = asked.environ.get("holdfast.review")
    if isinstance(parsed, ReviewError):
        raise parsed
    review = parsed if isinstance(parsed, PodReview) else reviews.parse(asked.get_data())
    if path == "mutate" and review.workload is not None:  # its pod would be patched out of place
        raise ReviewError(
            f"a review of kind {review.workload.kind} came to /mutate; register only pods there"
        )
    return review


def _answered(metrics: ServerMetrics, path: str, review: PodReview, verdict: Verdict) -> Response:
    if verdict.code is Code.REFUSE:
        metrics.count(path, "refused")
        _log.info(
            "%s refused: %s uid=%s: %s",
            path,
            review.described,
            review.uid,
            verdict.message,
            extra=_fields(path, review, "refused", verdict.message),
        )
        body = reviews.refused(review.request, verdict.message, verdict.warnings)
        return Response(body, content_type=_JSON)
    operations = patch(review.pod, verdict.edits)
    body = reviews.allowed(review.request, operations, verdict.warnings)
    metrics.count(path, "patched" if operations else "allowed")
    if _log.isEnabledFor(logging.DEBUG):
        outcome = "patched" if operations else "allowed"
        told = _fields(path, review, outcome)
        _log.debug("%s %s: %s uid=%s", path, outcome, review.described, review.uid, extra=told)
    return Response(body, content_type=_JSON)


def _fields(
    path: str, review: PodReview, outcome: str, reason: str | None = None
) -> dict[str, Mapping[str, logs.Value]]:
    """Say what was reviewed, and how it ended, for a log that programs read."""
    return logs.fields(
        review=path,
        outcome=outcome,
        uid=review.uid,
        kind=review.workload.kind if review.workload else "Pod",
        namespace=review.namespace,
        name=review.name,
        dryRun=bool(review.request.dry_run),
        reason=reason,
    )


def _text(text: str, status: int = 200) -> Response:
    return Response(text + "\n", status, content_type="text/plain; charset=utf-8")
