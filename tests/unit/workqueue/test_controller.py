"""Attempts that need no thread, by hand: nothing happens before the test says so."""

import threading

import pytest

from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.workqueue.controller import Controller, End, Task, TaskResult
from holdfast.webhook.workqueue.queue import WorkQueue
from tests.support.by_hand import Impatient, ThreadPool

DONE = TaskResult()


class World:
    """A controller of keys that are due at once, with two workers."""

    def __init__(self, *names: str) -> None:
        self.begun: dict[str, End] = {}
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
        self.loop.changed = Impatient()
        for name in names:
            self.queue.put(("default", name), 0.0)

    def begin(self, task: Task, end: End) -> bool:
        if self.can_begin:
            self.begun[task.key[1]] = end
        return self.can_begin

    def reconcile(self, task: Task) -> TaskResult:
        self.reconciled.append(task.key[1])
        return DONE

    def fail(self, key: ObjectKey, result: TaskResult, _: float) -> None:
        self.failures.append(f"{key[1]}: {result.error}")

    def dispatch(self) -> None:
        self.loop._dispatch(self.pool)

    def work(self) -> None:
        jobs, self.pool.jobs = self.pool.jobs, []
        for job in jobs:
            job()


def test_end_of_an_attempt_begins_the_next() -> None:
    world = World("a", "b", "c")
    world.dispatch()
    assert list(world.begun) == ["a", "b"]
    assert world.pool.jobs == []

    world.begun["b"](DONE)
    assert list(world.begun) == ["a", "b", "c"]
    world.begun["a"](DONE)
    world.begun["c"](TaskResult("no answer"))
    assert world.failures == ["c: no answer"]
    assert [key[1] for key in world.queue] == ["c"]
    assert world.queue.in_flight == 0
    assert world.reconciled == []


def test_attempt_that_may_block_gets_a_thread() -> None:
    world = World("a", "b")
    world.can_begin = False
    world.dispatch()
    assert world.reconciled == []
    world.work()
    assert world.reconciled == ["a", "b"]


def test_attempt_that_turns_out_to_block_gets_a_thread() -> None:
    world = World("a", "b")
    world.dispatch()
    world.begun["a"](None)
    assert world.queue.in_flight == 2
    world.work()
    assert world.reconciled == ["a"]
    assert world.queue.in_flight == 1


def test_thread_begins_what_needs_none() -> None:
    world = World("a", "b", "c")
    world.can_begin = False
    world.dispatch()
    world.can_begin = True
    world.work()
    assert world.reconciled == ["a", "b"]
    assert list(world.begun) == ["c"]


def test_nothing_is_begun_while_not_leading() -> None:
    world = World("a", "b", "c")
    world.dispatch()
    world.enabled = False
    world.begun["a"](DONE)
    assert list(world.begun) == ["a", "b"]
    assert world.queue.in_flight == 1


def test_failure_ends_the_loop() -> None:
    world = World("a")
    del world.failures  # its next use fails
    world.dispatch()
    world.begun["a"](TaskResult("no answer"))
    with pytest.raises(AttributeError):
        world.loop.run(threading.Event())
