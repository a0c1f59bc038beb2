import logging
import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.webhook.controller import controller as module
from holdfast.webhook.controller.releaser import RELEASE_TIMEOUT
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.plugin import Plugin, success
from holdfast.webhook.kube.api import SLOW_ADMISSION_TIMEOUT
from holdfast.webhook.model.edits import SetAnnotation
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.pace.args import KEY as PACE
from holdfast.webhook.plugins.pace.args import PaceArgs
from holdfast.webhook.plugins.pace.plugin import Pace
from holdfast.webhook.threads import ThreadGroup
from holdfast.webhook.workqueue.controller import LONGEST_WAIT
from holdfast.webhook.workqueue.fair import SLOW_SECONDS
from tests.support.builders import GATE, make_pod
from tests.support.fakes import raising, status_error, unreachable
from tests.support.scripted import Tightening, decider_of
from tests.support.vm_builders import owner_of
from tests.unit.controller.world import (
    KEY,
    World,
    in_namespaces,
    pods,
    saturated_world,
    single_pod_world,
)


def test_retry_after_is_honoured() -> None:
    world = single_pod_world()
    world.api.before("PATCH", raising(status_error(429, retry_after=29.0)))
    world.run(15)
    world.run(28)
    assert len(world.released) == 1

    world.run(1)
    assert world.api.gates(KEY) == []


def test_one_bad_pod_does_not_delay_another() -> None:
    world = World(*pods(bad="10", good="11", better="12"))
    world.api.before("PATCH", raising(unreachable()))
    world.run(12)

    assert world.released == ["bad", "good", "better"]
    assert world.api.gates(("default", "bad")) == [GATE]
    assert [] == world.api.gates(("default", "good")) == world.api.gates(("default", "better"))


def hang_next_release(world: World) -> None:
    """Make the next release hang, then fail."""

    def hang_and_fail() -> None:
        world.advance(SLOW_SECONDS)
        raise unreachable()

    world.api.before("PATCH", hang_and_fail)


def hanging_world(*other_pods: dict[str, Any], namespaces: tuple[str, ...] = ("bad",)) -> World:
    """Return a world at second 40: some namespaces have 200 due pods, and one that hung."""
    documents = pods(first="10", **{f"bad-{number:03}": "30" for number in range(200)})
    world = World(*in_namespaces(namespaces, *documents), *other_pods)
    world.advance(10)
    world.dispatch()
    jobs, world.pool.jobs = world.pool.jobs, []
    for job in jobs:
        hang_next_release(world)
        job()
    world.advance(40 - world.local)
    return world


def test_hanging_namespaces_do_not_block_other_namespaces() -> None:
    world = hanging_world(*pods(good="35"), namespaces=("bad", "worse", "worst", "vile", "vilest"))
    world.dispatch()

    assert len(world.pool.jobs) == module.WORKERS_OF_ONE + 1
    assert world.dispatch() <= LONGEST_WAIT
    assert len(world.pool.jobs) == module.WORKERS_OF_ONE + 1
    before = len(world.released)
    world.pool.jobs.pop()()
    assert world.released[before] == "good"
    world.settle()
    assert world.metric("held_pods") == 0
    assert world.metric("releases_total", outcome="released") == 1006


def test_only_many_namespaces_can_saturate_controller() -> None:
    world = hanging_world()
    world.dispatch()
    assert len(world.pool.jobs) == module.FIRST_OF_ONE
    assert not world.controller.saturated

    world = saturated_world()
    assert len(world.pool.jobs) == module.WORKERS
    assert world.controller.saturated


def test_slow_namespace_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = hanging_world()
    world.settle()
    (message,) = [line for line in caplog.messages if "took" in line]
    assert message == (
        "release: an attempt in namespace bad took 2.0 s; the namespace counts as slow until no "
        "attempt has for 90 s, and has fewer workers; look for an admission webhook that hangs"
    )


def test_retry_after_hang_uses_slow_admission_timeout() -> None:
    world = single_pod_world()
    world.api.before("PATCH", raising(unreachable()))
    hang_next_release(world)
    world.run(15)
    for _ in range(2):
        world.run(2)

    assert world.api.patience("PATCH") == [RELEASE_TIMEOUT, RELEASE_TIMEOUT, SLOW_ADMISSION_TIMEOUT]


def test_failed_release_of_deleted_pod_is_not_retried() -> None:
    world = single_pod_world()
    world.api.before("PATCH", raising(unreachable()))
    world.advance(15)
    world.dispatch()
    world.controller.on_delete(Pod.of(world.api.pods[KEY]))
    world.pool.run()

    assert world.controller._scheduler._backoff.next_at() == math.inf


def test_worker_crash_stops_controller(caplog: pytest.LogCaptureFixture) -> None:
    world = single_pod_world()
    world.api.before("PATCH", raising(ZeroDivisionError()))
    world.advance(15)
    world.dispatch()
    world.pool.run()
    ended = threading.Event()
    threads = ThreadGroup(on_failure=ended.set)
    threads.add("release", world.controller._loop.run)
    with threads:
        assert ended.wait(5)

    assert threads.failed
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_pod_with_unrepresentable_due_time_is_held() -> None:
    world = World(*pods(endless=str(2**63 - 1), good="1"))
    world.run(1)

    assert world.released == ["good"]


def paced_world(number: int, *plugins: Plugin) -> World:
    """Return a world with `number` pods of one owner, held by a pace of 1."""
    handle = Handle()
    owner = owner_of("ReplicaSet", "web", "rs-1", api_version="apps/v1")
    pods = [
        make_pod({PACE: "1"}, gates=[PACE], name=f"p{n}", uid=f"u{n}", owners=[owner])
        for n in range(number)
    ]
    decider = decider_of(Pace(PaceArgs(), handle), *plugins)
    world = World(*pods, synced=False, decider=decider)
    world.connect(handle)
    world.sync()
    return world


@pytest.mark.parametrize(
    "plugins", [(), (Tightening(lambda _: success(SetAnnotation("a", "b"))),)], ids=["", "edits"]
)
@pytest.mark.parametrize("number", [1, 2])
def test_rejected_paced_pods_back_off(number: int, plugins: Sequence[Plugin]) -> None:
    """Without backoff, they would trigger each other's rechecks in a hot loop."""
    world = paced_world(number, *plugins)
    world.api.before("PATCH", *[raising(status_error(422))] * 500)
    world.run(1)
    first_count = number * (1 + len(plugins))
    assert len(world.released) == first_count

    for _ in range(60):
        world.run(1)
    assert 5 * first_count <= len(world.released) <= 12 * first_count


def test_many_rejected_paced_pods_back_off() -> None:
    """Each pod waits for the slot again between two rejections."""
    world = paced_world(15)

    def reject_patches(method: str, _path: str) -> None:
        world.local += 0.02
        if method == "PATCH":
            assert len(world.released) < 400
            raise status_error(422)

    world.api.on_request = reject_patches
    while world.local < 60:
        world.dispatch()
        if world.pool.jobs:
            world.pool.jobs.pop(0)()
        else:
            world.local += 0.05
    assert 100 < len(world.released) < 400  # about ten each
