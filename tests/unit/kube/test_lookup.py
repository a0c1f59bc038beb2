import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.webhook.errors import ApiStatusError, ClusterError, StartError, UnreachableError
from holdfast.webhook.kube.lookup import TIMEOUT, ClusterLookup
from holdfast.webhook.server.offload import DEADLINE
from tests.support.builders import make_pod
from tests.support.fakes import FakeApi, raising, status_error, unreachable

PATH = "/api/v1/namespaces/default/pods/web-0"


class Connecting:
    """Counts how often a connection is made."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.count = 0
        self.failures: list[Exception] = []

    def __call__(self) -> FakeApi:
        self.count += 1
        if self.failures:
            raise self.failures.pop()
        return self.api


@pytest.fixture
def api() -> FakeApi:
    return FakeApi(make_pod())


def lookup(api: FakeApi) -> ClusterLookup:
    return ClusterLookup(lambda: api)


def test_object_is_read_afresh(api: FakeApi) -> None:
    found = lookup(api)
    assert found.get(PATH) == api.pods["default", "web-0"]

    api.annotate(("default", "web-0"), later="yes")
    again = found.get(PATH)
    assert again is not None
    assert again["metadata"]["annotations"] == {"later": "yes"}
    assert api.requests == [("GET", PATH)] * 2


def test_lookups_of_a_command_are_limited(api: FakeApi) -> None:
    now = [0.0]
    found = ClusterLookup(lambda: api, per_minute=2, timer=lambda: now[0])
    for _ in range(2):
        found.get(PATH, max_age=9.0)
        found.get(f"{PATH}-other")
        with pytest.raises(UnreachableError, match="more than 2 lookups in a minute"):
            found.get(f"{PATH}-third")
        now[0] += 60.0
    assert len(api.requests) == 4


def test_answer_is_kept_for_callers_that_accept_an_old_one(api: FakeApi) -> None:
    now = [0.0]
    found = ClusterLookup(lambda: api, timer=lambda: now[0])
    ages = []
    for now[0], max_age in [(0.0, 60.0), (5.0, 60.0), (5.0, 5.0), (9.0, 5.0), (9.0, 0.0)]:
        found.get(PATH, max_age=max_age)
        ages.append(len(api.requests))

    assert ages == [1, 1, 2, 2, 3]


def test_answers_are_dropped_after_a_minute(api: FakeApi) -> None:
    now = [0.0]
    found = ClusterLookup(lambda: api, timer=lambda: now[0])
    for now[0], path in ((0.0, PATH), (60.0, f"{PATH}-other"), (61.0, PATH)):
        found.get(path, max_age=90.0)
    assert len(api.requests) == 3


def test_object_that_is_not_there(api: FakeApi) -> None:
    assert lookup(api).get("/api/v1/namespaces/default/pods/none") is None


@pytest.mark.parametrize(
    "error", [status_error(403), status_error(500), unreachable()], ids=["403", "500", "no answer"]
)
def test_failure_is_told(api: FakeApi, error: ClusterError) -> None:
    api.before("GET", raising(error))
    with pytest.raises(type(error)) as caught:
        lookup(api).get(PATH)

    assert caught.value is error


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(b"", f"the response for {PATH} is not valid: ", id="empty"),
        pytest.param(b"<html>", f"the response for {PATH} is not valid: ", id="of a proxy"),
        pytest.param(b'{"a": "\xff"}', f"the response for {PATH} is not valid: ", id="no UTF-8"),
        pytest.param(b"[]", f"the response for {PATH} is not valid: ", id="a list"),
        pytest.param(b"null", f"the response for {PATH} is not valid: ", id="null"),
    ],
)
def test_answer_that_is_no_object(api: FakeApi, answer: bytes, expected: str) -> None:
    api.answers[PATH] = answer
    with pytest.raises(UnreachableError) as caught:
        lookup(api).get(PATH)

    assert str(caught.value).startswith(expected)


def test_connection_is_made_when_it_is_needed_and_once(api: FakeApi) -> None:
    connecting = Connecting(api)
    found = ClusterLookup(connecting)
    assert connecting.count == 0

    barrier = threading.Barrier(4)

    def ask() -> object:
        barrier.wait(5)
        return found.get(PATH)

    with ThreadPoolExecutor(4) as pool:
        answers = [job.result() for job in [pool.submit(ask) for _ in range(4)]]

    assert all(answers)
    assert connecting.count == 1


def test_connection_that_cannot_be_made_is_tried_again(api: FakeApi) -> None:
    connecting = Connecting(api)
    connecting.failures = [StartError("no usable kubeconfig; name one")]
    found = ClusterLookup(connecting)
    with pytest.raises(ClusterError) as caught:
        found.get(PATH)

    assert str(caught.value) == "no usable kubeconfig; name one"
    assert found.get(PATH)
    assert connecting.count == 2


def test_404_without_kubernetes_own_reason_says_that_there_is_no_such_kind(api: FakeApi) -> None:
    api.before("GET", raising(status_error(404)), raising(status_error(404, reason="NotFound")))
    with pytest.raises(ApiStatusError):
        lookup(api).get(PATH)

    assert lookup(api).get(PATH) is None


def test_connection_can_be_made_ahead(api: FakeApi) -> None:
    connecting = Connecting(api)
    found = ClusterLookup(connecting)
    found.connect()
    found.connect()
    assert (connecting.count, api.requests) == (1, [])
    assert found.get(PATH)
    assert connecting.count == 1


def test_connection_that_cannot_be_made_ahead_is_an_error_at_start(api: FakeApi) -> None:
    connecting = Connecting(api)
    connecting.failures = [StartError("no usable kubeconfig; name one")]
    with pytest.raises(StartError, match="no usable kubeconfig; name one"):
        ClusterLookup(connecting).connect()


def test_two_lookups_wait_less_than_a_review_may() -> None:
    assert 2 * TIMEOUT < DEADLINE


def test_each_lookup_is_measured(api: FakeApi) -> None:
    seen: list[tuple[str, float]] = []
    times = iter([1.0, 1.5, 2.0, 2.25, 3.0, 4.0])
    measured = ClusterLookup(
        lambda: api,
        observe=lambda outcome, seconds: seen.append((outcome, seconds)),
        timer=lambda: next(times),
    )
    measured.get(PATH)
    measured.get("/api/v1/namespaces/default/pods/none")
    api.before("GET", raising(unreachable()))
    with pytest.raises(UnreachableError):
        measured.get(PATH)
    assert seen == [("answered", 0.5), ("answered", 0.25), ("failed", 1.0)]
