"""What was told last, remembered for the status page while it is told on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from webhook import events
from webhook.events import Event, Events
from webhook.status_page import Released

LENGTH = 100
"""Releases that are remembered."""


class Chronicle:
    """Passes Events on (`webhook.events.Events`), and remembers the last releases."""

    def __init__(self, told: Events, *, now_ms: Callable[[], int]) -> None:
        self._told = told
        self._now_ms = now_ms
        self._released: deque[Released] = deque(maxlen=LENGTH)
        self._lock = threading.Lock()

    @property
    def full(self) -> bool:
        """Tell whether what is passed on now would be dropped."""
        return self._told.full

    def record(self, event: Event) -> None:
        """Take an Event; never blocks, never raises."""
        if event.reason == events.RELEASED:
            with self._lock:
                self._released.append(Released(event.regarding, self._now_ms(), event.note))
        self._told.record(event)

    def run(self, stop: threading.Event) -> None:
        """Tell on what was taken, until told to stop."""
        self._told.run(stop)

    def released(self) -> Sequence[Released]:
        """Give the last releases, the oldest first."""
        with self._lock:
            return [*self._released]
