"""Keep the estimate of the API server's clock narrow with small, well-timed requests.

`Date` is periodically compared with the creationTimestamp of an Event created by dry run.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime

import msgspec

from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api, boot_time
from holdfast.webhook.kube.server_clock import ServerClock

PROBE_PATH = "/version"
"""A cheap request that does not need etcd, and is allowed for every authenticated client."""
CREATE_PATH = "/apis/events.k8s.io/v1/namespaces/default/events"
PROBE_TIMEOUT = 2.0
IDLE_SECONDS = 1.0

_EVENT = {
    "apiVersion": "events.k8s.io/v1",
    "kind": "Event",
    "metadata": {"namespace": "default", "generateName": "holdfast-clock-"},
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "reportingController": "holdfast.dev/controller",
    "reportingInstance": "holdfast",
    "action": "Check",
    "reason": "ClockChecked",
    "type": "Normal",
    "note": "created by dry run, to read its creationTimestamp",
    "regarding": {"apiVersion": "v1", "kind": "Namespace", "name": "default"},
}


class _Metadata(msgspec.Struct, rename="camel"):
    creation_timestamp: datetime


class _Created(msgspec.Struct):
    metadata: _Metadata


_log = logging.getLogger("holdfast.controller")


def create_by_dry_run(api: Api) -> float:
    """Return the creationTimestamp (epoch seconds) of a dry-run Event. Raises ClusterError."""
    query, body = {"dryRun": "All"}, msgspec.json.encode(_EVENT)
    response = api.request("POST", CREATE_PATH, query=query, body=body, timeout=PROBE_TIMEOUT)
    event = listing.decoded(response, CREATE_PATH, msgspec.json.Decoder(_Created))
    return event.metadata.creation_timestamp.timestamp()


@dataclass(eq=False)
class ClockSynchronizer:
    """Sends probes to the API server. The clock observes their responses, like all others."""

    api: Api
    clock: ServerClock
    _: KW_ONLY
    on_narrowed: Callable[[], None]
    now: Callable[[], float] = boot_time
    _skipped = False

    def run(self, stop: threading.Event) -> None:
        """Probe until `stop` is set. Cluster errors are logged, never raised."""
        while not stop.is_set():
            probes = self.clock.next_probes(self.now())
            if not probes:
                stop.wait(IDLE_SECONDS)
                continue
            try:
                self._probe(probes, stop)
                # avoid a busy loop if responses have no Date
                if self.clock.bounds(self.now()) is None:
                    stop.wait(IDLE_SECONDS)
            except ClusterError as exc:
                _log.debug("probe of the API server's clock failed: %s", exc)
                stop.wait(IDLE_SECONDS)
            self.on_narrowed()

    def _probe(self, moments: list[float], stop: threading.Event) -> None:
        for moment in moments:
            wait = moment - self.now()
            if wait > 0 and stop.wait(wait):
                return
            # The last probe comes just after the second starts: an object created then would still
            # have the old second if the server's clock were behind `Date`.
            is_due = moment == moments[-1] and self.clock.wants_check(self.now())
            if is_due or not self.clock.trusts_date:
                self._check()
            else:
                self.api.request("GET", PROBE_PATH, timeout=PROBE_TIMEOUT)

    def _check(self) -> None:
        """Observe a creationTimestamp. If there is none but the server responds, trust `Date`."""
        was_trusted, sent = self.clock.trusts_date, self.now()
        try:
            created = create_by_dry_run(self.api)
        except ClusterError as exc:
            self.api.request("GET", PROBE_PATH, timeout=PROBE_TIMEOUT)
            if not self._skipped:
                _log.warning("cannot check the Date of the API server's responses: %s", exc)
            self._skipped = True
            self.clock.skip_check(self.now())
            return
        self._skipped = False
        self.clock.observe_created(sent=sent, received=self.now(), created=created)
        if was_trusted and not self.clock.trusts_date:
            _log.warning(
                "the Date of the API server's responses is ahead of its creationTimestamps: is it "
                "rewritten by a proxy? Releases go by creationTimestamps until this process ends"
            )
