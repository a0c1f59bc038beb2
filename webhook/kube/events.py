"""Kubernetes Events on pods and VMs, published in the background.

The name of an Event is derived from its content, so a restarted controller does not repeat it.
Events above the rate limit are dropped and counted, warnings last. Events are for people; the
metrics count everything.
"""

import hashlib
import itertools
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import msgspec

from holdfast.webhook.errors import ApiStatusError, ClusterError
from holdfast.webhook.kube.api import Api, boot_time
from holdfast.webhook.model import durations
from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.model.paths import api_path

HELD = "Held"
RELEASED = "Released"
RELEASED_EARLY = "ReleasedEarly"
RELEASE_FAILED = "ReleaseFailed"
NODE_RECORDED = "StickyNodeRecorded"
NODE_NOT_RECORDED = "StickyNodeNotRecorded"
NODE_UNAVAILABLE = "StickyNodeUnavailable"
NODE_DIFFERS = "StickyNodeDiffers"

RATE = 20.0
"""Events per second once the burst is used up: a burst of releases must not fill etcd."""
BURST = 500.0
WARNINGS = 100.0
"""Extra burst for warnings, which must not be lost among other Events."""
RELEASES = 100
"""Number of recent releases to keep, for the status page."""
YIELD_SECONDS = 1.0
"""Maximum delay of an Event while releases are saturated: it costs as much as a release."""
POLL_SECONDS = 0.1
TIMEOUT = 5.0
NOTE_LENGTH = 1_000
"""Maximum bytes of a note; the API server accepts 1024."""

_NAME_LENGTH = 200  # leaves room for the hash in the 253 characters of a name
_log = logging.getLogger("holdfast.controller")


ObjectKind = tuple[str, str]
"""The apiVersion and kind of the object that an Event is about."""
POD: ObjectKind = ("v1", "Pod")
VM: ObjectKind = ("kubevirt.io/v1", "VirtualMachine")
_RECORD = dict.fromkeys((NODE_RECORDED, NODE_NOT_RECORDED, NODE_DIFFERS), "Record")
_ACTIONS = {HELD: "Hold", NODE_UNAVAILABLE: "Wait", **_RECORD}
"""The action by reason; `Release` for all others."""


@dataclass(frozen=True, slots=True)
class Event:
    """An Event about an object. A warning needs attention."""

    regarding: ObjectKey
    uid: str
    reason: str
    note: str
    warning: bool = False
    kind: ObjectKind = POD


@dataclass(frozen=True, slots=True)
class Released:
    """A released pod, and the note of its Event."""

    pod: ObjectKey
    at_ms: int
    note: str


@dataclass(eq=False)
class EventRecorder:
    """Publishes Events to the API server, and keeps the most recent releases."""

    api: Api
    _: KW_ONLY
    now_ms: Callable[[], int]
    on_dropped: Callable[[], None]
    now: Callable[[], float] = boot_time
    instance: str = "holdfast"

    def __post_init__(self) -> None:
        self._waiting: queue.PriorityQueue[tuple[bool, int, Event]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._released: deque[Released] = deque(maxlen=RELEASES)
        self._tokens, self._filled_at = BURST + WARNINGS, self.now()
        self.saturated: Callable[[], bool] = lambda: False
        """Whether there is more urgent work than Events; the manager sets it."""

    @property
    def full(self) -> bool:
        """Whether the queue has no room for Events other than warnings."""
        return self._waiting.qsize() >= BURST

    def record(self, event: Event) -> None:
        """Queue an Event, or drop it if the queue is full. Never blocks, never raises."""
        if event.reason == RELEASED:
            self._released.append(Released(event.regarding, self.now_ms(), event.note))
        if self._waiting.qsize() < (BURST + WARNINGS if event.warning else BURST):
            self._waiting.put((not event.warning, next(self._numbers), event))
        else:
            self.on_dropped()

    def run(self, stop: threading.Event) -> None:
        """Publish Events until `stop` is set and the queue is empty."""
        while not (stop.is_set() and self._waiting.empty()):
            try:
                _, _, event = self._waiting.get(timeout=0.5)
            except queue.Empty:
                continue
            end = self.now() + YIELD_SECONDS
            while self.saturated() and self.now() < end and not stop.wait(POLL_SECONDS):
                pass
            if self._take_token(event):
                self._publish(event)
            else:
                self.on_dropped()

    def released(self) -> Sequence[Released]:
        """Return the most recent releases, oldest first."""
        return self._released.copy()  # atomic, even if other threads append

    def _take_token(self, event: Event) -> bool:
        now = self.now()
        self._tokens = min(BURST + WARNINGS, self._tokens + (now - self._filled_at) * RATE)
        self._filled_at = now
        if self._tokens < (1 if event.warning else 1 + WARNINGS):
            return False
        self._tokens -= 1
        return True

    def _publish(self, event: Event) -> None:
        body = event_object(event, now_ms=self.now_ms(), instance=self.instance)
        path = api_path("events.k8s.io/v1", "events", event.regarding[0])
        try:
            self.api.request("POST", path, body=msgspec.json.encode(body), timeout=TIMEOUT)
        except ApiStatusError as exc:
            if exc.status != 409:  # already published
                _log.debug("event %s of %s/%s: %s", event.reason, *event.regarding, exc)
        except ClusterError as exc:
            self.on_dropped()
            _log.debug("event %s of %s/%s: %s", event.reason, *event.regarding, exc)


def event_object(event: Event, *, now_ms: int, instance: str) -> dict[str, object]:
    """Return the `events.k8s.io/v1` object of an Event; its name depends only on its content."""
    namespace, name = event.regarding
    reason, note = _text(event.reason), _text(event.note)
    content = "\0".join((event.uid, reason, note))
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    prefix = name[:_NAME_LENGTH].rstrip(".-")
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": f"{prefix}.{digest}"},
        "eventTime": durations.to_datetime(now_ms).isoformat(timespec="microseconds"),
        "reportingController": "holdfast.dev/controller",
        "reportingInstance": instance,
        "action": _ACTIONS.get(reason, "Release"),
        "reason": reason,
        "type": "Warning" if event.warning else "Normal",
        "note": note.encode()[:NOTE_LENGTH].decode(errors="ignore"),
        "regarding": {
            "apiVersion": event.kind[0],
            "kind": event.kind[1],
            "namespace": namespace,
            "name": name,
            "uid": event.uid,
        },
    }


def _text(value: object) -> str:
    """Return a value from a plugin as a string that is valid UTF-8."""
    return str(value).encode(errors="replace").decode()
