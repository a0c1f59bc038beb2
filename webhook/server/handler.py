"""Responses to all requests: reviews, health and metrics. Independent of HTTP and threads."""

import logging
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from holdfast.webhook.errors import ReviewError, UndecidedError
from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.framework.pipeline import AdmissionPipeline
from holdfast.webhook.framework.plugin import Code
from holdfast.webhook.framework.profiles import Verdict
from holdfast.webhook.model import review as reviews
from holdfast.webhook.model.review import PodReview
from holdfast.webhook.model.workloads import RESTORED
from holdfast.webhook.server.peer_log import PeerLogLimit
from holdfast.webhook.telemetry import logs
from holdfast.webhook.telemetry.metrics import ServerMetrics

BODY_LIMIT = 7 * 1024 * 1024
"""Maximum bytes of a body, as in controller-runtime: the old and the new object, each up to etcd's
1.5 MiB, their envelope, and a margin."""
JSON, TEXT = "application/json", "text/plain; charset=utf-8"
REVIEW_PATHS = ("/mutate", "/validate")
PAGE_PATHS = ("/healthz", "/readyz", "/conditions", "/metrics")

_log = logging.getLogger("holdfast.review")
_log.addFilter(PeerLogLimit())
_FAILED = "the review failed; the reason is in the webhook's log"


class HttpResponse(NamedTuple):
    """A response to send; with status 405, `allow` lists the methods of the path."""

    status: int
    body: bytes
    content_type: str = TEXT
    allow: str = ""


class PreparedReview(NamedTuple):
    """A parsed review that is not decided yet."""

    path: str
    review: PodReview
    may_block: bool
    """Whether a plugin may block."""
    peer: str
    """The sender's address: the API server's, or that of a client that forges reviews."""

    @property
    def shown(self) -> str:
        """The review's part of a log line; all but the address is unverified client input."""
        return f"{self.review.display_name} uid={self.review.uid}{_sender(self.peer)}"


def _sender(peer: str) -> str:
    return f" peer={peer}" if peer else ""


def text(message: str, status: int = 200) -> HttpResponse:
    """Return a plain-text response of one line."""
    return HttpResponse(status, f"{message}\n".encode())


@dataclass(eq=False)
class AdmissionHandler:
    """Answers requests. Thread-safe.

    `digest` is the digest of the webhooks that this server's configuration needs.
    `ready` returns whether the server is ready. `now_ms` is this machine's time, used only to
    detect a not-before that is long past or too far in the future.
    """

    pipeline: AdmissionPipeline
    metrics: ServerMetrics
    _: KW_ONLY
    digest: str
    ready: Callable[[], bool] = lambda: True
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    def __post_init__(self) -> None:
        # like the other counters: 0 before the first event, for PromQL's increase()
        blocking = (plugin.name for plugin in self.pipeline.profiles.plugins if plugin.may_block)
        for name in ("unknown", *blocking):
            self.metrics.deadlines.labels(name)

    def handle(
        self, path: str, content_type: str, body: bytes, content_encoding: str = "", peer: str = ""
    ) -> HttpResponse:
        """Return the response to a review. Blocks this thread while a plugin does."""
        prepared = self.prepare(path, content_type, body, content_encoding, peer)
        return prepared if isinstance(prepared, HttpResponse) else self.decide(prepared)

    def prepare(
        self, path: str, content_type: str, body: bytes, content_encoding: str = "", peer: str = ""
    ) -> PreparedReview | HttpResponse:
        """Return the parsed review, or the response to an invalid one. Never blocks."""
        if path not in REVIEW_PATHS:
            return self.page("POST", path)
        if content_type != JSON and content_type.partition(";")[0].strip().lower() != JSON:
            return self._bad(path, f"send an AdmissionReview as {JSON}", 415)
        # never decompressed: a few bytes can expand to gigabytes
        if content_encoding and content_encoding.lower() != "identity":
            return self._bad(path, "send an AdmissionReview without Content-Encoding", 415)
        try:
            review = reviews.parse(body)
        except ReviewError as error:
            return self._unreadable(path, str(error), peer)
        workload = review.workload
        if path == "/mutate" and workload and (workload.kind != RESTORED.kind or not review.old):
            return self._unreadable(
                path,
                f"unexpected review of kind {workload.kind} at /mutate; register only pods and "
                "updates of VMs there",
                peer,
            )
        # Plugins use either namespace. The API server sends equal ones, a forged review may not.
        namespace = review.pod.metadata.namespace
        forged = bool(namespace) and namespace != review.request.namespace
        may_block = forged or self.pipeline.may_block(review)
        return PreparedReview(path[1:], review, may_block, peer)

    def decide(self, prepared: PreparedReview) -> HttpResponse:
        """Return the response to a parsed review. Blocks while a plugin does."""
        path, review = prepared.path, prepared.review
        try:
            decide = self.pipeline.mutate if path == "mutate" else self.pipeline.validate
            verdict = decide(review, now_ms=self.now_ms())
            return HttpResponse(200, self._decided(prepared, verdict), JSON)
        except UndecidedError as error:
            return self._undecided(prepared, str(error))
        except Exception:  # noqa: BLE001 - any error is logged, and answered with 500
            # HTTP 500: the API server then follows failurePolicy, and no pod gets through unheld
            self._report(logging.ERROR, prepared, "failed", exc_info=True)
            return text(_FAILED, 500)

    def reject_late(self, prepared: PreparedReview, seconds: float) -> HttpResponse:
        """Reject a review that was not decided in time; its plugins may still be running."""
        review = prepared.review
        plugin = self.pipeline.runner.running_plugin(review)
        self.metrics.deadlines.labels(plugin or "unknown").inc()
        _log.error(
            "given up at its deadline: %s, in plugin %s",
            prepared.shown,
            plugin,
            extra={"peer": prepared.peer},
        )
        return _retry_later(
            review, f"a plugin did not finish the review within {seconds:g} s; try again"
        )

    def reject_full(self, prepared: PreparedReview) -> HttpResponse:
        """Reject a review that may block, because too many reviews wait on plugins."""
        review = prepared.review
        self.metrics.turned_away.inc()
        _log.warning(
            "rejected, too many reviews are waiting: %s",
            prepared.shown,
            extra={"peer": prepared.peer},
        )
        return _retry_later(review, "too many reviews are waiting on plugins that block; try again")

    def page(self, method: str, path: str) -> HttpResponse:
        """Return the response to any other request: health, metrics or an error."""
        if path in REVIEW_PATHS:
            return text("method not allowed", 405)._replace(allow="POST")
        if path not in PAGE_PATHS:
            return text("not found", 404)
        if method not in {"GET", "HEAD"}:
            return text("method not allowed", 405)._replace(allow="GET, HEAD")
        if path == "/metrics":
            return HttpResponse(200, self.metrics.exposition(), self.metrics.content_type)
        if path == "/conditions":
            return text(self.digest)
        return text("ok") if path == "/healthz" or self.ready() else text("not ready", 503)

    def _unreadable(self, path: str, message: str, peer: str) -> HttpResponse:
        _log.warning("%s: %s%s", path[1:], message, _sender(peer), extra={"peer": peer})
        return self._bad(path, message, 400)

    def _bad(self, path: str, message: str, status: int) -> HttpResponse:
        self.metrics.count(path[1:], "bad")
        return text(message, status)

    def _decided(self, prepared: PreparedReview, verdict: Verdict) -> bytes:
        if verdict.code is Code.REJECT:
            return self._rejected(prepared, verdict)
        review = prepared.review
        operations = patch(review.target, verdict.edits)
        body = reviews.allowed(review.request, operations, verdict.warnings)
        self._report(logging.DEBUG, prepared, "patched" if operations else "allowed")
        return body

    def _rejected(self, prepared: PreparedReview, verdict: Verdict) -> bytes:
        message = verdict.message[: reviews.MESSAGE_LENGTH]
        # Dashboards and alerts use this label value, so it stays though the code is REJECT.
        self._report(logging.INFO, prepared, "refused", message)
        return reviews.rejected(prepared.review.request, message, verdict.warnings)

    def _undecided(self, prepared: PreparedReview, reason: str) -> HttpResponse:
        """Reject a pod for which a lookup failed, instead of admitting it on a guess."""
        self._report(logging.ERROR, prepared, "failed", reason)
        if prepared.review.workload:
            return text(_FAILED, 500)
        return _retry_later(prepared.review, f"{reason}; try again")

    def _report(
        self,
        level: int,
        prepared: PreparedReview,
        outcome: str,
        reason: str | None = None,
        *,
        exc_info: bool = False,
    ) -> None:
        """Count a review, and log its outcome."""
        path, review, _, peer = prepared
        self.metrics.count(path, outcome)
        if not _log.isEnabledFor(level):
            return
        fields = logs.fields(
            review=path,
            outcome=outcome,
            uid=review.uid,
            kind=review.workload.kind if review.workload else "Pod",
            namespace=review.namespace,
            name=review.name,
            dryRun=bool(review.request.dry_run),
            peer=peer,
            reason=reason,
        )
        suffix = "" if reason is None else f": {reason}"
        extra = {**fields, "peer": peer}
        _log.log(
            level,
            "%s %s: %s%s",
            *(path, outcome, prepared.shown, suffix),
            exc_info=exc_info,
            extra=extra,
        )


def _retry_later(review: PodReview, reason: str) -> HttpResponse:
    """Reject a pod for now. A workload's review fails instead, and failurePolicy admits it."""
    if review.workload:
        return text(reason, 429)
    return HttpResponse(200, reviews.retry_later(review.request, reason), JSON)
