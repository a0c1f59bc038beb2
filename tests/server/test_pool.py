from tests.server.conftest import Serve


def test_review_past_the_deadline_gets_429(serve: Serve) -> None:
    server = serve(handler={"deadline": 0.3})
    answer = server.review(block=True, sleep=1)
    assert answer.status == 429
    assert answer.headers["Retry-After"] == "1"
    assert answer.body == b"not decided within 0.3 s\n"
    assert server.review(block=True).status == 200
