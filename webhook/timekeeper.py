"""Keeping the estimate of the API server's clock narrow: small requests at the right moments."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from webhook.clock import ServerClock
from webhook.cluster import Api, boot_time
from webhook.errors import ClusterError

PROBE_PATH = "/version"
"""Cheap, needs no etcd, and every authenticated client may read it."""
PROBE_TIMEOUT = 2.0
IDLE_SECONDS = 1.0

_log = logging.getLogger("holdfast.controller")


class Timekeeper:
    """Asks the API server for its time; the answers reach the clock as every answer does."""

    def __init__(
        self,
        api: Api,
        clock: ServerClock,
        *,
        on_narrowed: Callable[[], None],
        now: Callable[[], float] = boot_time,
    ) -> None:
        self._api = api
        self._clock = clock
        self._on_narrowed = on_narrowed
        self._now = now

    def run(self, stop: threading.Event) -> None:
        """Probe until told to stop. Never raises for what a cluster may do."""
        while not stop.is_set():
            probes = self._clock.next_probes(self._now())
            if not probes:
                stop.wait(IDLE_SECONDS)
                continue
            try:
                self._probe(probes, stop)
                if self._clock.bounds(self._now()) is None:
                    stop.wait(IDLE_SECONDS)  # answers without a Date must not make a busy loop
            except ClusterError as exc:
                _log.debug("asking the API server for its time: %s", exc)
                stop.wait(IDLE_SECONDS)
            self._on_narrowed()

    def _probe(self, moments: list[float], stop: threading.Event) -> None:
        for moment in moments:
            wait = moment - self._now()
            if wait > 0 and stop.wait(wait):
                return
            self._api.request("GET", PROBE_PATH, timeout=PROBE_TIMEOUT)
