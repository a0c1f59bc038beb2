import logging

import pytest

from holdfast.webhook.server import peer_log
from holdfast.webhook.server.peer_log import PeerLogLimit


class Log:
    """Writes lines about reviews at a time of the test's choice, and keeps the lines written."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 0.0
        self.limit = PeerLogLimit(lambda: self.now)
        self.caplog = caplog

    def write(self, peer: str, number: int = 1, level: int = logging.INFO) -> int:
        """Write lines; return how many pass."""
        record = logging.makeLogRecord({"levelno": level, "peer": peer})
        return sum(self.limit.filter(record) for _ in range(number))

    @property
    def summaries(self) -> list[str]:
        return [record.getMessage() for record in self.caplog.records]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    return Log(caplog)


def test_flood_of_one_address_hides_no_lines_about_another(log: Log) -> None:
    assert log.write("10.0.0.66", 5_000) == peer_log.LINES
    assert log.write("10.0.0.1", 10) == 10


def test_dropped_lines_are_counted_in_the_next_period(log: Log) -> None:
    log.write("10.0.0.66", peer_log.LINES + 7)
    log.write("10.0.0.1", peer_log.LINES)
    log.now = peer_log.PERIOD
    assert log.write("10.0.0.66", 3) == 3
    assert log.summaries == ["dropped 7 log lines about reviews from 10.0.0.66"]


def test_addresses_are_counted_in_bounded_memory(log: Log) -> None:
    passed = sum(log.write(f"10.0.{one >> 8}.{one & 255}") for one in range(5_000))
    assert passed == peer_log.ADDRESSES + peer_log.LINES
    log.now = peer_log.PERIOD
    assert log.write("10.0.255.255") == 1
    assert len(log.summaries) == 1
    assert log.summaries[0].endswith(" from others")


def test_debug_lines_and_lines_without_a_sender_are_not_limited(log: Log) -> None:
    assert log.write("10.0.0.66", 500, logging.DEBUG) == 500
    assert log.write("", 500) == 500
