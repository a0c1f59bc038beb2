import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.webhook.errors import ClusterError, StartError, UnreachableError
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


def test_object_is_not_cached_by_default(api: FakeApi) -> None:
    cluster = lookup(api)
    assert cluster.get(PATH) == api.pods["default", "web-0"]

    api.annotate(("default", "web-0"), later="yes")
    document = cluster.get(PATH)
    assert document is not None
    assert document["metadata"]["annotations"] == {"later": "yes"}
    assert api.requests == [("GET", PATH)] * 2


def test_lookups_per_minute_are_limited(api: FakeApi) -> None:
    now = [0.0]
    cluster = ClusterLookup(lambda: api, per_minute=2, timer=lambda: now[0])
    for _ in range(2):
        cluster.get(PATH, max_age=9.0)
        cluster.get(f"{PATH}-other")
        with pytest.raises(UnreachableError, match="more than 2 lookups in a minute"):
            cluster.get(f"{PATH}-third")
        now[0] += 60.0
    assert len(api.requests) == 4


def test_cached_object_is_returned_within_its_max_age(api: FakeApi) -> None:
    now = [0.0]
    cluster = ClusterLookup(lambda: api, timer=lambda: now[0])
    request_counts = []
    for now[0], max_age in [(0.0, 60.0), (5.0, 60.0), (5.0, 5.0), (9.0, 5.0), (9.0, 0.0)]:
        cluster.get(PATH, max_age=max_age)
        request_counts.append(len(api.requests))

    assert request_counts == [1, 1, 2, 2, 3]


def test_cached_objects_expire_after_a_minute(api: FakeApi) -> None:
    now = [0.0]
    cluster = ClusterLookup(lambda: api, timer=lambda: now[0])
    for now[0], path in ((0.0, PATH), (60.0, f"{PATH}-other"), (61.0, PATH)):
        cluster.get(path, max_age=90.0)
    assert len(api.requests) == 3


@pytest.mark.parametrize(
    "error",
    [status_error(403), status_error(404), status_error(500), unreachable()],
    ids=["403", "404 without a reason", "500", "unreachable"],
)
def test_failed_lookup_raises_the_error(api: FakeApi, error: ClusterError) -> None:
    api.before("GET", raising(error))
    with pytest.raises(type(error)) as caught:
        lookup(api).get(PATH)

    assert caught.value is error


@pytest.mark.parametrize("response", [b"", b"<html>", b'{"a": "\xff"}', b"[]", b"null"])
def test_invalid_response_is_an_error(api: FakeApi, response: bytes) -> None:
    api.answers[PATH] = response
    with pytest.raises(UnreachableError, match=f"^the response for {PATH} is not valid: "):
        lookup(api).get(PATH)


def test_connection_is_made_once_on_first_use(api: FakeApi) -> None:
    connecting = Connecting(api)
    cluster = ClusterLookup(connecting)
    assert connecting.count == 0

    barrier = threading.Barrier(4)

    def look_up() -> object:
        barrier.wait(5)
        return cluster.get(PATH)

    with ThreadPoolExecutor(4) as pool:
        results = [job.result() for job in [pool.submit(look_up) for _ in range(4)]]

    assert all(results)
    assert connecting.count == 1


def test_failed_connection_is_an_error_and_retried(api: FakeApi) -> None:
    connecting = Connecting(api)
    connecting.failures = [StartError("no usable kubeconfig; name one")] * 2
    cluster = ClusterLookup(connecting)
    with pytest.raises(StartError, match="no usable kubeconfig; name one"):
        cluster.connect()
    with pytest.raises(ClusterError) as caught:
        cluster.get(PATH)

    assert str(caught.value) == "no usable kubeconfig; name one"
    assert cluster.get(PATH)
    assert connecting.count == 3


def test_two_lookups_fit_into_the_review_deadline() -> None:
    assert 2 * TIMEOUT < DEADLINE


def test_each_lookup_is_measured_also_of_a_missing_object(api: FakeApi) -> None:
    observations: list[tuple[str, float]] = []
    times = iter([1.0, 1.5, 2.0, 2.25, 3.0, 4.0])
    cluster = ClusterLookup(
        lambda: api,
        observe=lambda outcome, seconds: observations.append((outcome, seconds)),
        timer=lambda: next(times),
    )
    cluster.get(PATH)
    assert cluster.get("/api/v1/namespaces/default/pods/none") is None
    api.before("GET", raising(unreachable()))
    with pytest.raises(UnreachableError):
        cluster.get(PATH)
    assert observations == [("answered", 0.5), ("answered", 0.25), ("failed", 1.0)]
