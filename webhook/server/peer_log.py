"""A limit on the log lines about each client's reviews. Thread-safe.

Anyone who can connect can send reviews, and a log full of forged reviews hides the others.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

LINES = 100
"""Maximum lines about the reviews of one address in a period."""
PERIOD = 10.0
"""Seconds of a period."""
ADDRESSES = 1_000
"""Maximum addresses counted separately in a period; all others share one count."""

_log = logging.getLogger("holdfast.server")


class PeerLogLimit(logging.Filter):
    """Drops log lines of a `peer` beyond its limit, and logs how many in the next period.

    Debug lines are never dropped. `now` is a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._lock = threading.Lock()
        self._since = float("-inf")
        self._lines: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        peer: str = getattr(record, "peer", "")
        if not peer or record.levelno < logging.INFO:
            return True
        with self._lock:
            counts = self._end_period()
            if peer not in self._lines and len(self._lines) >= ADDRESSES:
                peer = "others"
            self._lines[peer] += 1
            written = self._lines[peer] <= LINES
        for address, lines in counts.items():
            if lines > LINES:
                _log.warning("dropped %d log lines about reviews from %s", lines - LINES, address)
        return written

    def _end_period(self) -> Counter[str]:
        now = self._now()
        if now - self._since < PERIOD:
            return Counter()
        counts, self._since, self._lines = self._lines, now, Counter()
        return counts
