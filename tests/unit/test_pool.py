from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from webhook.errand import Errand
from webhook.pool import Pool

PATIENCE = 10.0


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(2, "test-pool")
    yield made
    made.close()


class Blocked:
    """Jobs that wait until they may end, and note who did them."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.begun = threading.Semaphore(0)
        self.names: list[str] = []

    def __call__(self) -> None:
        self.names.append(threading.current_thread().name)
        self.begun.release()
        self.may_end.wait(PATIENCE)


def done(pool: Pool) -> threading.Thread:
    """Have a job done, and give the thread that did it."""
    threads: list[threading.Thread] = []
    ended = threading.Event()

    def job() -> None:
        threads.append(threading.current_thread())
        ended.set()

    pool.submit(job)
    assert ended.wait(PATIENCE)
    return threads[0]


def test_jobs_are_done_at_the_same_time_up_to_the_size(pool: Pool) -> None:
    jobs = Blocked()
    for _ in range(3):
        pool.submit(jobs)
    assert jobs.begun.acquire(timeout=PATIENCE)
    assert jobs.begun.acquire(timeout=PATIENCE)
    assert not jobs.begun.acquire(timeout=0.1)
    assert sorted(jobs.names) == ["test-pool_0", "test-pool_1"]

    jobs.may_end.set()
    assert jobs.begun.acquire(timeout=PATIENCE)


def test_idle_thread_is_taken_before_another_is_started(pool: Pool) -> None:
    seen = set()
    for _ in range(20):
        seen.add(done(pool).name)
        while not pool._idle:  # the job is over, its thread not yet idle
            pass
    assert seen == {"test-pool_0"}


def test_job_that_blocks_holds_up_no_other(pool: Pool) -> None:
    jobs = Blocked()
    pool.submit(jobs)
    assert jobs.begun.acquire(timeout=PATIENCE)
    assert done(pool).name == "test-pool_1"
    jobs.may_end.set()


def test_after_the_end_nothing_is_taken_and_what_waits_is_dropped(pool: Pool) -> None:
    jobs, dropped = Blocked(), Blocked()
    for job in (jobs, jobs, dropped):
        pool.submit(job)
    for _ in range(2):
        assert jobs.begun.acquire(timeout=PATIENCE)
    pool.close()

    with pytest.raises(RuntimeError, match="the pool is closed"):
        pool.submit(dropped)
    threads = [each for each in threading.enumerate() if each.name.startswith("test-pool")]
    jobs.may_end.set()
    for each in threads:
        each.join(PATIENCE)
    assert not any(each.is_alive() for each in threads)
    assert dropped.names == []


def test_threads_keep_no_process_from_its_end(pool: Pool) -> None:
    assert done(pool).daemon


class Left:
    """How often a place was given back."""

    def __init__(self) -> None:
        self.times = 0
        self.once = threading.Event()

    def __call__(self) -> None:
        self.times += 1
        self.once.set()


def test_errand_brings_what_the_thread_found(pool: Pool) -> None:
    left = Left()

    async def wait() -> str:
        errand = Errand(lambda: threading.current_thread().name, left)
        return await errand.outcome(pool, PATIENCE)

    assert asyncio.run(wait()) == "test-pool_0"
    assert left.times == 1


def test_errand_past_its_deadline_leaves_when_its_thread_is_done(pool: Pool) -> None:
    left, jobs = Left(), Blocked()

    async def wait() -> None:
        with pytest.raises(TimeoutError):
            await Errand(jobs, left).outcome(pool, 0.05)
        assert left.times == 0, "its thread is still at it"

    asyncio.run(wait())  # and its loop has ended when the thread is done
    jobs.may_end.set()
    assert left.once.wait(PATIENCE)
    assert left.times == 1
    after = Blocked()
    for _ in range(2):
        pool.submit(after)
        assert after.begun.acquire(timeout=PATIENCE)
    assert sorted(after.names) == ["test-pool_0", "test-pool_1"], "its thread goes on"
    after.may_end.set()


def test_errand_that_is_given_up_before_a_thread_began_is_never_begun(pool: Pool) -> None:
    left, jobs, given_up = Left(), Blocked(), Blocked()
    for _ in range(2):
        pool.submit(jobs)
        assert jobs.begun.acquire(timeout=PATIENCE)

    async def wait() -> None:
        with pytest.raises(TimeoutError):
            await Errand(given_up, left).outcome(pool, 0.05)
        assert left.times == 1
        waiting = asyncio.create_task(Errand(given_up, left).outcome(pool, PATIENCE))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert left.times == 2

    asyncio.run(wait())
    jobs.may_end.set()
    done(pool)  # which was asked for last, and jobs are taken in their order
    assert given_up.names == []
    assert left.times == 2


def test_errand_for_a_closed_pool_leaves_at_once(pool: Pool) -> None:
    left = Left()
    pool.close()

    async def wait() -> None:
        with pytest.raises(RuntimeError, match="the pool is closed"):
            await Errand(lambda: None, left).outcome(pool, PATIENCE)

    asyncio.run(wait())
    assert left.times == 1
