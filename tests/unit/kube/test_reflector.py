import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast.webhook.errors import ApiStatusError, ResponseTooLargeError
from holdfast.webhook.kube import listing, reflector
from holdfast.webhook.kube.reflector import Handlers, Reflector
from holdfast.webhook.model.objects import Pod
from tests.support.builders import held
from tests.support.fakes import FakeApi, event, raising, status_error, unreachable

SELECTOR = "spec.nodeName=,status.phase!=Failed"


class Named(msgspec.Struct):
    name: str


class Unversioned(Named):
    resource_version: str = ""


class InstantEvent(threading.Event):
    """Records each wait, and returns at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return self.is_set()


class World:
    """An API, a handler, and a reflector that stops when the streams are used up."""

    def __init__(self, *names: str, page_size: int = 500) -> None:
        self.api = FakeApi(*(held(name=name) for name in names))
        self.api.page_size = page_size
        self.calls: list[tuple[str, list[str]]] = []
        self.restarts: list[str] = []
        self.stop = InstantEvent()
        self.time = 0.0
        handlers: Handlers[Pod] = Handlers(
            lambda pods: self._record("sync", pods),
            lambda pod: self._record("update", [pod]),
            lambda pod: self._record("delete", [pod]),
        )
        self.reflector = Reflector(
            self.api,
            handlers,
            Pod,
            path="/api/v1/pods",
            selection={"fieldSelector": SELECTOR},
            on_restart=self.restarts.append,
            now=lambda: self.time,
        )

    def run(self, *streams: Iterable[bytes | Exception]) -> None:
        self.api.streams.extend([*streams, self._last()])
        self.reflector.run(self.stop)

    def _last(self) -> Iterator[bytes]:
        self.stop.set()
        yield bookmark("999")

    def _record(self, kind: str, pods: Iterable[Pod]) -> None:
        self.calls.append((kind, [pod.metadata.name for pod in pods]))

    def advance(self, seconds: float) -> None:
        self.time += seconds

    def query_values(self, name: str) -> list[Any]:
        return [query.get(name) for query in self.api.queries]


def bookmark(version: str) -> bytes:
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": version}})


def error(code: int) -> bytes:
    return event("ERROR", {"kind": "Status", "code": code, "message": "too old"})


def change(kind: str, name: str, version: str = "5") -> bytes:
    return event(kind, held(name=name, version=version))


def acting(act: Callable[[], None], *lines: bytes) -> Iterator[bytes]:
    act()
    yield from lines


def test_watch_starts_at_the_version_of_the_list() -> None:
    world = World("a", "b")
    world.run([change("ADDED", "c"), change("MODIFIED", "a"), change("DELETED", "b", "8")])

    assert world.calls == [
        ("sync", ["a", "b"]),
        ("update", ["c"]),
        ("update", ["a"]),
        ("delete", ["b"]),
    ]
    assert world.query_values("resourceVersion") == [None, "102", "8"]
    assert world.query_values("fieldSelector") == [SELECTOR] * 3
    assert world.query_values("allowWatchBookmarks") == [None, "true", "true"]
    assert world.restarts == ["end", "end", "stop"]


def test_pages_of_a_list_are_synced_together() -> None:
    world = World("a", "b", "c", "d", "e", page_size=2)
    world.run()

    assert world.calls == [("sync", ["a", "b", "c", "d", "e"])]
    assert world.query_values("limit") == [500, 500, 500, None]
    assert world.query_values("continue") == [None, "2", "4", None]


def test_oversized_page_is_read_in_smaller_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "SMALL_PAGE", 600)  # a page of one pod is small
    world = World("a", "b", "c", "d", "e", page_size=2)
    world.api.before("GET", *[raising(ResponseTooLargeError("too large"))] * 4)
    world.run()

    assert world.calls == [("sync", ["a", "b", "c", "d", "e"])]
    assert world.query_values("limit")[:7] == [500, 125, 31, 7, 1, 2, 2]
    assert world.query_values("continue")[:7] == [*[None] * 5, "1", "3"]


def test_oversized_object_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    world = World("a")
    world.api.before("GET", *[raising(ResponseTooLargeError("too large"))] * 5)
    world.run()

    assert "following /api/v1/pods: too large; listing again" in caplog.text


def test_bookmarks_advance_the_watch_without_updates() -> None:
    world = World("a")
    world.run([bookmark("70")], [bookmark("80")])

    assert world.calls == [("sync", ["a"])]
    assert world.query_values("resourceVersion")[2:] == ["70", "80"]


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param([change("ADDED", "b"), error(410)], id="an event"),
        pytest.param([change("ADDED", "b"), status_error(410)], id="a status"),
    ],
)
def test_expired_watch_lists_again(ending: list[bytes | Exception]) -> None:
    world = World("a")
    world.run(ending)

    assert world.calls == [("sync", ["a"]), ("update", ["b"]), ("sync", ["a"])]
    assert world.restarts == ["expired", "end", "stop"]


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param([error(500)], id="an ERROR event"),
        pytest.param([event("ERROR", {})], id="an ERROR event without a code"),
        pytest.param([unreachable()], id="connection broken"),
        pytest.param([status_error(403)], id="forbidden"),
        pytest.param([b'{"type": "ADD'], id="a truncated line"),
        pytest.param([b"[]"], id="a line of the wrong type"),
        pytest.param([event("ADDED", {"metadata": []})], id="an invalid pod"),
        pytest.param([b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}'], id="not UTF-8"),
    ],
)
def test_failing_watch_lists_again(
    ending: list[bytes | Exception], caplog: pytest.LogCaptureFixture
) -> None:
    world = World("a")
    world.run(ending)

    assert world.calls == [("sync", ["a"])] * 2
    assert world.restarts == ["error", "end", "stop"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize(
    "failure",
    [status_error(500), status_error(410), unreachable()],
    ids=["500", "410", "unreachable"],
)
def test_partial_list_is_not_synced(failure: Exception) -> None:
    world = World("a", "b", "c", page_size=2)
    world.api.before("GET", lambda: None, raising(failure))  # the second page fails
    world.run()

    assert world.calls == [("sync", ["a", "b", "c"])]
    assert world.query_values("continue")[:4] == [None, "2", None, "2"]
    assert world.restarts == ["error", "end", "stop"]


@pytest.mark.parametrize("absent", ["", "pods are not served"])
def test_missing_kind_deletes_nothing(absent: str) -> None:
    world = World("a")
    world.reflector = replace(world.reflector, absent=absent)
    world.api.before("GET", lambda: None, raising(status_error(404)))
    world.run([error(410)])

    assert world.calls == [("sync", ["a"])] * 2
    assert world.restarts == ["expired", "absent" if absent else "error", "end", "stop"]


@pytest.mark.parametrize("status", [429, 503, 504])
def test_unavailable_page_is_requested_again(status: int, caplog: pytest.LogCaptureFixture) -> None:
    world = World("a", "b", "c", page_size=2)
    errors = [
        ApiStatusError(f"HTTP {status}: current: {number}", status=status) for number in range(3)
    ]
    world.api.before("GET", lambda: None, *map(raising, errors))
    world.run()

    assert world.calls == [("sync", ["a", "b", "c"])]
    assert world.query_values("continue")[:5] == [None, "2", "2", "2", "2"]
    assert world.stop.waits[:3] == [reflector.FURTHER_PAUSE_SECONDS] * 3
    assert world.restarts == ["end", "stop"]
    warning = f"HTTP {status} for a further page of the list; retrying"
    assert caplog.messages == [f"following /api/v1/pods: {warning}"]


@pytest.mark.parametrize(
    ("retry_after", "pause"),
    [
        pytest.param(0.0, 1.0, id="none"),
        pytest.param(7.0, 7.0, id="some seconds"),
        pytest.param(86_400.0, 30.0, id="a day"),
    ],
)
def test_page_retry_honours_retry_after(retry_after: float, pause: float) -> None:
    world = World("a", "b", "c", page_size=2)
    world.api.before("GET", lambda: None, raising(status_error(429, retry_after=retry_after)))
    world.run()

    assert world.calls == [("sync", ["a", "b", "c"])]
    assert world.stop.waits[0] == pause


def test_list_restarts_when_a_page_keeps_failing() -> None:
    world = World("a", "b", "c", page_size=2)

    def too_long() -> None:
        world.time += reflector.FURTHER_SECONDS
        raise status_error(504)

    world.api.before("GET", lambda: None, raising(status_error(504)), too_long)
    world.run()

    assert world.calls == [("sync", ["a", "b", "c"])]
    assert world.query_values("continue")[:5] == [None, "2", "2", None, "2"]
    assert world.restarts == ["error", "end", "stop"]


def test_stop_interrupts_a_page_retry() -> None:
    world = World("a", "b", "c", page_size=2)

    def stopped() -> None:
        world.stop.set()
        raise status_error(429, retry_after=30.0)

    world.api.before("GET", lambda: None, stopped)
    world.reflector.run(world.stop)

    assert world.calls == []
    assert world.query_values("continue") == [None, "2"]


def test_invalid_list_is_requested_again() -> None:
    world = World("a")
    world.api.answers["/api/v1/pods"] = b'{"items": []}'  # without a version to watch from
    world.api.before("GET", lambda: None, world.api.answers.clear)
    world.run()

    assert world.calls == [("sync", ["a"])]
    assert world.restarts == ["error", "end", "stop"]


def test_invalid_pod_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    world = World("a", "b", "c")
    world.api.pods["default", "b"]["metadata"]["creationTimestamp"] = "yesterday"
    invalid = event(
        "MODIFIED",
        world.api.pods["default", "b"] | {"spec": [], "metadata": {"resourceVersion": "8"}},
    )
    world.run([change("ADDED", "d"), invalid])

    assert world.calls == [("sync", ["a", "c"]), ("update", ["d"])]
    assert world.restarts == ["end", "end", "stop"]
    assert world.query_values("resourceVersion")[-1] == "8"
    for record in caplog.records:
        assert record.levelno == logging.ERROR
        assert record.getMessage().startswith("/api/v1/pods: ignoring an invalid object: ")
    assert len(caplog.records) == 2


@pytest.mark.parametrize("metadata", [Named, Unversioned], ids=lambda kind: kind.__name__)
def test_kind_without_a_version_is_watched_from_the_last_event(metadata: type[Any]) -> None:
    world = World("a")
    kind: Any = msgspec.defstruct("Kind", [("metadata", metadata)])
    world.reflector = replace(world.reflector, kind=kind)
    world.run([change("ADDED", "c", "7")])

    assert world.calls == [("sync", ["a"]), ("update", ["c"])]
    assert world.query_values("resourceVersion") == [None, "101", "7"]


def test_deeply_nested_pod_is_read() -> None:
    world = World("a", "b")
    deep_pod = held(name="c", version="5")
    for pod in (world.api.pods["default", "a"], deep_pod):
        pod["metadata"]["managedFields"] = "DEEP"
    fields = b'{"f:a":' * 9_990 + b"{}" + b"}" * 9_990
    response = world.api.request("GET", "/api/v1/pods")
    world.api.answers["/api/v1/pods"] = response.replace(b'"DEEP"', b"[" + fields + b"]")
    world.run([event("ADDED", deep_pod).replace(b'"DEEP"', b"[" + fields + b"]")])

    assert world.calls == [("sync", ["a", "b"]), ("update", ["c"])]
    assert world.restarts == ["end", "end", "stop"]


@pytest.mark.parametrize(
    ("failure", "reason"), [([unreachable()], "error"), ([error(410)], "expired")]
)
def test_successful_list_alone_does_not_reset_the_backoff(
    failure: list[bytes | Exception], reason: str
) -> None:
    world = World("a")
    world.run(*[failure] * 8)

    limits = [min(0.2 * 2**number, 10.0) for number in range(8)]
    assert world.restarts == [reason] * 8 + ["end", "stop"]
    assert all(
        limit / 2 <= wait <= limit
        for limit, wait in zip(limits, world.stop.waits[:-1], strict=True)
    )


def test_backoff_resets_after_a_lasting_watch() -> None:
    world = World("a")
    lasting = acting(lambda: world.advance(reflector.LASTING_SECONDS), error(500))
    world.run(*([error(500)] for _ in range(4)), lasting, [error(500)])

    fourth, fifth, sixth = world.stop.waits[3:6]
    assert 0.8 <= fourth <= 1.6
    assert 0.1 <= fifth <= 0.2
    assert 0.2 <= sixth <= 0.4


def test_short_watches_resume_at_the_last_version_without_a_busy_loop() -> None:
    world = World("a")
    lasting = acting(lambda: world.advance(reflector.BACKOFF_SECONDS), change("ADDED", "b"))
    world.run([], [], lasting)

    assert world.query_values("resourceVersion")[1:] == ["101", "101", "101", "5"]
    assert world.restarts == ["end"] * 4 + ["stop"]
    assert world.stop.waits == [reflector.BACKOFF_SECONDS] * 3


def test_objects_are_relisted_periodically() -> None:
    world = World("a")
    world.run(acting(lambda: world.advance(reflector.RELIST_SECONDS), change("ADDED", "b")))

    assert world.calls == [("sync", ["a"]), ("update", ["b"]), ("sync", ["a"])]
    assert world.restarts == ["end", "relist", "end", "stop"]


def test_stop_ends_a_running_watch() -> None:
    world = World("a")
    world.api.streams.append(acting(world.stop.set, change("ADDED", "b"), change("ADDED", "c")))
    world.reflector.run(world.stop)

    assert world.calls == [("sync", ["a"]), ("update", ["b"])]
