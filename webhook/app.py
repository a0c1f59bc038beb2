"""The admission endpoints: the only place that knows Flask."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from flask import Flask, Response, request

from webhook import review as reviews
from webhook.errors import ReviewError
from webhook.framework import Code
from webhook.metrics import ServerMetrics
from webhook.patch import patch
from webhook.pipeline import Pipeline, Verdict
from webhook.review import PodReview

BODY_LIMIT = 7 << 20
"""Bytes of a request: an object is 1.5 MiB at most in etcd, comes old and new, in an envelope."""

_log = logging.getLogger("holdfast.review")
_JSON = "application/json"

Review = Callable[[PodReview], Verdict]


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
                review.request.uid,
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
    far away. `ready` says whether the server can do its work.
    """
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT

    @app.post("/mutate")
    def mutate() -> Response:
        return _admit(metrics, lambda review: pipeline.mutate(review, now_ms=now_ms()))

    @app.post("/validate")
    def validate() -> Response:
        return _admit(metrics, lambda review: pipeline.validate(review, now_ms=now_ms()))

    @app.get("/healthz")
    def healthz() -> Response:
        return _text("ok")

    @app.get("/readyz")
    def readyz() -> Response:
        return _text("ok") if ready() else _text("not ready", 503)

    @app.get("/metrics")
    def exposition() -> Response:
        return Response(metrics.exposition(), content_type=metrics.content_type)

    return app


def _admit(metrics: ServerMetrics, decide: Review) -> Response:
    path = request.path.lstrip("/")
    if request.mimetype != _JSON:
        metrics.reviews.labels(path, "bad").inc()
        return _text(f"send an AdmissionReview as {_JSON}", 415)
    try:
        review = _parsed()
    except ReviewError as exc:
        metrics.reviews.labels(path, "bad").inc()
        _log.warning("%s: %s", path, exc)
        return _text(str(exc), 400)
    try:
        return _answered(metrics, path, review, decide(review))
    except Exception:  # noqa: BLE001 - whatever it was, it is logged and answered
        # HTTP 500: the API server then follows failurePolicy, and nothing is let through unheld
        metrics.reviews.labels(path, "failed").inc()
        _log.exception("%s failed: %s uid=%s", path, review.described, review.request.uid)
        return _text("the review failed; the reason is in the webhook's log", 500)


def _parsed() -> PodReview:
    parsed = request.environ.get("holdfast.review")
    if isinstance(parsed, ReviewError):
        raise parsed
    return parsed if isinstance(parsed, PodReview) else reviews.parse(request.get_data())


def _answered(metrics: ServerMetrics, path: str, review: PodReview, verdict: Verdict) -> Response:
    if verdict.code is Code.REFUSE:
        metrics.reviews.labels(path, "refused").inc()
        _log.info(
            "%s refused: %s uid=%s: %s",
            path,
            review.described,
            review.request.uid,
            verdict.message,
        )
        body = reviews.refused(review.request, verdict.message, verdict.warnings)
        return Response(body, content_type=_JSON)
    operations = patch(review.pod, verdict.edits)
    body = reviews.allowed(review.request, operations, verdict.warnings)
    metrics.reviews.labels(path, "patched" if operations else "allowed").inc()
    _log.debug("%s allowed: %s uid=%s", path, review.described, review.request.uid)
    return Response(body, content_type=_JSON)


def _text(text: str, status: int = 200) -> Response:
    return Response(text + "\n", status, content_type="text/plain; charset=utf-8")
