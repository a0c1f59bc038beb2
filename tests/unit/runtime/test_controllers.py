import threading
from typing import Any

import pytest

from holdfast.webhook.kube.leader_election import LEASE, Leader
from holdfast.webhook.runtime.controllers import Manager
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.threads import ThreadGroup
from tests.support.builders import make_profiles
from tests.support.fakes import FakeApi

PATH = f"/apis/coordination.k8s.io/v1/namespaces/system/leases/{LEASE}"


class Idle:
    """A controller without work."""

    def wake(self) -> None: ...


@pytest.mark.parametrize(
    ("unfinished", "holder"),
    [
        pytest.param((), "", id="nothing unfinished"),
        pytest.param(("events", "guard"), "", id="unfinished events"),
        pytest.param(("events", "release"), "a", id="hanging release"),
        pytest.param(("publisher",), "a", id="certificate write in flight"),
    ],
)
def test_lease_is_released_unless_leader_work_hangs(
    unfinished: tuple[str, ...], holder: str
) -> None:
    api, metrics, may_end = FakeApi(), ControllerMetrics(), threading.Event()
    leader = Leader(
        api, metrics, namespace="system", server_time=lambda: 1_800_000_000.0, identity="a"
    )
    leader.try_acquire_or_renew()

    def hang(_stop: threading.Event) -> None:
        may_end.wait(10)

    threads = ThreadGroup(on_failure=may_end.set)
    for name in unfinished:
        threads.add(name, hang, grace=0.01)
    parts: Any = {
        "cluster": api,
        "profiles": make_profiles(),
        "metrics": metrics,
        "server_time": lambda: None,
        "leader": leader,
        "releases": Idle(),
        "sticky": Idle(),
        "threads": threads,
        "recorder": None,
        "ended": threading.Event(),
    }
    manager = Manager(**parts)
    manager.stop()
    manager.work()
    may_end.set()

    assert threads.unfinished == {*unfinished}
    assert api.objects[PATH]["spec"]["holderIdentity"] == holder
