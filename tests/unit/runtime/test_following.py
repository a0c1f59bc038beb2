import threading
from collections.abc import Callable, Iterable

import pytest

from holdfast.webhook.kube import reflector
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.runtime.following import Follower
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.threads import ThreadGroup
from tests.support.builders import held
from tests.support.fakes import FakeApi, raising, status_error


class Pods:
    """Records the lists."""

    def __init__(self) -> None:
        self.lists: list[list[str]] = []
        self.done = threading.Event()

    def on_sync(self, pods: Iterable[Pod]) -> None:
        self.lists.append([pod.metadata.name for pod in pods])
        if len(self.lists) == 2:
            self.done.set()

    def on_update(self, pod: Pod) -> None: ...

    def on_delete(self, pod: Pod) -> None: ...


@pytest.mark.parametrize("is_reported", [False, True])
def test_list_is_retried_after_a_404_without_dropping_pods(
    monkeypatch: pytest.MonkeyPatch, *, is_reported: bool
) -> None:
    monkeypatch.setattr(reflector, "ABSENT_SECONDS", 0.01)
    api, pods, metrics = FakeApi(held(name="a")), Pods(), ControllerMetrics()
    api.streams.append([status_error(410)])
    api.before("GET", lambda: None, raising(status_error(404)))
    reasons: list[str] = []
    on_unreadable: Callable[[str], None] | None = reasons.append if is_reported else None
    follower = Follower(api, ThreadGroup(on_failure=lambda: None), metrics)

    stop = follower("/api/v1/pods", Pod, pods, on_unreadable=on_unreadable)
    assert pods.done.wait(10)
    stop()
    api.close()

    assert pods.lists == [["a"], ["a"]]
    assert reasons == (["/api/v1/pods is not served"] if is_reported else [])
    labels = {"reason": "absent" if is_reported else "error"}
    assert metrics.registry.get_sample_value("holdfast_watch_restarts_total", labels) == 1
