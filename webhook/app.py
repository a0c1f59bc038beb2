"""The admission endpoints: the only place that knows Flask."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from wsgiref.types import StartResponse, WSGIEnvironment

from flask import Flask, Request, Response, request
from werkzeug.routing import MapAdapter

from webhook import logs, registration
from webhook import review as reviews
from webhook.asgi import REVIEW
from webhook.bodies import BODY_LIMIT
from webhook.errors import ReviewError, UndecidedError
from webhook.framework import Code
from webhook.metrics import ServerMetrics
from webhook.patch import patch
from webhook.pipeline import Pipeline
from webhook.profiles import Verdict
from webhook.review import PodReview

_log = logging.getLogger("holdfast.review")
_JSON = "application/json"
_FAILED = "the review failed; the reason is in the webhook's log"
_PATHS = frozenset({"/mutate", "/validate"})

_LINES = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}

Decide = Callable[[PodReview], Verdict]
Answer = tuple[int, str, bytes]
"""Status, content type and body."""
Answering = Callable[[WSGIEnvironment, object], Answer]
"""Answers a request, given its environ and what its body was parsed to."""


class _Endpoints(Flask):
    """Flask, but for reviews that the bridge has parsed already.

    Those need no context, no request object and no routing, which together cost more than the
    review itself.
    """

    reviews: Mapping[str, Answering]
    """What answers a review, by path."""

    def wsgi_app(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        path = environ["PATH_INFO"]
        answered = self.reviews.get(path) if REVIEW in environ else None
        if answered is not None:
            status, content_type, body = answered(environ, environ[REVIEW])
        elif path.startswith("//"):  # Flask takes as many slashes for one
            status, content_type, body = _text("not found", 404)
        else:
            return super().wsgi_app(environ, start_response)
        length = str(len(body))
        start_response(_LINES[status], [("Content-Type", content_type), ("Content-Length", length)])
        return (body,)

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Match by path and method: whatever host a client names, it is us."""
        if request is None:
            return None
        return MapAdapter(self.url_map, "", "/", "", "https", request.path, request.method)


def prepare(pipeline: Pipeline) -> Callable[[bytes], tuple[PodReview, bool]]:
    """Make the bridge's look at a body: the parsed review, and whether answering it may block."""

    def parse(body: bytes) -> tuple[PodReview, bool]:
        review = reviews.parse(body)
        # plugins go by either; the API server names no other one, whoever forges a review may
        strays = review.pod.metadata.namespace not in {"", review.request.namespace}
        return review, strays or pipeline.may_block(review)

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


def full_reporter(metrics: ServerMetrics) -> Callable[[object], None]:
    """Make what the bridge calls for each review that there is no place for."""

    def report(review: object) -> None:
        metrics.turned_away.inc()
        if isinstance(review, PodReview):
            _log.warning("turned away: %s uid=%s", review.described, review.uid)

    return report


def refuse_pod(environ: WSGIEnvironment, why: str) -> bytes | None:
    """Refuse the pod of a review that cannot be decided now, and say why.

    None for all else: a template's review may fail, and the template is then stored unchecked.
    """
    review = environ[REVIEW]
    if environ["PATH_INFO"] not in _PATHS or not isinstance(review, PodReview) or review.workload:
        return None
    return reviews.turned_away(review.request, why)


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
    app.url_map.merge_slashes = False  # else /x//y were redirected

    deciders: Mapping[str, Decide] = {
        "mutate": lambda review: pipeline.mutate(review, now_ms=now_ms()),
        "validate": lambda review: pipeline.validate(review, now_ms=now_ms()),
    }
    app.reviews = {
        f"/{path}": partial(_admit, metrics, path, decide) for path, decide in deciders.items()
    }

    for path, answered in app.reviews.items():
        app.add_url_rule(path, path, partial(_review, answered), methods=["POST"])

    @app.get("/healthz")
    def healthz() -> Response:
        return _response(*_text("ok"))

    @app.get("/readyz")
    def readyz() -> Response:
        return _response(*(_text("ok") if ready() else _text("not ready", 503)))

    @app.get("/conditions")
    def conditions() -> Response:
        return _response(*_text(known))

    @app.get("/metrics")
    def exposition() -> Response:
        return Response(metrics.exposition(), content_type=metrics.content_type)

    return app


def _review(answered: Answering) -> Response:
    """Answer a review whose body nobody has read yet."""
    return _response(*answered(request.environ, _read(request.get_data())))


def _read(body: bytes) -> PodReview | ReviewError:
    try:
        return reviews.parse(body)
    except ReviewError as error:
        return error


def _admit(
    metrics: ServerMetrics, path: str, decide: Decide, environ: WSGIEnvironment, parsed: object
) -> Answer:
    """Answer a review, or the ReviewError that says why there is none."""
    content_type = environ.get("CONTENT_TYPE", "")
    if content_type != _JSON and content_type.partition(";")[0].strip().lower() != _JSON:
        metrics.count(path, "bad")
        return _text(f"send an AdmissionReview as {_JSON}", 415)
    if environ.get("HTTP_CONTENT_ENCODING", "identity").lower() != "identity":
        metrics.count(path, "bad")  # never inflated: a few bytes can stand for gigabytes
        return _text("send an AdmissionReview without Content-Encoding", 415)
    try:
        review = _checked(parsed, path)
    except ReviewError as exc:
        metrics.count(path, "bad")
        _log.warning("%s: %s", path, exc)
        return _text(str(exc), 400)
    try:
        return 200, _JSON, _answered(metrics, path, review, decide(review))
    except UndecidedError as exc:
        return _undecided(metrics, path, review, str(exc))
    except Exception:  # noqa: BLE001 - whatever it was, it is logged and answered
        # HTTP 500: the API server then follows failurePolicy, and nothing is let through unheld
        metrics.count(path, "failed")
        told = _fields(path, review, "failed")
        _log.exception("%s failed: %s uid=%s", path, review.described, review.uid, extra=told)
        return _text(_FAILED, 500)


def _undecided(metrics: ServerMetrics, path: str, review: PodReview, why: str) -> Answer:
    """Refuse a pod about which something could not be looked up, and say why.

    Whoever creates the pods of VMs tries again; nothing is let through on a guess.
    """
    metrics.count(path, "failed")
    told = _fields(path, review, "failed", why)
    _log.error("%s failed: %s uid=%s: %s", path, review.described, review.uid, why, extra=told)
    if review.workload:
        return _text(_FAILED, 500)
    return 200, _JSON, reviews.turned_away(review.request, f"{why}; try again")


def _checked(parsed: object, path: str) -> PodReview:
    if isinstance(parsed, ReviewError):
        raise parsed
    assert isinstance(parsed, PodReview)  # noqa: S101 - as `prepare` and `_read` have made it
    if path == "mutate" and parsed.workload is not None:  # its pod would be patched out of place
        raise ReviewError(
            f"a review of kind {parsed.workload.kind} came to /mutate; register only pods there"
        )
    return parsed


def _answered(metrics: ServerMetrics, path: str, review: PodReview, verdict: Verdict) -> bytes:
    if verdict.code is Code.REFUSE:
        metrics.count(path, "refused")
        message = verdict.message[: reviews.MESSAGE_LENGTH]
        _log.info(
            "%s refused: %s uid=%s: %s",
            path,
            review.described,
            review.uid,
            message,
            extra=_fields(path, review, "refused", message),
        )
        return reviews.refused(review.request, message, verdict.warnings)
    operations = patch(review.pod, verdict.edits)
    body = reviews.allowed(review.request, operations, verdict.warnings)
    metrics.count(path, "patched" if operations else "allowed")
    if _log.isEnabledFor(logging.DEBUG):
        outcome = "patched" if operations else "allowed"
        told = _fields(path, review, outcome)
        _log.debug("%s %s: %s uid=%s", path, outcome, review.described, review.uid, extra=told)
    return body


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


def _text(text: str, status: int = 200) -> Answer:
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()


def _response(status: int, content_type: str, body: bytes) -> Response:
    return Response(body, status, content_type=content_type)
