"""The loop of a controller: hands the keys of a queue to threads, which reconcile them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.telemetry import logs
from holdfast.webhook.threads import ThreadPool
from holdfast.webhook.workqueue.fair import REMEMBERED_SECONDS
from holdfast.webhook.workqueue.queue import WorkQueue

LONGEST_WAIT = 1.0
"""Maximum sleep in seconds, after which a resumed laptop or a gained lead is noticed."""
GRACE_SECONDS = 1.8
"""Seconds that shutdown waits for keys in flight. A hanging write may be applied after another
process has become the leader; then it fails its tests, or the other process's write does."""

_log = logging.getLogger("holdfast.controller")


class TaskResult(NamedTuple):
    """The result of an attempt: `error` is why to retry, `retry_after` the minimum wait."""

    error: str = ""
    retry_after: float = 0.0


class Task(NamedTuple):
    """A key to reconcile, with its item from when the key was taken.

    `needs_long_timeout` is true if a write may take as long as admission may: see `WorkQueue`.
    """

    key: ObjectKey
    item: Any
    needs_long_timeout: bool


Reconcile = Callable[[Task], TaskResult]
End = Callable[[TaskResult | None], None]
"""Called with the result of an attempt, or with None if the attempt needs a thread after all."""


class Controller:
    """Reconciles the keys of a queue in up to `workers` threads.

    `enabled` returns whether this process may work: it leads, and has synced. `on_retry` is called
    with each failure and the seconds until the retry. `changed` guards the queue, and must be
    notified when a key may be due earlier. `begin` starts an attempt that needs no thread, or
    returns False; it never blocks.
    """

    def __init__(
        self,
        name: str,
        queue: WorkQueue[Any],
        reconcile: Reconcile,
        *,
        workers: int,
        enabled: Callable[[], bool],
        on_retry: Callable[[ObjectKey, TaskResult, float], None],
        now: Callable[[], float],
        begin: Callable[[Task, End], bool] = lambda *_: False,
    ) -> None:
        self._name = name
        self._queue = queue
        self._reconcile = reconcile
        self._workers = workers
        self._enabled = enabled
        self._on_retry = on_retry
        self._now = now
        self._begin = begin
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self.changed = threading.Condition()

    def run(self, stop: threading.Event) -> None:
        """Reconcile keys until `stop` is set. Raises the exception of a worker that failed."""
        self._stop = stop
        pool = ThreadPool(self._workers, self._name)
        try:
            while not stop.is_set() and self._failure is None:
                self._dispatch(pool)
            with self.changed:
                self.changed.wait_for(self._is_idle, GRACE_SECONDS)
        finally:
            pool.close()
        if self._failure is not None:
            raise self._failure

    def wake(self) -> None:
        """Check the queue now.

        Called when the clock bounds have narrowed, this process has become the leader, or it stops.
        """
        with self.changed:
            self.changed.notify_all()

    def _dispatch(self, pool: ThreadPool) -> None:
        """Start all keys that are ready, then sleep until there may be more."""
        while tasks := self._take_or_sleep():
            # without the lock: sending takes longer than everything that it guards
            for task in tasks:
                self._start(task, pool)

    def _take_or_sleep(self) -> list[Task]:
        with self.changed:
            now, tasks = self._now(), list[Task]()
            while self._has_free_worker() and (task := self._next(now)) is not None:
                tasks.append(task)
            if not tasks:
                can_work = self._has_free_worker() and self._enabled()
                wait = self._queue.wait(now) if can_work else LONGEST_WAIT
                self.changed.wait(max(min(LONGEST_WAIT, wait), 0.0))
            return tasks

    def _next(self, now: float) -> Task | None:
        if self._stop.is_set() or not self._enabled():
            return None
        key = self._queue.next(now)
        if key is None:
            return None
        return Task(key, self._queue.get(key), self._queue.needs_long_timeout(key, now))

    def _has_free_worker(self) -> bool:
        return self._queue.in_flight < self._workers

    def _is_idle(self) -> bool:
        return self._failure is not None or not self._queue.in_flight

    def _start(self, task: Task, pool: ThreadPool) -> None:
        if not self._begins(task, pool):
            pool.submit(partial(self._work, task, pool))

    def _begins(self, task: Task, pool: ThreadPool) -> bool:
        return self._enabled() and self._begin(task, partial(self._end, task, self._now(), pool))

    def _end(self, task: Task, began: float, pool: ThreadPool, result: TaskResult | None) -> None:
        """End an attempt that needed no thread, and start the next key."""
        try:
            if result is None:
                pool.submit(partial(self._work, task, pool))
            elif (next_task := self._settle(task, began, result)) is not None:
                self._start(next_task, pool)
        except BaseException as exc:  # noqa: BLE001 - `run` raises it, and the process ends
            self._fail(exc)

    # --- in worker threads ---------------------------------------------------------------------

    def _work(self, task: Task, pool: ThreadPool) -> None:
        """Reconcile a key, then further keys: passing a key on costs half a release."""
        try:
            next_task = self._attempt(task)
            while next_task is not None and not self._begins(next_task, pool):
                next_task = self._attempt(next_task)
        except BaseException as exc:  # noqa: BLE001 - `run` raises it, and the process ends
            self._fail(exc)

    def _fail(self, exc: BaseException) -> None:
        self._failure = exc
        self.wake()

    def _attempt(self, task: Task) -> Task | None:
        """Reconcile a key, and return the next one, or None."""
        key = task.key
        if not self._enabled():  # the process was paused, or lost the lead, since the key was due
            with self.changed:
                self._queue.requeue(key)
                self.changed.notify_all()
            return None
        began = self._now()
        return self._settle(task, began, self._reconcile(task))

    def _settle(self, task: Task, began: float, result: TaskResult) -> Task | None:
        """Record the result of a key, and return the next one, or None."""
        key, ended, wait = task.key, self._now(), None
        with self.changed:
            became_slow = self._queue.done(key, ended - began, ended, succeeded=not result.error)
            is_left = key in self._queue
            if result.error and is_left:
                wait = self._queue.retry(key, ended, at_least=result.retry_after)
            next_task = self._next(ended)
            has_room = self._has_free_worker() and self._queue.has_room(key[0])
            # Otherwise nothing changed for the dispatcher, and waking it only costs CPU.
            if next_task is None or is_left or has_room:
                self.changed.notify_all()
        if became_slow:
            self._log_slow(key[0], ended - began)
        if wait is not None:
            self._on_retry(key, result, wait)
        return next_task

    def _log_slow(self, namespace: str, seconds: float) -> None:
        _log.warning(
            "%s: an attempt in namespace %s took %.1f s; the namespace counts as slow until no "
            "attempt has for %d s, and has fewer workers; look for an admission webhook that hangs",
            self._name,
            namespace,
            seconds,
            REMEMBERED_SECONDS,
            extra=logs.fields(namespace=namespace),
        )
