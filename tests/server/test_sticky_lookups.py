"""`holdfast serve` with concurrent VM lookups, up to and beyond its capacity."""

import base64
import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import psutil
import pytest

from holdfast.certs.authority import KeyPair
from holdfast.webhook.model import kubevirt
from holdfast.webhook.server.handler import BODY_LIMIT
from holdfast.webhook.server.offload import POOL_SIZE
from holdfast.webhook.server.worker import BODIES_AT_ONCE
from tests.server.api_server import ApiServer
from tests.server.harness import Answer, wait_until
from tests.server.harness import ask as ask_over
from tests.server.memory import allowed, peak
from tests.server.serving import JSON, Serving, serve_holdfast
from tests.support import scrapes
from tests.support.builders import make_pod, make_review
from tests.support.served import kubeconfig
from tests.support.vm_builders import make_launcher, make_vm, make_vmi, owner_of

CONFIGURATION = """
apiVersion: holdfast.dev/v1beta1
kind: HoldfastConfiguration
"""
VMS, CLIENTS, TURNS = 59, 12, 40
LARGE, LARGE_ANNOTATIONS, LARGE_VALUE = BODIES_AT_ONCE, 4_900, "x" * 1_000
"""The maximum number of reviews of two thirds of the limit, and the annotations in each."""
CPU_SECONDS = 0.02
"""Maximum CPU time of a review with two lookups, overhead included."""


def node_of(number: int) -> str:
    return f"node-{number:03}-end"


def put_vm(api: ApiServer, number: int) -> None:
    """Store a VM with a unique UID and a record, and its VMI."""
    name, uid = f"vm-{number}", f"uid-{number}"
    record = {kubevirt.STICKY_NODE: node_of(number), kubevirt.STICKY_NODE_UID: uid}
    owners = [owner_of(kubevirt.VM, name, uid)]
    api.objects[kubevirt.vm_path("default", name)] = make_vm(record, name=name, uid=uid)
    api.objects[kubevirt.vmi_path("default", name)] = make_vmi(
        name=name, uid=f"vmi-{number}", owners=owners
    )


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer().serving() as server:
        server.objects[kubevirt.API_PATH] = {"kind": "APIResourceList"}
        for number in range(VMS):
            put_vm(server, number)
        yield server


@pytest.fixture
def serving(
    api: ApiServer, tmp_path_factory: pytest.TempPathFactory, issued: list[KeyPair]
) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "kubeconfig").write_text(json.dumps(kubeconfig(api.address)))
    options = ("--kubeconfig", str(folder / "kubeconfig"))
    with serve_holdfast(folder, issued[0], *options, configuration=CONFIGURATION) as running:
        yield running


def launcher_review(
    number: int, uid: str, vmi_uid: str = "", annotations: Mapping[str, str] | None = None
) -> bytes:
    owner = owner_of(kubevirt.VMI, f"vm-{number}", vmi_uid or f"vmi-{number}")
    account = {"username": kubevirt.CONTROLLER_ACCOUNT}
    pod = make_launcher(owners=[owner], name=f"virt-launcher-{uid}")
    pod["metadata"].setdefault("annotations", {}).update(annotations or {})
    review = make_review(pod, uid=uid, userInfo=account)
    return json.dumps(review, separators=(",", ":")).encode()


def content_of(answer: Answer) -> tuple[Any, str]:
    """Return the response, and its patch as text."""
    assert answer.status == 200, answer
    response = answer.json()["response"]
    return response, base64.b64decode(response.get("patch", "")).decode()


def test_each_response_has_the_node_of_its_own_vm(serving: Serving, api: ApiServer) -> None:
    """Concurrent clients reuse their connections, and lookups finish out of order."""

    def run_client(client_number: int) -> list[str]:
        failures: list[str] = []
        with closing(serving.client()) as client:
            for turn in range(TURNS):
                number = (client_number * 7 + turn * 11) % VMS
                uid = f"review-{client_number}-{turn}-end"
                problem = problem_of(client, number, uid, turn % 4)
                if problem:
                    failures.append(f"{uid}: {problem}")
        return failures

    with (
        serving.cpu_time_within(CLIENTS * TURNS * CPU_SECONDS),
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        problems = [
            failure for failures in pool.map(run_client, range(CLIENTS)) for failure in failures
        ]
    assert problems == []
    assert len(api.requested_paths) > CLIENTS * TURNS
    serving.check_healthy()


def problem_of(client: http.client.HTTPSConnection, number: int, uid: str, kind: int) -> str:
    """Send one review, and return what is wrong with the response, if anything."""
    if kind == 1:  # answered in the event loop, between reviews that wait
        body = json.dumps(make_review(make_pod({"delay": f"{number + 1}"}), uid=uid)).encode()
        expected, allowed = [f"delay={number + 1}s"], True
    elif kind == 2:  # a recreated VM: the response may reveal nothing about it
        body, expected, allowed = launcher_review(number, uid, "another"), [], False
    else:
        body, allowed = launcher_review(number, uid), True
        expected = [node_of(number), kubevirt.STICKY]
    answer = ask_over(client, "POST", "/mutate", body, headers=JSON)
    response, patch = content_of(answer)
    foreign_text = answer.body.decode().replace(uid, "") + patch.replace(node_of(number), "")
    is_expected = (response["uid"], response["allowed"]) == (uid, allowed) and all(
        text in patch for text in expected
    )
    leaked = "review-" in foreign_text or "node-0" in (
        foreign_text if expected else foreign_text + patch
    )
    if kind != 2 and is_expected and not leaked:
        return ""
    if kind == 2 and is_expected and not leaked and f"vm-{number}" in response["status"]["message"]:
        return ""
    return f"{answer.status} {answer.body!r} {patch}"


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
def test_metrics_do_not_reveal_whether_a_vmi_exists(serving: Serving, path: str) -> None:
    """Otherwise metrics would reveal a VMI to a client that does not know its UID."""

    def counted(number: int) -> Mapping[str, float]:
        body = launcher_review(number, "guess", "another")
        metrics = serving.ask("GET", "/metrics").body.decode()
        response, _ = content_of(serving.ask("POST", path, body, headers=JSON))
        assert not response["allowed"]
        return scrapes.changes(metrics, serving.ask("GET", "/metrics").body.decode())

    counted(0)  # the first review also caches KubeVirt's account for a minute
    present, absent = counted(0), counted(VMS)

    assert "holdfast_lookup_duration_seconds_count" in str(present)
    assert present == absent


@contextmanager
def sent(serving: Serving, bodies: Sequence[bytes]) -> Iterator[list[Future[Answer]]]:
    """Send reviews at the same time, each over its own connection."""
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(serving.client())) for _ in bodies]
        for client in clients:
            client.connect()
        pool = stack.enter_context(ThreadPoolExecutor(len(bodies)))
        yield [
            pool.submit(ask_over, client, "POST", "/mutate", body, headers=JSON)
            for client, body in zip(clients, bodies, strict=True)
        ]


def test_excess_vm_pod_reviews_are_rejected_with_the_reason(
    serving: Serving, api: ApiServer
) -> None:
    """While lookups hang, no VM pod is admitted, and no other pod waits."""
    bodies = [launcher_review(number, f"r-{number}") for number in range(2 * POOL_SIZE + 8)]
    api.may_end.clear()
    with sent(serving, bodies) as futures:
        held_review = json.dumps(make_review(make_pod({"delay": "15"}))).encode()
        assert content_of(serving.ask("POST", "/mutate", held_review, headers=JSON))[0]["allowed"]
        answers = [future.result() for future in futures]

    messages = []
    for number, answer in enumerate(answers):
        response, patch = content_of(answer)
        status = response["status"]
        assert (response["uid"], response["allowed"], patch) == (f"r-{number}", False, "")
        assert (status["code"], status["reason"]) == (429, "TooManyRequests")
        messages.append(status["message"])
    late_message = "a plugin did not finish the review within 2.5 s; try again"
    full_message = "too many reviews are waiting on plugins that block; try again"
    assert set(messages) == {late_message, full_message}
    assert messages.count(late_message) >= POOL_SIZE
    metrics = serving.ask("GET", "/metrics").body.decode()
    assert f"holdfast_reviews_turned_away_total {float(messages.count(full_message))}" in metrics

    api.may_end.set()
    wait_until("VM pods are served again", lambda: is_served(serving))
    serving.check_healthy(errors=True)


@pytest.mark.timeout(300)
def test_large_waiting_reviews_stay_within_the_memory_limit(
    serving: Serving, api: ApiServer
) -> None:
    """While lookups hang, one large review waits; the others are rejected and freed."""
    api.may_end.clear()
    annotations = {f"k{number:x}": LARGE_VALUE for number in range(LARGE_ANNOTATIONS)}
    bodies = [
        launcher_review(number, f"r-{number}", annotations=annotations) for number in range(LARGE)
    ]
    assert BODY_LIMIT // 2 < len(bodies[0]) <= BODY_LIMIT, "two of them must not fit together"
    with sent(serving, bodies) as futures:
        answers = [future.result() for future in futures]

    messages = [json.loads(answer.body)["response"]["status"]["message"] for answer in answers]
    assert (
        len([message for message in messages if message.startswith("too many reviews are waiting")])
        >= LARGE // 2
    )
    assert peak(psutil.Process(serving.command.pid)) + peak(serving.worker) < allowed()
    api.may_end.set()
    wait_until("VM pods are served again", lambda: is_served(serving))
    serving.check_healthy(errors=True)


def is_served(serving: Serving) -> bool:
    answer = serving.ask("POST", "/mutate", launcher_review(3, "again"), headers=JSON)
    return node_of(3) in content_of(answer)[1]
