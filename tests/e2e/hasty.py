"""Runs `holdfast` as it is, only that what it does every few seconds it does every half second.

A test that takes a right away sees sooner that it is missed.
"""

from __future__ import annotations

import runpy

from webhook import leader, publisher, recorder, reflector, retries

HASTE = 0.5
"""Seconds."""


def hurry() -> None:
    """Shorten all waits of this process."""
    publisher.TURN_SECONDS = HASTE
    leader.RETRY_SECONDS = HASTE
    recorder.WAITING_SECONDS = HASTE
    retries.LIMIT_SECONDS = HASTE
    reflector.BACKOFF_LIMIT_SECONDS = HASTE
    reflector.WATCH_SECONDS = 1  # whole seconds are what the API server takes


if __name__ == "__main__":
    hurry()
    runpy.run_module("webhook", run_name="__main__", alter_sys=True)
