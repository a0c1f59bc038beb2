"""Memory that is free within a process goes back to the system.

The allocator of the GNU C library keeps what is freed between two things that are not: each time
that tens of connections are lost and made again, a process needs a little more, though it has no
more in use.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

SECONDS = 30.0
"""How often it is given back; each time takes a few milliseconds of one thread at most."""


def give_back() -> None:
    """Give back all whole pages that are free; nothing where the C library cannot (musl).

    See malloc_trim(3).
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def give_back_regularly(
    until: threading.Event,
    *,
    seconds: float = SECONDS,
    give_back: Callable[[], None] = give_back,
) -> None:
    """Do so every so many seconds, from a thread of its own, until the event is set."""

    def run() -> None:
        while not until.wait(seconds):
            give_back()

    threading.Thread(target=run, name="memory", daemon=True).start()
