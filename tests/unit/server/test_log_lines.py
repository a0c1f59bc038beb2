"""Every log call that includes values of a request, with hostile values, in both log formats.

The log is set up as in the real processes, and its output is read as a log collector reads it:
lines end at line feeds, and no other character may start a new line.
"""

import ast
import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.webhook.controller import notifier
from holdfast.webhook.controller.notifier import ReleaseNotifier
from holdfast.webhook.controller.pending import PendingRelease
from holdfast.webhook.errors import UnreachableError
from holdfast.webhook.framework import permit, pipeline
from holdfast.webhook.framework.pipeline import AdmissionPipeline
from holdfast.webhook.framework.plugin import Permit, reject, success
from holdfast.webhook.kube.transport import Response, status_error
from holdfast.webhook.model.edits import SetAnnotation
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.server import handler, offload
from holdfast.webhook.server.handler import JSON, AdmissionHandler, HttpResponse, PreparedReview
from holdfast.webhook.server.offload import AsyncHandler
from holdfast.webhook.telemetry import logs
from holdfast.webhook.telemetry.metrics import ControllerMetrics, ServerMetrics
from tests.support.builders import CREATED_MS, body, held, make_pod, read_review
from tests.support.fakes import FakeRecorder
from tests.support.scripted import (
    Holding,
    Other,
    Scripted,
    Tightening,
    answering,
    decider_of,
    pipeline_of,
    raising,
)

FORGED = "2026-01-01 00:00:00,000 ERROR holdfast.review: forged"
BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""Characters that end a line for `str.splitlines`, a terminal or a log viewer."""
SPECIAL = (
    BREAKS
    + "\x00\x07\x08\x1b[2J\x1b]0;\x9b31m"  # terminal control sequences
    + "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c"  # direction marks
    + "\ufeff\u200b\u00ad\U000e0041\ue000"  # invisible characters
    + '\\"{%s'
)
HOSTILE = BREAKS.join([FORGED] * 2) + SPECIAL
PARTS = [f"forged{SPECIAL[start : start + 18]}" for start in range(0, len(SPECIAL), 18)]
"""Names short enough not to be truncated; together they have all special characters."""
TEXT = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) holdfast\.[a-z]+: .+"
)
MODULES = {
    Path(str(module.__file__)): module.__name__
    for module in (handler, offload, permit, pipeline, notifier)
}
"""Modules that process requests and held pods."""
LONGEST = 10_000
"""Maximum characters of a line with a traceback; other lines are shorter."""

NAMES = dict(zip(("name", "namespace", "uid"), PARTS, strict=True))
POD = make_pod({"scripted": HOSTILE, HOSTILE: HOSTILE}, name=PARTS[0], namespace=PARTS[1])
BODY = body(POD, **NAMES)
ERROR = ValueError(HOSTILE)


def handler_of(admission_pipeline: AdmissionPipeline) -> AdmissionHandler:
    return AdmissionHandler(
        admission_pipeline, ServerMetrics(), digest="", now_ms=lambda: CREATED_MS
    )


def ask(content: bytes, admission_pipeline: AdmissionPipeline, *, path: str = "/mutate") -> None:
    """Send a review as a connection does."""
    send(handler_of(admission_pipeline), content, path)


def send(admission_handler: Any, content: bytes, path: str = "/mutate") -> None:
    server = AsyncHandler(admission_handler)

    async def answer() -> None:
        response = server.post(path, JSON, content, "")
        if not isinstance(response, HttpResponse):
            await response

    asyncio.run(answer())
    server.stop()


def invalid_reviews() -> None:
    ask(body(POD, kind={"group": HOSTILE, "version": HOSTILE, "kind": HOSTILE}), pipeline_of())
    ask(HOSTILE.encode(), pipeline_of())
    ask(json.dumps({HOSTILE: HOSTILE, "apiVersion": HOSTILE}).encode(), pipeline_of())


def admitted() -> None:
    ask(BODY, pipeline_of())
    ask(BODY, pipeline_of(Scripted(answering(success(SetAnnotation(HOSTILE, HOSTILE))))))


def prepared(admission_handler: AdmissionHandler) -> PreparedReview:
    review = admission_handler.prepare("/mutate", JSON, BODY)
    assert isinstance(review, PreparedReview)
    return review


def deadline_exceeded() -> None:
    admission_handler = handler_of(pipeline_of(Scripted()))
    admission_handler.reject_late(prepared(admission_handler), 2.5)


def queue_full() -> None:
    admission_handler = handler_of(pipeline_of(Scripted()))
    admission_handler.reject_full(prepared(admission_handler))


def failed_alongside_a_rejection() -> None:
    plugin = Scripted(answering(reject("no")))
    ask(BODY, pipeline_of(plugin, Other(raising(ERROR))))
    ask(BODY, pipeline_of(Other(validate=raising(ERROR)), plugin))


def invalid_edits() -> None:
    value: Any = [HOSTILE]
    result = success(SetAnnotation(HOSTILE, value))
    ask(BODY, pipeline_of(Other(answering(result)), Scripted(answering(reject("no")))))


def broken_server() -> None:
    class Broken:
        def prepare(self, *_request: object) -> Any:
            raise ERROR

        page = prepare

    class Ending(AdmissionHandler):
        def prepare(self, *_request: object) -> Any:
            return PreparedReview("mutate", read_review(POD, **NAMES), may_block=True, peer="")

        def decide(self, *_prepared: object) -> Any:
            raise SystemExit(HOSTILE)

    broken_handler: Any = Broken()
    AsyncHandler(broken_handler).page("GET", f"/{HOSTILE}")
    send(broken_handler, BODY, f"/{HOSTILE}")
    send(Ending(pipeline_of(), ServerMetrics(), digest=""), BODY, f"/{HOSTILE}")


def held_pods() -> None:
    def broken(*_: Any) -> Any:
        raise ERROR

    class RaisingConcerns(Tightening):
        name = "raising-concerns"

        def concerns(self, _pod: Pod) -> bool:
            raise ERROR

    pod = Pod.of(held({"scripted": HOSTILE}, gates=[Holding.gate], name=HOSTILE, namespace=HOSTILE))

    class Leaking(Holding):
        def reserve(self, pod: Pod, now_ms: int) -> Permit:
            return self.permit(pod, now_ms)

        def unreserve(self, _pod: Pod) -> None:
            raise ERROR

        def forget(self, _uid: str) -> None:
            raise ERROR

    decider = decider_of(
        Leaking(broken), Tightening(broken), RaisingConcerns(lambda _pod: success())
    )
    decider.due(pod)
    decider.unreserve(pod)
    decider.forget("u")
    decider.at_release(pod)


def releases() -> None:
    """Log a long rejection of a release by the API server, and messages of plugins."""
    content = json.dumps({"message": HOSTILE * 1_000}).encode()
    reason = str(status_error(Response(403, "Forbidden", {}, content, 0.0)))
    pod = PendingRelease(CREATED_MS, PARTS[2], "1", (Holding.gate,), problem=HOSTILE)
    release_notifier = ReleaseNotifier(FakeRecorder(), ControllerMetrics(), leading=lambda: True)
    release_notifier.failed((PARTS[1], PARTS[0]), pod, reason, wait=1.0)
    release_notifier.released((PARTS[1], PARTS[0]), pod, [HOSTILE], now_ms=CREATED_MS)
    release_notifier.released_early((PARTS[1], PARTS[0]), pod, now_ms=0)


FUNCTIONS: list[Callable[[], None]] = [
    *(invalid_reviews, admitted, deadline_exceeded, queue_full, failed_alongside_a_rejection),
    *(invalid_edits, broken_server, held_pods, releases),
]
CASES: dict[str, Callable[[], None]] = {
    "rejected": lambda: ask(BODY, pipeline_of(Scripted(answering(reject(HOSTILE))))),
    "failed": lambda: ask(BODY, pipeline_of(Scripted(raising(ERROR)))),
    "failed_lookup": lambda: ask(BODY, pipeline_of(Scripted(raising(UnreachableError(HOSTILE))))),
    **{function.__name__: function for function in FUNCTIONS},
}


class LogCallSites(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[Path, int]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.add((Path(record.pathname), record.lineno))


@pytest.fixture
def call_sites(own_logging: logging.Logger) -> Iterator[LogCallSites]:
    call_sites = LogCallSites()
    own_logging.addHandler(call_sites)
    yield call_sites
    own_logging.removeHandler(call_sites)


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_hostile_values_stay_within_their_line(
    case: Callable[[], None],
    form: logs.Format,
    call_sites: LogCallSites,
    capfd: pytest.CaptureFixture[str],
) -> None:
    logs.set_up("debug", form)
    case()
    out, err = capfd.readouterr()
    lines = err.removesuffix("\n").split("\n")

    assert out == ""
    assert call_sites.seen
    for line in lines:
        assert line.isprintable(), ascii(line)
        assert len(line) < LONGEST
        if form == "text":
            assert TEXT.fullmatch(line), line
        else:
            assert json.loads(line)["logger"].startswith("holdfast."), line
            assert line.isascii()
    assert "forged" in err, "the values did not reach the log"


@pytest.mark.usefixtures("capfd")
def test_every_log_call_has_a_case(call_sites: LogCallSites) -> None:
    """A new log call with values of a request needs a case here."""
    logs.set_up("debug")
    for case in CASES.values():
        case()
    missing = [
        f"{name}:{first}"
        for file, name in MODULES.items()
        for first, last in logged(file)
        if not any((file, line) in call_sites.seen for line in range(first, last + 1))
    ]

    assert missing == []


def logged(file: Path) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each log call in a module."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="_log" | "_logger"), attr=level)):
                if level in LEVELS:
                    yield node.lineno, node.end_lineno or node.lineno


LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
