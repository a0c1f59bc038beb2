from __future__ import annotations

import threading

import pytest

from webhook.workers import Workers


def test_workers_run_until_the_end_of_the_block() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(stop: threading.Event) -> None:
        begun.set()
        stop.wait()
        ended.set()

    workers = Workers(on_failure=lambda: None)
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

    workers = Workers(on_failure=told.set)
    workers.add("recorder", die)
    with workers:
        assert told.wait(10)
    assert workers.failed
    assert "the thread recorder died" in caplog.text
    assert "no such thing" in caplog.text
