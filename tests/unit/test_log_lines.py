"""Each place where something of a request reaches the log, with hostile values, in both formats.

The log is set up as the processes set it up, and what it wrote is read as who follows it reads it:
a line is what stands between two line feeds, and nothing else may start one.

Seen to fail with a text format that writes values as they are: everywhere but where a body is no
review, whose error is escaped already.
"""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.builders import CREATED_MS, body, held, make_pod, read_review
from tests.unit.scripted import (
    Holding,
    Other,
    Scripted,
    Tightening,
    answering,
    pipeline_of,
    raising,
)
from tests.unit.test_asgi import LIFE, request, scope, talk
from webhook import app, asgi, events, holding, logs, pipeline, reporter
from webhook.answers import Answer, status_error
from webhook.app import create_app, deadline_reporter, full_reporter, prepare
from webhook.asgi import Bridge
from webhook.errors import UnreachableError
from webhook.framework import refuse, success
from webhook.metrics import ControllerMetrics, ServerMetrics
from webhook.objects import Pod
from webhook.pipeline import Pipeline
from webhook.release_queue import Held
from webhook.reporter import Reporter
from webhook.review import SetAnnotation

FORGED = "2026-01-01 00:00:00,000 ERROR holdfast.review: forged"
BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""All that ends a line for somebody: `str.splitlines`, a terminal, a viewer of logs."""
SPECIAL = (
    BREAKS
    + "\x00\x07\x08\x1b[2J\x1b]0;\x9b31m"  # a terminal's own words
    + "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c"  # directions
    + "\ufeff\u200b\u00ad\U000e0041\ue000"  # what nobody sees
    + '\\"{%s'
)
HOSTILE = BREAKS.join([FORGED] * 2) + SPECIAL
PARTS = [f"forged{SPECIAL[start : start + 18]}" for start in range(0, len(SPECIAL), 18)]
"""Names that are not cut: all special characters stand in some of them."""
TEXT = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) holdfast\.[a-z]+: .+"
)
MODULES = {
    Path(str(one.__file__)): one.__name__ for one in (app, asgi, holding, pipeline, reporter)
}
"""Where requests, and the pods that they left behind, are decided about."""
LONGEST = 10_000
"""Characters of a line that has a traceback in it; others are shorter."""

NAMES = dict(zip(("name", "namespace", "uid"), PARTS, strict=True))
POD = make_pod({"scripted": HOSTILE, HOSTILE: HOSTILE}, name=PARTS[0], namespace=PARTS[1])
BODY = body(POD, **NAMES)
ERROR = ValueError(HOSTILE)


def ask(content: bytes, found: Pipeline, *, path: str = "/mutate") -> None:
    """Send a review to the bridge, the application behind it."""
    flask = create_app(found, ServerMetrics(), now_ms=lambda: CREATED_MS)
    bridge = Bridge(flask, prepare=prepare(found))
    of = scope(path=path, content_type="application/json", user_agent=HOSTILE.encode().decode())
    asyncio.run(talk(bridge, of, request(content)))
    bridge.close()


def no_review() -> None:
    ask(body(POD, kind={"group": HOSTILE, "version": HOSTILE, "kind": HOSTILE}), pipeline_of())
    ask(HOSTILE.encode(), pipeline_of())
    ask(json.dumps({HOSTILE: HOSTILE, "apiVersion": HOSTILE}).encode(), pipeline_of())


def admitted() -> None:
    ask(BODY, pipeline_of())
    ask(BODY, pipeline_of(Scripted(answering(success(SetAnnotation(HOSTILE, HOSTILE))))))


def refused() -> None:
    ask(BODY, pipeline_of(Scripted(answering(refuse(HOSTILE)))))


def failed() -> None:
    ask(BODY, pipeline_of(Scripted(raising(ERROR))))


def looked_up_in_vain() -> None:
    ask(BODY, pipeline_of(Scripted(raising(UnreachableError(HOSTILE)))))


def given_up() -> None:
    deadline_reporter(pipeline_of(Scripted()), ServerMetrics())(read_review(POD, **NAMES))


def turned_away() -> None:
    full_reporter(ServerMetrics())(read_review(POD, **NAMES))


def failed_beside_a_refusal() -> None:
    refusing = Scripted(answering(refuse("no")))
    ask(BODY, pipeline_of(refusing, Other(raising(ERROR))))
    ask(BODY, pipeline_of(Other(validate=raising(ERROR)), refusing))


def edits_that_do_not_fit() -> None:
    rubbish: Any = [HOSTILE]
    odd = success(SetAnnotation(HOSTILE, rubbish))
    ask(BODY, pipeline_of(Other(answering(odd)), Scripted(answering(refuse("no")))))


def broken_server() -> None:
    def broken(*_arguments: object) -> Any:
        raise ERROR

    of = scope(method="GET", path=f"/{HOSTILE}", x=HOSTILE)
    asyncio.run(talk(Bridge(broken, prepare=broken), of, request(BODY)))
    asyncio.run(talk(Bridge(broken, prepare=broken), scope(), request(BODY)))
    life = Bridge(broken, prepare=broken, on_startup=broken)

    def ending(*_arguments: object) -> Any:
        raise SystemExit(HOSTILE)

    asyncio.run(talk(Bridge(ending, prepare=lambda _: (None, True)), scope(), request(BODY)))
    asyncio.run(talk(life, {"type": "lifespan"}, LIFE))


def pods_that_are_held() -> None:
    def broken(_pod: Pod) -> Any:
        raise ERROR

    class Deaf(Tightening):
        name = "deaf"

        def concerns(self, _pod: Pod) -> bool:
            raise ERROR

    pod = Pod.of(held({"scripted": HOSTILE}, gates=[Holding.gate], name=HOSTILE, namespace=HOSTILE))
    found = pipeline_of(Holding(broken), Tightening(broken), Deaf(lambda _pod: success()))
    found.due(pod)
    found.at_release(pod)


def releases() -> None:
    """What others say who refuse a release, however long it is, and what plugins say of it."""
    said = json.dumps({"message": HOSTILE * 1_000}).encode()
    reason = str(status_error(Answer(403, "Forbidden", {}, said, 0.0)))
    pod = Held(CREATED_MS, PARTS[2], "1", (Holding.gate,), problem=HOSTILE)
    telling = Reporter(events.Silence(), ControllerMetrics(), leading=lambda: True)
    telling.failed((PARTS[1], PARTS[0]), pod, reason, wait=1.0)
    telling.released((PARTS[1], PARTS[0]), pod, [HOSTILE], now_ms=CREATED_MS)


CASES: list[Callable[[], None]] = [
    *(no_review, admitted, refused, failed, looked_up_in_vain, given_up, turned_away),
    *(failed_beside_a_refusal, edits_that_do_not_fit, broken_server, pods_that_are_held, releases),
]


class Places(logging.Handler):
    """Takes down where records were made."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[Path, int]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.add((Path(record.pathname), record.lineno))


@pytest.fixture
def places(own_logging: logging.Logger) -> Iterator[Places]:
    """Where records were made in the test."""
    places = Places()
    own_logging.addHandler(places)
    yield places
    own_logging.removeHandler(places)


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_hostile_values_stay_within_their_line(
    case: Callable[[], None], form: logs.Format, places: Places, capfd: pytest.CaptureFixture[str]
) -> None:
    logs.set_up("debug", form)
    case()
    out, err = capfd.readouterr()
    lines = err.removesuffix("\n").split("\n")

    assert out == ""
    assert places.seen
    for line in lines:
        assert line.isprintable(), ascii(line)
        assert len(line) < LONGEST
        if form == "text":
            assert TEXT.fullmatch(line), line
        else:
            assert json.loads(line)["logger"].startswith("holdfast."), line
            assert line.isascii()
    assert "forged" in err, "the values have not reached the log"


@pytest.mark.usefixtures("capfd")
def test_no_place_is_forgotten(places: Places) -> None:
    """Whoever logs something new of a request finds a case for it here, or makes one."""
    logs.set_up("debug")
    for case in CASES:
        case()
    unseen = [
        f"{name}:{first}"
        for file, name in MODULES.items()
        for first, last in logged(file)
        if not any((file, line) in places.seen for line in range(first, last + 1))
    ]

    assert unseen == []


def logged(file: Path) -> Iterator[tuple[int, int]]:
    """Give the first and the last line of each call of a module that logs something."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="_log" | "_logger"), attr=level)):
                if level in LEVELS:
                    yield node.lineno, node.end_lineno or node.lineno


LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
