"""Limits the log lines about each client's reviews. Thread-safe.

Anyone who can connect can send reviews, and a log full of forged ones hides the others.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

LINES = 100
"""Lines about the reviews of one address in a period."""
PERIOD = 10.0
"""Seconds."""
ADDRESSES = 1_000
"""Addresses that are counted separately in a period; all others share one count."""

_log = logging.getLogger("holdfast.server")


class PeerLogLimit(logging.Filter):
    """Drops lines that carry a `peer` beyond its limit; the next period's first line logs how many.

    Debug lines are not dropped. `now` is a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._lock = threading.Lock()
        self._since = float("-inf")
        self._lines: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a line."""
        peer: str = getattr(record, "peer", "")
        if not peer or record.levelno < logging.INFO:
            return True
        with self._lock:
            ended = self._end_period()
            if peer not in self._lines and len(self._lines) >= ADDRESSES:
                peer = "others"
            self._lines[peer] += 1
            written = self._lines[peer] <= LINES
        for address, lines in ended.items():
            if lines > LINES:
                _log.warning("dropped %d log lines about reviews from %s", lines - LINES, address)
        return written

    def _end_period(self) -> Counter[str]:
        now = self._now()
        if now - self._since < PERIOD:
            return Counter()
        ended, self._since, self._lines = self._lines, now, Counter()
        return ended
