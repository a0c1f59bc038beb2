import logging

import pytest

from holdfast.webhook.server import peer_log
from holdfast.webhook.server.peer_log import PeerLogLimit


class Log:
    """Filters log lines about reviews with a fake clock, and has the summaries that were logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 0.0
        self.limit = PeerLogLimit(lambda: self.now)
        self.caplog = caplog

    def write(self, peer: str, number: int = 1, level: int = logging.INFO) -> int:
        """Write lines, and return how many pass the limit."""
        record = logging.makeLogRecord({"levelno": level, "peer": peer})
        return sum(self.limit.filter(record) for _ in range(number))

    @property
    def summaries(self) -> list[str]:
        return [record.getMessage() for record in self.caplog.records]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    return Log(caplog)


def test_flood_from_one_address_does_not_drop_lines_about_another(log: Log) -> None:
    assert log.write("10.0.0.66", 5_000) == peer_log.LINES
    assert log.write("10.0.0.1", 10) == 10


def test_dropped_lines_are_reported_in_the_next_period(log: Log) -> None:
    log.write("10.0.0.66", peer_log.LINES + 7)
    log.write("10.0.0.1", peer_log.LINES)
    log.now = peer_log.PERIOD
    assert log.write("10.0.0.66", 3) == 3
    assert log.summaries == ["dropped 7 log lines about reviews from 10.0.0.66"]


def test_number_of_tracked_addresses_is_limited(log: Log) -> None:
    count = sum(log.write(f"10.0.{host >> 8}.{host & 255}") for host in range(5_000))
    assert count == peer_log.ADDRESSES + peer_log.LINES
    log.now = peer_log.PERIOD
    assert log.write("10.0.255.255") == 1
    assert len(log.summaries) == 1
    assert log.summaries[0].endswith(" from others")


def test_debug_lines_and_lines_without_a_peer_are_not_limited(log: Log) -> None:
    assert log.write("10.0.0.66", 500, logging.DEBUG) == 500
    assert log.write("", 500) == 500
