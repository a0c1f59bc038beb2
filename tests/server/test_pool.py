from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from tests.server.conftest import Serve
from tests.server.harness import wait_until


def test_reviews_are_answered_in_the_event_loop_unless_they_may_block(serve: Serve) -> None:
    server = serve()
    assert server.review().json()["thread"] == "MainThread"
    assert server.review(block=True).json()["thread"].startswith("holdfast-review")


def test_blocking_review_holds_up_no_other(serve: Serve) -> None:
    server = serve(bridge={"deadline": 20.0})
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(server.review, block=True, sleep=1.5)
        wait_until("it is running", lambda: server.get("/count").body == b"1")
        assert server.review().status == 200
        assert not slow.done()
        assert slow.result().status == 200


def test_review_past_the_deadline_is_given_up(serve: Serve) -> None:
    server = serve(bridge={"deadline": 0.3})
    answer = server.review(block=True, sleep=1)
    assert answer.status == 429
    assert answer.headers["Retry-After"] == "1"
    assert answer.body == b"a plugin did not finish the review within 0.3 s; try again\n"
    assert server.review(block=True).status == 200


def test_stuck_plugins_do_not_queue_without_end(serve: Serve) -> None:
    server = serve(bridge={"pool_size": 1, "deadline": 20.0})
    with ThreadPoolExecutor(6) as pool:
        slow = [pool.submit(server.review, block=True, sleep=4) for _ in range(6)]
        wait_until("all are answered or have a place", lambda: sum(map(Future.done, slow)) == 4)
        assert server.review(block=True).body.startswith(b"too many reviews are waiting")
        assert server.review().status == 200
        assert sorted(one.result().status for one in slow) == [200, 200, 429, 429, 429, 429]
    assert server.review(block=True).status == 200


def test_broken_prepare_is_500_and_logged_once(serve: Serve) -> None:
    server = serve()
    assert server.review(prepare="raise").status == 500
    assert server.log.count("RuntimeError: prepare is broken") == 1
