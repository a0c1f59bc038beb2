"""`holdfast serve` as it ships, with clients that send invalid or endless requests.

Each gets one clean response, or none if the request never ends. Bytes after it are not served, and
the log has at most one line.
"""

import json
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.server.harness import everything_from, send_until_closed
from tests.server.serving import JSON, PATHS, Serving
from tests.server.shapes import CHUNKED, OURS, SHAPES
from tests.support.builders import make_pod, make_review

CPU_SECONDS = 2.0
MEMORY_GROWTH = 32 << 20
REVIEW = json.dumps(make_review(make_pod({"delay": "15"}))).encode()
HEAD = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
NEXT_REQUEST = HEAD + b"Content-Length: %d\r\n\r\n" % len(REVIEW) + REVIEW


@pytest.fixture(autouse=True)
def _healthy(serving: Serving) -> Iterator[None]:
    """Check after each test that the server is healthy and has used few resources."""
    memory_before = serving.worker.memory_info().rss
    with serving.cpu_time_within(CPU_SECONDS):
        yield
    assert serving.worker.memory_info().rss - memory_before < MEMORY_GROWTH
    serving.check_healthy()


def logged_lines(serving: Serving) -> list[str]:
    """Return the log lines above the debug level."""
    return [line for line in serving.log_lines() if "debug" not in line.lower()]


def answers_to(serving: Serving, content: bytes) -> bytes:
    with serving.raw() as client:
        client.sendall(content)
        return everything_from(client)


@pytest.mark.parametrize("shape", (SHAPES | OURS).values(), ids=SHAPES | OURS)
def test_invalid_request_gets_one_clean_response(serving: Serving, shape: bytes) -> None:
    lines = len(logged_lines(serving))
    answers = answers_to(serving, shape + NEXT_REQUEST)

    assert answers.count(b"HTTP/1.1 ") == 1, answers
    assert answers[9:12] in {b"400", b"414", b"431"}, answers
    assert b"AdmissionReview" not in answers
    assert len(logged_lines(serving)) - lines <= 1


UNREAD = ["GET /healthz", "GET /mutate", "PUT /mutate", "DELETE /mutate", "PATCH /nowhere"]
"""Requests whose bodies are not read."""
PIECE = b" " * 16_000
ENDLESS_BODIES = {
    "length": (b"Content-Length: 99999999999\r\n", PIECE),
    "chunked": (CHUNKED, b"%x\r\n%s\r\n" % (len(PIECE), PIECE)),
}


@pytest.mark.parametrize(("framing", "piece"), ENDLESS_BODIES.values(), ids=list(ENDLESS_BODIES))
@pytest.mark.parametrize("line", UNREAD)
def test_endless_unread_body_is_cut_off(
    serving: Serving, line: str, framing: bytes, piece: bytes
) -> None:
    with serving.raw() as client:
        client.sendall(line.encode() + b" HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n")
        sent = send_until_closed(client, piece, limit=1 << 30, pause=0)
        answer = everything_from(client)

    assert sent < MEMORY_GROWTH, "it was read"
    assert answer.count(b"HTTP/1.1 ") <= 1  # a reset can overtake the answer
    assert not answer or b"\r\nConnection: close\r\n" in answer


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
@pytest.mark.parametrize("path", ["/mutate", "/nowhere"])
@pytest.mark.parametrize(("framing", "piece"), ENDLESS_BODIES.values(), ids=list(ENDLESS_BODIES))
def test_endless_post_body_is_cut_off_at_the_limit(
    serving: Serving, path: str, kind: str, framing: bytes, piece: bytes
) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n".encode()
    with serving.raw() as client:
        client.sendall(head + framing + b"\r\n")
        sent = send_until_closed(client, piece, limit=1 << 30, pause=0)
        answer = everything_from(client)

    assert sent < MEMORY_GROWTH
    assert answer.count(b"HTTP/1.1 ") <= 1  # a reset can overtake the answer
    assert answer[9:12] in {b"", b"413"}


REJECTED = {
    **{line: (line.encode(), b"") for line in UNREAD},
    "POST /nowhere": (b"POST /nowhere", b"Content-Type: application/json\r\n"),
    "not JSON": (b"POST /mutate", b"Content-Type: text/plain\r\n"),
    "compressed": (
        b"POST /mutate",
        b"Content-Type: application/json\r\nContent-Encoding: gzip\r\n",
    ),
}
LAST = b"POST /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize(("line", "fields"), REJECTED.values(), ids=list(REJECTED))
def test_body_of_a_rejected_request_is_not_parsed_as_a_request(
    serving: Serving, line: bytes, fields: bytes, framing: str, late: bool
) -> None:
    """The body looks like a review. The request after it is a real one and gets 404."""
    head = line + b" HTTP/1.1\r\nHost: x\r\n" + fields
    if framing == "chunked":
        head, body = head + CHUNKED, b"%x\r\n%s\r\n0\r\n\r\n" % (len(NEXT_REQUEST), NEXT_REQUEST)
    else:
        head, body = head + b"Content-Length: %d\r\n" % len(NEXT_REQUEST), NEXT_REQUEST
    with serving.raw() as client:
        client.sendall(head + b"\r\n" + (b"" if late else body + LAST))
        if late:
            time.sleep(0.1)
            with suppress(OSError):  # the server may have closed it
                client.sendall(body + LAST)
        answers = everything_from(client)

    assert b'AdmissionReview"' not in answers
    ended = late and not line.startswith(b"POST ")
    assert answers.count(b"HTTP/1.1 ") == (1 if ended else 2), answers
    assert answers.count(b"\r\nConnection: close\r\n") == 1
    assert ended or b"HTTP/1.1 404 " in answers[1:]


UPGRADES = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
}


@pytest.mark.parametrize("upgrade", UPGRADES.values(), ids=list(UPGRADES))
def test_protocol_upgrade_is_rejected(serving: Serving, upgrade: bytes) -> None:
    """A parser that switches protocols reads no body, so no part of the request is served."""
    head = HEAD + upgrade + b"Content-Length: %d\r\n\r\n" % len(REVIEW)
    answers = answers_to(serving, head + REVIEW + NEXT_REQUEST)

    assert answers[9:12] == b"403"
    assert answers.count(b"HTTP/1.1 ") == answers.count(b"\r\nConnection: close\r\n") == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "path", ["//mutate", "/mutate/", "/./mutate", "/x/../mutate", "/%2Fmutate", "/mutate%00", "/"]
)
def test_other_paths_get_404_without_a_redirect(serving: Serving, method: str, path: str) -> None:
    answer = serving.ask(method, path, REVIEW if method == "POST" else None, headers=JSON)

    assert answer.status == 404
    assert answer.headers["Location"] is None
    assert b"AdmissionReview" not in answer.body


@pytest.mark.parametrize("path", PATHS)
def test_query_string_is_ignored(serving: Serving, path: str) -> None:
    answer = serving.ask("POST", f"{path}?%1b=%0aforged&timeout=x", REVIEW, headers=JSON)

    assert answer.status == 200
