"""Leader election: the leader is the controller that holds a Lease.

The holder renews the Lease every few seconds, with the API server's time. Other candidates take it
once it has expired by the API server's clock, or once it has not changed for its duration by their
monotonic clock. No machine trusts another's clock. `leading` depends on time alone, so a process
that was suspended past its deadline knows that it is no longer the leader.
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from holdfast.webhook.errors import ApiStatusError, ClusterError, StartError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api, boot_time
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.telemetry.metrics import ControllerMetrics

LEASE = "holdfast-controller"
LEASE_SECONDS = 12
"""Duration of a Lease, in seconds; other candidates take it if it is not renewed in time."""
RENEW_DEADLINE = 8.0
"""Seconds without renewal after which the holder stops leading. Its last requests have to finish
before another candidate may take the Lease."""
RETRY_SECONDS = 2.0
"""Interval, in seconds, at which the holder renews and the other candidates check."""
REQUEST_TIMEOUT = 3.0
"""Timeout of a request, in seconds: two attempts that hang fit into the deadline."""
RESIGN_TIMEOUT = 0.8
"""Timeout of releasing the Lease on shutdown, in seconds; shutdown must not take long."""
RELEASED_SECONDS = 1
"""Duration of a released Lease, in seconds; the API requires more than 0."""

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_MOST_TRANSITIONS = 2**31 - 1
"""The API server rejects higher values."""
_log = logging.getLogger("holdfast.leader")


class _LeaseSpec(msgspec.Struct, rename="camel", frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _LeaseMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Lease(msgspec.Struct):
    metadata: _LeaseMetadata
    spec: _LeaseSpec = _LeaseSpec()


_DECODER = msgspec.json.Decoder(_Lease)


@dataclass(eq=False)
class Leader:
    """A candidate. `run` runs in one thread; `leading` may be called from any thread.

    `server_time` returns a lower bound of the API server's time, in seconds since 1970, or None
    before the first response. `now` is a monotonic clock of this machine.
    """

    api: Api
    metrics: ControllerMetrics
    _: KW_ONLY
    namespace: str
    server_time: Callable[[], float | None]
    now: Callable[[], float] = boot_time
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}_{uuid.uuid4()}")

    def __post_init__(self) -> None:
        self._leads_until = float("-inf")
        self._terms = 0
        self._led = False
        self._lease: _Lease | None = None
        self._observed = _LeaseSpec()
        self._observed_at = 0.0
        self._listeners: list[Callable[[], None]] = []
        self.metrics.leader.set_function(self.leading)

    def leading(self) -> bool:
        """Return whether this process is the leader."""
        return self.now() < self._leads_until

    def term(self) -> int:
        """Return how many times this process has become the leader."""
        return self._terms

    def on_started_leading(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the election thread whenever this process becomes the leader."""
        self._listeners.append(listener)

    def run(self, stop: threading.Event) -> None:
        """Acquire and renew the Lease until `stop` is set. Never raises."""
        while not stop.is_set():
            self.try_acquire_or_renew()
            stop.wait(self._wait())

    def try_acquire_or_renew(self) -> None:
        """Try once to acquire or renew the Lease."""
        try:
            self._try()
        except ClusterError as exc:
            self._lease = None  # read it again
            lost_race = isinstance(exc, ApiStatusError) and exc.status == 409
            if not lost_race:
                _log.warning("cannot acquire or renew Lease %s: %s", self._shown, exc)
        self._report()

    def resign(self) -> None:
        """Release the Lease for another candidate to take at once. Call this after all work.

        Never raises: on failure, the other candidates wait until the Lease expires.
        """
        # Stop leading first: another candidate may lead as soon as the release is written.
        lease = self._lease
        self._leads_until = float("-inf")
        self._report()
        if lease is None or lease.spec.holder_identity != self.identity:
            return
        spec = self._spec(lease.spec, holder="", seconds=RELEASED_SECONDS)
        try:
            self._write(lease.metadata.resource_version, spec, RESIGN_TIMEOUT)
        except ClusterError as exc:
            _log.warning("cannot release Lease %s: %s", self._shown, exc)

    def _try(self) -> None:
        # A leader need not read: its write conflicts if another candidate has written.
        if self._lease is None or not self.leading():
            self._lease = self._read()
        lease = self._lease
        if lease is not None and self._is_held(lease.spec):
            self._leads_until = float("-inf")
            return
        # Leadership counts from here, but the Lease from its write, so leadership ends first.
        sent = self.now()
        if lease is None:
            self._lease = self._write("", self._spec(None))
        else:
            self._lease = self._write(lease.metadata.resource_version, self._spec(lease.spec))
        self._terms += not self.leading()
        self._leads_until = sent + RENEW_DEADLINE

    def _read(self) -> _Lease | None:
        lease = listing.one(self.api, self._path, _Lease, timeout=REQUEST_TIMEOUT)
        # Record the time of a change by the local clock: no machine trusts another's.
        if lease is not None and lease.spec != self._observed:
            self._observed, self._observed_at = lease.spec, self.now()
        return lease

    def _is_held(self, spec: _LeaseSpec) -> bool:
        held = spec.holder_identity not in {None, "", self.identity}
        return held and self.now() < self._end and not self._is_expired(spec)

    def _is_expired(self, spec: _LeaseSpec) -> bool:
        """Return whether the Lease has expired by the API server's clock.

        A new controller knows this before it has watched the Lease for its whole duration.
        """
        now, renewed = self.server_time(), _epoch(spec.renew_time)
        if now is None or renewed is None:
            return False
        return now - renewed >= _duration(spec)

    @property
    def _end(self) -> float:
        return self._observed_at + _duration(self._observed)

    def _write(
        self, version: str, spec: dict[str, Any], timeout: float = REQUEST_TIMEOUT
    ) -> _Lease:
        """Write the Lease at a version; a PUT can create it with permission for this name only."""
        metadata = {"name": LEASE, "namespace": self.namespace}
        if version:
            metadata["resourceVersion"] = version
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }
        response = self.api.request(
            "PUT", self._path, body=msgspec.json.encode(body), timeout=timeout
        )
        return listing.decoded(response, self._path, _DECODER)

    def _spec(
        self, spec: _LeaseSpec | None, *, holder: str | None = None, seconds: int = LEASE_SECONDS
    ) -> dict[str, Any]:
        seconds_now = self.server_time() or time.time()  # other candidates have to see a change
        now = datetime.fromtimestamp(seconds_now, UTC).strftime(_MICRO_TIME)
        holder = self.identity if holder is None else holder
        previous = spec or _LeaseSpec(holder_identity=holder)
        moved = holder not in {"", previous.holder_identity}
        unreadable = _epoch(previous.acquire_time) is None  # the API server would reject it
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "acquireTime": now if moved or unreadable else previous.acquire_time,
            "renewTime": now,
            "leaseTransitions": min((previous.lease_transitions or 0) + moved, _MOST_TRANSITIONS),
        }

    def _wait(self) -> float:
        if self._lease is None or self.leading():
            return RETRY_SECONDS
        # Try as soon as the Lease expires, without a busy loop.
        return min(RETRY_SECONDS, max(self._end - self.now(), 0.05))

    def _report(self) -> None:
        leads = self.leading()
        if leads == self._led:
            return
        self._led = leads
        self.metrics.leader_transitions.labels("leading" if leads else "standby").inc()
        if not leads:
            _log.warning("no longer the leader")
            return
        _log.info("became the leader, with Lease %s", self._shown)
        for listener in self._listeners:
            listener()

    @property
    def _path(self) -> str:
        return api_path("coordination.k8s.io/v1", "leases", self.namespace, LEASE)

    @property
    def _shown(self) -> str:
        return f"{self.namespace}/{LEASE}"


def _duration(spec: _LeaseSpec) -> int:
    """Return the seconds that a Lease lasts, capped at ours in case others wrote more."""
    return min(spec.lease_duration_seconds or LEASE_SECONDS, LEASE_SECONDS)


def _epoch(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except (ValueError, OverflowError):
        return None


def own_namespace(file: Path = NAMESPACE_FILE) -> str:
    """Return the namespace of this pod. Raises StartError outside a pod."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise StartError(
            f"no namespace: {file} cannot be read ({os.strerror(exc.errno or 0)}); give one with "
            "--namespace"
        ) from None
