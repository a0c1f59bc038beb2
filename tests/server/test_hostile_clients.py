"""`holdfast serve` with clients that send what no API server would send."""

import base64
import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from holdfast.webhook.model.durations import parse_delay
from tests.server.harness import ask as ask_over
from tests.server.serving import JSON, PATHS, Serving, in_chunks
from tests.support.builders import make_pod, make_review

FORGED = (
    'x\r\n{"level": "error", "message": "forged"}\r\n2026-01-01 00:00:00,000 ERROR holdfast: forged'
    "\n\u2028\u2029\x85\u202e\x1b[2J\x00../../etc/passwd"
)
CPU_SECONDS = 2.0
"""Maximum CPU time of one request, however large it is."""


@pytest.fixture(autouse=True)
def _healthy(serving: Serving) -> Iterator[None]:
    yield
    serving.check_healthy()


def review(delay: str, **request: Any) -> bytes:
    return json.dumps(make_review(make_pod({"delay": delay}), **request)).encode()


def uid_and_delay(answer: bytes) -> tuple[str, int]:
    """Return the UID of a response, and the delay in milliseconds that its patch records."""
    response = json.loads(answer)["response"]
    operations = json.loads(base64.b64decode(response["patch"]))
    (held,) = (
        operation["value"]
        for operation in operations
        if operation["path"].endswith("/holdfast.dev~1held")
    )
    assert held.startswith("delay=")
    return response["uid"], parse_delay(held.removeprefix("delay="))


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


BOMB = gzip.compress(b" " * (64 << 20))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("path", PATHS)
def test_decompression_bomb_is_rejected_without_decompression(serving: Serving, path: str) -> None:
    with serving.cpu_time_within(CPU_SECONDS):
        answer = serving.ask("POST", path, BOMB, headers=JSON | {"Content-Encoding": "gzip"})

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
        with closing(serving.client()) as client:
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
                    is_expected = uid_and_delay(answer.body) == (own_uid, seconds * 1_000)
                foreign_content = answer.body.replace(own_uid.encode(), b"")
                if not is_expected or b"mine-" in foreign_content:
                    failures.append(f"{own_uid}: {answer.status} {answer.body!r}")
        return failures

    with ThreadPoolExecutor(12) as pool:
        assert [
            failure for failures in pool.map(run_client, range(12)) for failure in failures
        ] == []
