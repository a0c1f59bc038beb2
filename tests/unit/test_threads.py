import threading
from collections.abc import Iterator

import pytest

from holdfast.webhook.threads import ThreadGroup, ThreadPool

PATIENCE = 10.0


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    made = ThreadPool(2, "test-pool")
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


def done(pool: ThreadPool) -> threading.Thread:
    threads: list[threading.Thread] = []
    ended = threading.Event()

    def job() -> None:
        threads.append(threading.current_thread())
        ended.set()

    pool.submit(job)
    assert ended.wait(PATIENCE)
    return threads[0]


def test_jobs_are_done_at_the_same_time_up_to_the_size(pool: ThreadPool) -> None:
    jobs = Blocked()
    for _ in range(3):
        pool.submit(jobs)
    assert jobs.begun.acquire(timeout=PATIENCE)
    assert jobs.begun.acquire(timeout=PATIENCE)
    assert not jobs.begun.acquire(timeout=0.1)
    assert sorted(jobs.names) == ["test-pool_0", "test-pool_1"]

    jobs.may_end.set()
    assert jobs.begun.acquire(timeout=PATIENCE)


def test_idle_thread_is_taken_before_another_is_started(pool: ThreadPool) -> None:
    seen = set()
    for _ in range(20):
        seen.add(done(pool).name)
        while not pool._idle:  # the job is over, its thread not yet idle
            pass
    assert seen == {"test-pool_0"}


def test_job_that_blocks_holds_up_no_other(pool: ThreadPool) -> None:
    jobs = Blocked()
    pool.submit(jobs)
    assert jobs.begun.acquire(timeout=PATIENCE)
    assert done(pool).name == "test-pool_1"
    jobs.may_end.set()


def test_after_the_end_nothing_is_taken_and_what_waits_is_dropped(pool: ThreadPool) -> None:
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


def test_threads_keep_no_process_from_its_end(pool: ThreadPool) -> None:
    assert done(pool).daemon


def test_workers_run_until_the_end_of_the_block() -> None:
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


def test_a_worker_that_dies_is_logged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    told = threading.Event()

    def die(_stop: threading.Event) -> None:
        raise RuntimeError("no such thing")

    workers = ThreadGroup(on_failure=told.set)
    workers.add("recorder", die)
    with workers:
        assert told.wait(10)
    assert workers.failed
    assert "thread recorder died" in caplog.text
    assert "no such thing" in caplog.text
