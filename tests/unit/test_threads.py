import threading
from collections.abc import Iterator

import pytest

from holdfast.webhook.threads import ThreadGroup, ThreadPool

TIMEOUT = 10.0


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    thread_pool = ThreadPool(2, "test-pool")
    yield thread_pool
    thread_pool.close()


class Blocked:
    """A job that blocks until `may_end` is set, and records the names of its threads."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.begun = threading.Semaphore(0)
        self.names: list[str] = []

    def __call__(self) -> None:
        self.names.append(threading.current_thread().name)
        self.begun.release()
        self.may_end.wait(TIMEOUT)


def run_job(pool: ThreadPool) -> threading.Thread:
    threads: list[threading.Thread] = []
    ended = threading.Event()

    def job() -> None:
        threads.append(threading.current_thread())
        ended.set()

    pool.submit(job)
    assert ended.wait(TIMEOUT)
    return threads[0]


def test_jobs_run_concurrently_up_to_the_pool_size(pool: ThreadPool) -> None:
    jobs = Blocked()
    for _ in range(3):
        pool.submit(jobs)
    assert jobs.begun.acquire(timeout=TIMEOUT)
    assert jobs.begun.acquire(timeout=TIMEOUT)
    assert not jobs.begun.acquire(timeout=0.1)
    assert sorted(jobs.names) == ["test-pool_0", "test-pool_1"]

    jobs.may_end.set()
    assert jobs.begun.acquire(timeout=TIMEOUT)


def test_idle_daemon_thread_is_reused_before_another_starts(pool: ThreadPool) -> None:
    names = set()
    for _ in range(20):
        thread = run_job(pool)
        assert thread.daemon
        names.add(thread.name)
        while not pool._idle:  # the job is over, its thread not yet idle
            pass
    assert names == {"test-pool_0"}


def test_closed_pool_rejects_jobs_and_drops_queued_ones(pool: ThreadPool) -> None:
    jobs, dropped = Blocked(), Blocked()
    for job in (jobs, jobs, dropped):
        pool.submit(job)
    for _ in range(2):
        assert jobs.begun.acquire(timeout=TIMEOUT)
    pool.close()

    with pytest.raises(RuntimeError, match="the pool is closed"):
        pool.submit(dropped)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("test-pool")]
    jobs.may_end.set()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not any(thread.is_alive() for thread in threads)
    assert dropped.names == []


def test_workers_run_until_the_block_exits() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(stop: threading.Event) -> None:
        begun.set()
        stop.wait()
        ended.set()

    workers = ThreadGroup(on_failure=lambda: None)
    workers.add("one", work)
    with workers:
        assert begun.wait(10)
        assert not ended.is_set()
    assert ended.is_set()
    assert not workers.failed


def test_dead_worker_is_logged_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    reported = threading.Event()

    def die(_stop: threading.Event) -> None:
        raise RuntimeError("no such thing")

    workers = ThreadGroup(on_failure=reported.set)
    workers.add("recorder", die)
    with workers:
        assert reported.wait(10)
    assert workers.failed
    assert "thread recorder died" in caplog.text
    assert "no such thing" in caplog.text
