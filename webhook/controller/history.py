"""The last releases, for the status page."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.webhook.kube import events
from holdfast.webhook.kube.events import Event, EventSink
from holdfast.webhook.model.objects import ObjectKey

LENGTH = 100
"""Releases that are kept."""


@dataclass(frozen=True, slots=True)
class Released:
    """A pod that was released, and the note of its Event."""

    pod: ObjectKey
    at_ms: int
    note: str


class ReleaseHistory(EventSink):
    """Passes Events on, and remembers the last releases."""

    def __init__(self, recorder: EventSink, *, now_ms: Callable[[], int]) -> None:
        self._recorder = recorder
        self._now_ms = now_ms
        self._released: deque[Released] = deque(maxlen=LENGTH)
        self._lock = threading.Lock()

    @property
    def full(self) -> bool:
        """Return whether an Event passed on now would be dropped."""
        return self._recorder.full

    def record(self, event: Event) -> None:
        """Pass an Event on; never blocks, never raises."""
        if event.reason == events.RELEASED:
            with self._lock:
                self._released.append(Released(event.regarding, self._now_ms(), event.note))
        self._recorder.record(event)

    def run(self, stop: threading.Event) -> None:
        """Publish what was passed on until `stop` is set."""
        self._recorder.run(stop)

    def released(self) -> Sequence[Released]:
        """Return the last releases, the oldest first."""
        with self._lock:
            return [*self._released]
