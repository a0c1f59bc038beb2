import threading
from collections.abc import Callable, Iterable

import pytest

from holdfast.webhook.kube import reflector
from holdfast.webhook.kube.reflector import Handlers
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.runtime.following import Follower
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.threads import ThreadGroup
from tests.support.builders import held
from tests.support.fakes import FakeApi, raising, status_error


@pytest.mark.parametrize("is_reported", [False, True])
def test_list_is_retried_after_a_404_without_dropping_pods(
    monkeypatch: pytest.MonkeyPatch, *, is_reported: bool
) -> None:
    monkeypatch.setattr(reflector, "ABSENT_SECONDS", 0.01)
    api, metrics = FakeApi(held(name="a")), ControllerMetrics()
    lists: list[list[str]] = []
    is_listed_twice = threading.Event()

    def on_sync(pods: Iterable[Pod]) -> None:
        lists.append([pod.metadata.name for pod in pods])
        if len(lists) == 2:
            is_listed_twice.set()

    handlers: Handlers[Pod] = Handlers(on_sync, lambda _: None, lambda _: None)
    api.streams.append([status_error(410)])
    api.before("GET", lambda: None, raising(status_error(404)))
    reasons: list[str] = []
    on_unreadable: Callable[[str], None] | None = reasons.append if is_reported else None
    follower = Follower(api, ThreadGroup(on_failure=lambda: None), metrics)

    stop = follower("/api/v1/pods", Pod, handlers, on_unreadable=on_unreadable)
    assert is_listed_twice.wait(10)
    stop()
    api.close()

    assert lists == [["a"], ["a"]]
    assert reasons == (["/api/v1/pods is not served"] if is_reported else [])
    labels = {"reason": "absent" if is_reported else "error"}
    assert metrics.registry.get_sample_value("holdfast_watch_restarts_total", labels) == 1
