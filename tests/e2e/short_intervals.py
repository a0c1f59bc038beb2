"""Runs `holdfast` with intervals and backoffs of half a second, for tests that wait for them.

If SECONDS_AHEAD is set, the wall clock is shifted as by `tests.e2e.wrong_clock`.
"""

import os
import runpy

if __name__ == "__main__" and os.environ.get("SECONDS_AHEAD"):
    import tests.e2e.wrong_clock  # noqa: F401 - shifts the clock for what is imported next

from holdfast.webhook.cli import inspection
from holdfast.webhook.controller import freeze_watch
from holdfast.webhook.kube import leader_election, reflector
from holdfast.webhook.registration import reconciler
from holdfast.webhook.sticky import controller
from holdfast.webhook.workqueue import backoff

SECONDS = 0.5


def shorten() -> None:
    inspection.PATIENCE_MS = 1_000
    freeze_watch.UNREADABLE_SECONDS = 3.0
    reconciler.INTERVAL_SECONDS = SECONDS
    leader_election.RETRY_SECONDS = SECONDS
    controller.RECHECK_SECONDS = SECONDS
    backoff.LIMIT_SECONDS = SECONDS
    reflector.BACKOFF_LIMIT_SECONDS = SECONDS
    reflector.WATCH_SECONDS = 1  # the API server accepts only whole seconds


if __name__ == "__main__":
    shorten()
    runpy.run_module("holdfast.webhook", run_name="__main__", alter_sys=True)
