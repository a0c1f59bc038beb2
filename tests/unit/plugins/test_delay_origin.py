import threading
from typing import Any

import pytest

from holdfast.webhook.errors import ApiStatusError, LookupLimitError, UnreachableError
from holdfast.webhook.framework.plugin import Allow, Wait
from holdfast.webhook.model import durations
from holdfast.webhook.model.objects import ObjectKey, Pod
from holdfast.webhook.plugins import delay_origin
from holdfast.webhook.plugins.delay import Delay, DelayArgs
from holdfast.webhook.plugins.delay_origin import DELAY_FROM
from tests.support.builders import CREATED_MS, HOUR, MINUTE, handle_with, held, instant
from tests.support.vm_builders import owner_of

REPLICA_SET = "/apis/apps/v1/namespaces/default/replicasets/web"
FROM_POD = "the delay counts from the pod's creation: "


def owned(
    kind: str = "ReplicaSet",
    uid: str = "u",
    created_ms: int = CREATED_MS,
    origin: str = "owner",
    name: str = "web",
) -> Pod:
    owner = owner_of(kind, name, uid, api_version="batch/v1" if kind == "Job" else "apps/v1")
    annotations = {"delay": "10m", DELAY_FROM: origin}
    labels, created_at = {"controller-revision-hash": "web-1"}, durations.to_datetime(created_ms)
    return Pod.of(held(annotations, owners=[owner], labels=labels, created=created_at))


class Cluster:
    """A fake controller and API server that return one object or raise an error."""

    def __init__(self, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(delay_origin, "_PAUSES", (0.0,))
        self.answer = answer
        self.read: list[str] = []
        self.rechecked = threading.Event()
        handle = handle_with(lookup=self, waiting=self, bounds_ms=lambda: (0, 0))
        self.plugin = Delay(DelayArgs(), handle)

    def get(self, path: str, *, max_age: float = 0.0) -> Any:
        del max_age
        self.read.append(path)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def recheck(self, key: ObjectKey, at_ms: int = 0) -> None:
        assert (key, at_ms) == (("default", "web-0"), 0)
        self.rechecked.set()

    def permit(self, pod: Pod, now_ms: int = CREATED_MS) -> Any:
        first_result = self.plugin.permit(pod, now_ms)
        assert first_result == Wait(None, "looks up when its revision was created")
        assert self.rechecked.wait(5)
        return self.plugin.permit(pod, now_ms)


def created(at_ms: int, uid: str = "u") -> Any:
    return {"metadata": {"uid": uid, "creationTimestamp": instant(at_ms)}}


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("ReplicaSet", "replicasets/web"),
        ("StatefulSet", "controllerrevisions/web-1"),
        ("DaemonSet", "controllerrevisions/web-web-1"),
        ("Job", "jobs/web"),
    ],
    ids=str,
)
def test_replacement_starts_at_once(kind: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(created(CREATED_MS - HOUR), monkeypatch)

    assert cluster.permit(owned(kind)) == Allow()
    assert [read_path.rpartition("/default/")[2] for read_path in cluster.read] == [path]


@pytest.mark.parametrize("kind", ["ReplicaSet", "DaemonSet", "Job"])
@pytest.mark.parametrize("name", ["?watch=1", "../../x", "%", ".."])
def test_owner_with_an_invalid_name_is_not_looked_up(kind: str, name: str) -> None:
    assert delay_origin.revision_of(owned(kind, name=name)) is None


def test_owner_with_an_oversized_uid_is_ignored() -> None:
    assert delay_origin.revision_of(owned(uid="u" * 1_000_000)) is None


@pytest.mark.parametrize(
    ("kind", "uid", "later_ms", "until_ms"),
    [
        pytest.param("StatefulSet", "v", 0, 9 * MINUTE, id="another StatefulSet"),
        pytest.param("StatefulSet", "u", HOUR, 9 * MINUTE, id="recreated revision"),
        pytest.param("StatefulSet", "u", 0, None, id="the same revision"),
        pytest.param("ReplicaSet", "u", HOUR, None, id="the same owner"),
    ],
)
def test_recreated_revision_counts_from_its_own_creation(
    kind: str, uid: str, later_ms: int, until_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    created_ms = CREATED_MS + later_ms
    cluster = Cluster(created(CREATED_MS - HOUR), monkeypatch)
    cluster.permit(owned(kind))
    cluster.answer = created(created_ms - MINUTE, uid)
    cluster.rechecked.clear()
    recreated = owned(kind, uid=uid, created_ms=created_ms)

    if until_ms is None:
        assert cluster.plugin.permit(recreated, created_ms) == Allow()
    else:
        assert cluster.permit(recreated, created_ms).until_ms == created_ms + until_ms


@pytest.mark.parametrize(
    ("answer", "until_ms", "reason"),
    [
        pytest.param(
            created(CREATED_MS - MINUTE), 9 * MINUTE, "from ReplicaSet web, created 2026", id="new"
        ),
        pytest.param(created(CREATED_MS + HOUR), 10 * MINUTE, "from ReplicaSet web", id="adopted"),
        pytest.param(None, 10 * MINUTE, f"{FROM_POD}ReplicaSet web was deleted", id="deleted"),
        pytest.param(created(0, "v"), 10 * MINUTE, "was deleted", id="recreated"),
        pytest.param({"metadata": {"uid": "u"}}, 10 * MINUTE, FROM_POD, id="no timestamp"),
        pytest.param(
            ApiStatusError("HTTP 403: no", status=403),
            10 * MINUTE,
            f"{FROM_POD}ReplicaSet web cannot be read: HTTP 403: no",
            id="forbidden",
        ),
        pytest.param(UnreachableError("timed out"), 10 * MINUTE, "timed out", id="unreachable"),
    ],
)
def test_rollout_waits(
    answer: Any, until_ms: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(answer, monkeypatch)

    wait = cluster.permit(owned())

    assert wait.until_ms == CREATED_MS + until_ms
    assert reason in wait.reason
    tries = 2 if isinstance(answer, UnreachableError) else 1
    assert cluster.read == [REPLICA_SET] * tries


def test_command_looks_up_the_revision_synchronously(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(created(CREATED_MS - MINUTE), monkeypatch)
    cluster.plugin.handle.connect(lookup=cluster)

    waits: list[Any] = [cluster.plugin.permit(owned(), 0) for _ in range(2)]

    assert {wait.until_ms for wait in waits} == {CREATED_MS + 9 * MINUTE}
    assert cluster.read == [REPLICA_SET]


def test_command_retries_a_lookup_rejected_by_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(LookupLimitError("too many"), monkeypatch)
    cluster.plugin.handle.connect(lookup=cluster)
    first: Any = cluster.plugin.permit(owned(), 0)
    cluster.answer = created(CREATED_MS - MINUTE)
    second: Any = cluster.plugin.permit(owned(), 0)
    assert (first.open_ended, second.open_ended) == (True, False)


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (owned(), "at the latest: the delay counts from ReplicaSet web"),
        (owned("Other"), f"{FROM_POD}its owner has no revisions"),
        (owned(origin="pod"), ""),
        (owned(origin="nonsense"), ""),
    ],
    ids=["in a command", "another owner", "from the pod", "invalid"],
)
def test_delay_counts_from_the_pod_without_a_lookup(pod: Pod, reason: str) -> None:
    may_be_earlier = reason.startswith("at the latest")
    expected = Wait(CREATED_MS + 10 * MINUTE, reason, open_ended=may_be_earlier)
    assert Delay(DelayArgs()).permit(pod, 0) == expected


def test_noisy_namespace_does_not_delay_lookups_of_others() -> None:
    reading, resume, answered = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)
    namespaces: list[str] = []

    class SlowLookup:
        def get(self, path: str, **_: float) -> None:
            namespaces.append(path.split("/")[5])
            reading.release()
            assert resume.wait(5)

        def recheck(self, _key: ObjectKey, _at_ms: int = 0) -> None:
            answered.release()

    slow_lookup = SlowLookup()
    handle = handle_with(lookup=slow_lookup, waiting=slow_lookup, bounds_ms=lambda: (0, 0))
    plugin = Delay(DelayArgs(), handle)
    pods = [("noisy", f"web-{number}") for number in range(50)] + [("quiet", "web")]

    for namespace, owner in pods:
        owners = [owner_of("ReplicaSet", owner, "u", api_version="apps/v1")]
        annotations = {"delay": "10m", DELAY_FROM: "owner"}
        plugin.permit(Pod.of(held(annotations, namespace=namespace, owners=owners)), CREATED_MS)
    for _ in range(delay_origin._THREADS):
        assert reading.acquire(timeout=5)
    resume.set()
    for _ in pods:
        assert answered.acquire(timeout=5)

    assert namespaces.index("quiet") <= delay_origin._THREADS + 1
