"""Attempts without threads: nothing runs until the test dispatches it."""

import threading

import pytest

from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.workqueue.controller import Controller, End, Task, TaskResult
from holdfast.webhook.workqueue.queue import WorkQueue
from tests.support.manual import RecordingCondition, ThreadPool

DONE = TaskResult()


class World:
    """A controller of keys that are due at once, with two workers."""

    def __init__(self, *names: str) -> None:
        self.started: dict[str, End] = {}
        self.reconciled: list[str] = []
        self.failures: list[str] = []
        self.can_begin = self.enabled = True
        self.queue = WorkQueue[float](lambda at: at, 2, first=2)
        self.pool = ThreadPool()
        self.loop = Controller(
            "test",
            self.queue,
            self.reconcile,
            workers=2,
            enabled=lambda: self.enabled,
            on_retry=self.fail,
            now=lambda: 0.0,
            begin=self.begin,
        )
        self.loop.changed = RecordingCondition()
        for name in names:
            self.queue.put(("default", name), 0.0)

    def begin(self, task: Task, end: End) -> bool:
        if self.can_begin:
            self.started[task.key[1]] = end
        return self.can_begin

    def reconcile(self, task: Task) -> TaskResult:
        self.reconciled.append(task.key[1])
        return DONE

    def fail(self, key: ObjectKey, result: TaskResult, _: float) -> None:
        self.failures.append(f"{key[1]}: {result.error}")

    def dispatch(self) -> None:
        self.loop._dispatch(self.pool)


def test_finished_attempt_starts_the_next() -> None:
    world = World("a", "b", "c")
    world.dispatch()
    assert list(world.started) == ["a", "b"]
    assert world.pool.jobs == []

    world.started["b"](DONE)
    assert list(world.started) == ["a", "b", "c"]
    world.started["a"](DONE)
    world.started["c"](TaskResult("no answer"))
    assert world.failures == ["c: no answer"]
    assert [key[1] for key in world.queue] == ["c"]
    assert world.queue.in_flight == 0
    assert world.reconciled == []


def test_attempt_that_may_block_gets_a_thread() -> None:
    world = World("a", "b")
    world.can_begin = False
    world.dispatch()
    assert world.reconciled == []
    world.pool.run()
    assert world.reconciled == ["a", "b"]


def test_attempt_that_turns_out_to_block_gets_a_thread() -> None:
    world = World("a", "b")
    world.dispatch()
    world.started["a"](None)
    assert world.queue.in_flight == 2
    world.pool.run()
    assert world.reconciled == ["a"]
    assert world.queue.in_flight == 1


def test_worker_thread_starts_the_next_nonblocking_attempt() -> None:
    world = World("a", "b", "c")
    world.can_begin = False
    world.dispatch()
    world.can_begin = True
    world.pool.run()
    assert world.reconciled == ["a", "b"]
    assert list(world.started) == ["c"]


def test_no_attempt_starts_while_not_leading() -> None:
    world = World("a", "b", "c")
    world.dispatch()
    world.enabled = False
    world.started["a"](DONE)
    assert list(world.started) == ["a", "b"]
    assert world.queue.in_flight == 1


def test_internal_error_ends_the_loop() -> None:
    world = World("a")
    del world.failures  # its next use fails
    world.dispatch()
    world.started["a"](TaskResult("no answer"))
    with pytest.raises(AttributeError):
        world.loop.run(threading.Event())
