"""Kubernetes Events on pods and VMs: told in the background, never at the work's expense.

An Event's name is made of what it says, so that a controller which starts again, or two at once,
tell the same thing once. What comes faster than the rate below is dropped and counted, warnings
last: Events are for people, the metrics count everything.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol
from urllib.parse import quote

import msgspec

from webhook import values
from webhook.cluster import Api, boot_time
from webhook.errors import ApiStatusError, ClusterError
from webhook.objects import Names

HELD = "Held"
RELEASED = "Released"
RELEASE_FAILED = "ReleaseFailed"
NODE_RECORDED = "StickyNodeRecorded"
NODE_NOT_RECORDED = "StickyNodeNotRecorded"
NODE_UNAVAILABLE = "StickyNodeUnavailable"

RATE = 20.0
"""Events a second, once the burst is used up: a burst of releases must not fill etcd."""
BURST = 500.0
WARNINGS = 100.0
"""What the burst has beside for warnings: a person should see them however much else is told."""
MAKE_WAY_SECONDS = 1.0
"""How long an event waits for releases that use all there is: it costs as much as one of them."""
LOOK_SECONDS = 0.1
TIMEOUT = 5.0
NOTE_LENGTH = 1_000
"""Bytes of a note; the API server takes 1024."""

_CONFLICT = 409
_NAME_LENGTH = (
    200  # an object's name has up to 253 characters, an Event's too; the rest is the hash
)
_log = logging.getLogger("holdfast.controller")


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of object that an event is about."""

    api_version: str
    name: str


POD, VM = Kind("v1", "Pod"), Kind("kubevirt.io/v1", "VirtualMachine")
_ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        HELD: "Hold",
        NODE_RECORDED: "Record",
        NODE_NOT_RECORDED: "Record",
        NODE_UNAVAILABLE: "Wait",
    }
)
"""What was done, by the reason; releases in all other cases."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something to tell about an object; a warning is something that a person should look at."""

    regarding: Names
    uid: str
    reason: str
    note: str
    warning: bool = False
    kind: Kind = POD


class Events(Protocol):
    """Where events are told."""

    @property
    def full(self) -> bool:
        """Tell whether an event that is recorded now would be dropped."""
        ...

    def record(self, event: Event) -> None:
        """Take an event; never blocks, never raises."""
        ...

    def run(self, stop: threading.Event) -> None:
        """Tell what was taken, until told to stop."""
        ...


class Silence:
    """Tells nothing."""

    full = False
    """It takes whatever is recorded."""

    def record(self, event: Event) -> None:
        """Drop the event."""

    def run(self, stop: threading.Event) -> None:
        """Do nothing."""


class Recorder:
    """Tells events to the API server, from a thread of its own."""

    def __init__(
        self,
        api: Api,
        *,
        now_ms: Callable[[], int],
        on_dropped: Callable[[], None],
        now: Callable[[], float] = boot_time,
        instance: str = "holdfast",
    ) -> None:
        self._api = api
        self._now_ms = now_ms
        self._on_dropped = on_dropped
        self._now = now
        self._instance = instance
        self._waiting: queue.PriorityQueue[tuple[bool, int, Event]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._tokens, self._filled_at = BURST + WARNINGS, now()
        self.busy: Callable[[], bool] = lambda: False
        """Whether there is more urgent work than events; for who knows to set."""

    @property
    def full(self) -> bool:
        """Tell whether as many events wait as may, of those that are no warnings."""
        return self._waiting.qsize() >= BURST

    def record(self, event: Event) -> None:
        """Take an event; drop it when they come faster than they may."""
        if self._waiting.qsize() < (BURST + WARNINGS if event.warning else BURST):
            self._waiting.put((not event.warning, next(self._numbers), event))
        else:
            self._on_dropped()

    def run(self, stop: threading.Event) -> None:
        """Tell events until told to stop; those that wait then are told first."""
        while not (stop.is_set() and self._waiting.empty()):
            try:
                _, _, event = self._waiting.get(timeout=0.5)
            except queue.Empty:
                continue
            self._make_way(stop)
            if self._may_tell(event):
                self._tell(event)
            else:
                self._on_dropped()

    def _make_way(self, stop: threading.Event) -> None:
        end = self._now() + MAKE_WAY_SECONDS
        while self.busy() and self._now() < end and not stop.wait(LOOK_SECONDS):
            pass

    def _may_tell(self, event: Event) -> bool:
        now = self._now()
        self._tokens = min(BURST + WARNINGS, self._tokens + (now - self._filled_at) * RATE)
        self._filled_at = now
        if self._tokens < (1 if event.warning else 1 + WARNINGS):
            return False
        self._tokens -= 1
        return True

    def _tell(self, event: Event) -> None:
        namespace = event.regarding[0]
        body = event_object(event, now_ms=self._now_ms(), instance=self._instance)
        path = f"/apis/events.k8s.io/v1/namespaces/{quote(namespace, safe='')}/events"
        try:
            self._api.request("POST", path, body=msgspec.json.encode(body), timeout=TIMEOUT)
        except ApiStatusError as exc:
            if exc.status != _CONFLICT:  # told already
                _log.debug("event %s of %s/%s: %s", event.reason, *event.regarding, exc)
        except ClusterError as exc:
            self._on_dropped()
            _log.debug("event %s of %s/%s: %s", event.reason, *event.regarding, exc)


def event_object(event: Event, *, now_ms: int, instance: str) -> dict[str, object]:
    """Make the `events.k8s.io/v1` object of an event; its name depends on what it says alone."""
    namespace, name = event.regarding
    reason, note = _text(event.reason), _text(event.note)
    said = "\0".join((event.uid, reason, note))
    digest = hashlib.blake2b(said.encode(), digest_size=8).hexdigest()
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "namespace": namespace,
            "name": f"{name[:_NAME_LENGTH].rstrip('.-')}.{digest}",
        },
        "eventTime": values.to_datetime(now_ms).isoformat(timespec="microseconds"),
        "reportingController": "holdfast.dev/controller",
        "reportingInstance": instance,
        "action": _ACTIONS.get(reason, "Release"),
        "reason": reason,
        "type": "Warning" if event.warning else "Normal",
        "note": note.encode()[:NOTE_LENGTH].decode(errors="ignore"),
        "regarding": {
            "apiVersion": event.kind.api_version,
            "kind": event.kind.name,
            "namespace": namespace,
            "name": name,
            "uid": event.uid,
        },
    }


def _text(said: object) -> str:
    """Make text that can be sent of what a plugin may have said, whatever it is."""
    return str(said).encode(errors="replace").decode()
