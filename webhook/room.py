"""Room for reviews that may block: so many at once, and so many bytes of them."""

from __future__ import annotations

import threading


class Room:
    """Counts what is inside; safe to use from several threads.

    The thread of a review that is given up still runs, and keeps the review: its place is free
    when it has ended.
    """

    def __init__(self, places: int, size: int) -> None:
        """Make room for so many reviews, whose bodies have so many bytes together."""
        self._lock = threading.Lock()
        self._places, self._size = places, size

    def take(self, size: int) -> bool:
        """Take a place for a body of so many bytes; False, with nothing taken, where none is."""
        with self._lock:
            if not self._places or size > self._size:
                return False
            self._places -= 1
            self._size -= size
            return True

    def leave(self, size: int) -> None:
        """Give the place back that was taken for a body of so many bytes."""
        with self._lock:
            self._places += 1
            self._size += size
