"""`holdfast serve` with clients that send what no API server would send."""

import base64
import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.certs.authority import KeyPair
from holdfast.webhook.model.durations import parse_delay
from holdfast.webhook.server.handler import BODY_LIMIT
from tests.server.harness import ask as ask_over
from tests.server.serving import JSON, PATHS, Serving, in_chunks, serve
from tests.support.builders import make_pod, make_review, padded

FORGED = (
    'x\r\n{"level": "error", "message": "forged"}\r\n2026-01-01 00:00:00,000 ERROR holdfast: forged'
    "\n\u2028\u2029\x85\u202e\x1b[2J\x00../../etc/passwd"
)
CPU_SECONDS = 2.0
"""Maximum CPU time of one request, however large it is."""


@pytest.fixture(scope="module", params=["json", "text"])
def serving(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, issued: list[KeyPair]
) -> Iterator[Serving]:
    form = str(request.param)
    folder = tmp_path_factory.mktemp("serve")
    with serve(folder, issued[0], "--log-level", "debug", log_format=form) as running:
        yield running


@pytest.fixture(autouse=True)
def _healthy(serving: Serving) -> Iterator[None]:
    yield
    serving.check_healthy()


def review(delay: str, **request: Any) -> bytes:
    return json.dumps(make_review(make_pod({"delay": delay}), **request)).encode()


def uid_and_hold(answer: bytes) -> tuple[str, str]:
    """Return the UID of a response, and the hold that its patch records."""
    response = json.loads(answer)["response"]
    operations = json.loads(base64.b64decode(response["patch"]))
    (held,) = (
        operation["value"]
        for operation in operations
        if operation["path"].endswith("/holdfast.dev~1held")
    )
    return response["uid"], held


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("chunked", [False, True], ids=["whole", "chunked"])
@pytest.mark.parametrize(
    ("more", "status"), [pytest.param(0, 200, id="7 MiB"), pytest.param(1, 413, id="one byte more")]
)
def test_body_size_limit(
    serving: Serving, path: str, chunked: bool, more: int, status: int
) -> None:
    body = padded(BODY_LIMIT + more)
    assert len(body) == (7 << 20) + more
    content = in_chunks(body) if chunked else body
    try:
        with serving.cpu_time_within(CPU_SECONDS):
            answer = serving.ask("POST", path, content, headers=JSON, encode_chunked=chunked)
    except OSError:
        assert status == 413, "closed during a body within the limit"
        return  # a reset overtook the response to the oversized body
    assert answer.status == status


def test_log_lines_name_the_peer_of_a_review(serving: Serving) -> None:
    serving.ask("POST", "/mutate", review("soon", uid="forged-by-a-pod"), headers=JSON)
    serving.ask("POST", "/mutate", b"{", headers=JSON)
    lines = [line for line in serving.log_lines() if "peer=127.0.0.1" in line]
    assert any("forged-by-a-pod" in line for line in lines)
    assert "peer=127.0.0.1" in lines[-1]
    assert "forged-by-a-pod" not in lines[-1]


METHODS = ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "MADE-UP"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", METHODS)
def test_other_methods_are_rejected(serving: Serving, path: str, method: str) -> None:
    answer = serving.ask(method, path, review("15"), headers=JSON)

    assert answer.status in {400, 405}
    assert b"AdmissionReview" not in answer.body


COMPRESSED = gzip.compress(review("15"))
BOMB = gzip.compress(b" " * (64 << 20))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("coding", "body"),
    [
        pytest.param("gzip", COMPRESSED, id="gzip"),
        pytest.param("gzip", BOMB, id="decompression bomb"),
        pytest.param("gzip", b"x", id="not gzip"),
        pytest.param("deflate, gzip", COMPRESSED, id="two codings"),
        pytest.param("zstd", b"", id="empty"),
    ],
)
def test_compressed_bodies_are_rejected_without_decompression(
    serving: Serving, path: str, coding: str, body: bytes
) -> None:
    with serving.cpu_time_within(CPU_SECONDS):
        answer = serving.ask("POST", path, body, headers=JSON | {"Content-Encoding": coding})

    assert answer.status == 415
    assert answer.body == b"send an AdmissionReview without Content-Encoding\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({"delay": FORGED}, id="control and right-to-left characters"),
        pytest.param({"delay": "../../etc/passwd"}, id="a path"),
        pytest.param({f"k{n}": "v" for n in range(4_000)} | {"delay": "soon"}, id="4,000"),
        pytest.param({"delay": "9" * 2**20}, id="1 MiB"),
        pytest.param({"delay": "\u202e" * 2**18}, id="1 MiB of escapes"),
    ],
)
def test_invalid_annotations_get_a_short_response(
    serving: Serving, path: str, annotations: dict[str, str]
) -> None:
    pod = make_pod(annotations, name=FORGED, namespace="../../kube-system")
    request = {"namespace": "../../kube-system", "name": FORGED, "uid": FORGED}
    body = json.dumps(make_review(pod, **request)).encode()
    with serving.cpu_time_within(CPU_SECONDS):
        answer = serving.ask("POST", path, body, headers=JSON)
    response = answer.json()["response"]

    assert (answer.status, response["allowed"], response["uid"]) == (200, False, FORGED)
    assert response["status"]["message"].isprintable()
    assert len(answer.body) < 4_000


def test_responses_contain_no_data_of_other_requests(serving: Serving) -> None:
    """Concurrent clients reuse their connections and mix valid and invalid requests."""

    def run_client(number: int) -> list[str]:
        failures: list[str] = []
        client = serving.client()
        try:
            for turn in range(40):
                own_uid = f"mine-{number}-{turn}-end"
                seconds = 1_000 + number * 1_000 + turn
                body = review(str(seconds), uid=own_uid, name=own_uid)
                kind = turn % 5
                if kind == 1:
                    answer = ask_over(client, "POST", "/mutate", body[:-2] + b"]", headers=JSON)
                    is_expected = answer.status == 400
                elif kind == 2:
                    rejected = review(own_uid, uid=own_uid)
                    answer = ask_over(client, "POST", "/validate", rejected, headers=JSON)
                    is_expected = own_uid in answer.json()["response"]["status"]["message"]
                else:
                    content = in_chunks(body) if kind == 3 else body
                    answer = ask_over(
                        client, "POST", "/mutate", content, headers=JSON, encode_chunked=kind == 3
                    )
                    uid, held = uid_and_hold(answer.body)
                    is_expected = uid == own_uid and _milliseconds(held) == seconds * 1_000
                foreign_content = answer.body.replace(own_uid.encode(), b"")
                if not is_expected or b"mine-" in foreign_content:
                    failures.append(f"{own_uid}: {answer.status} {answer.body!r}")
        finally:
            client.close()
        return failures

    with ThreadPoolExecutor(12) as pool:
        assert [
            failure for failures in pool.map(run_client, range(12)) for failure in failures
        ] == []


def _milliseconds(held: str) -> int:
    key, _, delay = held.partition("=")
    assert key == "delay"
    return parse_delay(delay)
