"""Which of several controllers leads: the one that holds a Lease in the cluster.

The holder renews the Lease every few seconds, and writes into it what time it is by the API
server's clock. The others take it when it has ended: when by that same clock its last renewal is as
long ago as it lasts, or when they have not seen it change for as long, by their own clocks, which
neither step nor stop. No machine trusts another's clock. Whether
this process leads is a question of the time alone: a process that was stopped or slept through its
deadline knows it as soon as it runs again. What it had on its way then fails its own tests.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from webhook.cluster import Api, boot_time
from webhook.errors import ApiStatusError, ClusterError, StartError
from webhook.metrics import ControllerMetrics

LEASE = "holdfast-controller"
LEASE_SECONDS = 12
"""How long a Lease lasts that nobody renews: others take it then."""
RENEW_DEADLINE = 8.0
"""Seconds after which a holder that could not renew leads no more: well before others may take
the Lease, so that requests of its last moment have come through."""
RETRY_SECONDS = 2.0
"""How often a holder renews, and the others look."""
REQUEST_TIMEOUT = 3.0
"""Seconds for one request: two tries that hang fit into the deadline."""
RELEASED_SECONDS = 1
"""How long a Lease lasts that was given up; the API asks for more than 0."""

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_CONFLICT = 409
_log = logging.getLogger("holdfast.leader")


class _Spec(msgspec.Struct, rename="camel", frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Lease(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = _Spec()


_DECODER = msgspec.json.Decoder(_Lease)


class Leader:
    """One candidate. `run` is its thread; `leading` may be asked from any other."""

    def __init__(
        self,
        api: Api,
        metrics: ControllerMetrics,
        *,
        namespace: str,
        server_time: Callable[[], float | None],
        now: Callable[[], float] = boot_time,
        identity: str | None = None,
    ) -> None:
        """Stand for election.

        `server_time` is what time it is at least at the API server, in seconds since 1970, and
        None until it has answered; `now` is this machine's own clock.
        """
        self._api = api
        self._metrics = metrics
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases"
        self._namespace = namespace
        self._server_time = server_time
        self._now = now
        self.identity = identity or f"{socket.gethostname()}_{uuid.uuid4()}"
        self._leads_until = float("-inf")
        self._led = False
        self._lease: _Lease | None = None
        self._seen = _Spec()
        self._seen_at = 0.0
        self._listeners: list[Callable[[], None]] = []
        metrics.leader.set_function(self.leading)

    def leading(self) -> bool:
        """Tell whether this process leads now."""
        return self._now() < self._leads_until

    def on_gained(self, listener: Callable[[], None]) -> None:
        """Call this, from the election's thread, each time this process becomes the leader."""
        self._listeners.append(listener)

    def run(self, stop: threading.Event) -> None:
        """Hold the Lease, or wait for it, until told to stop. Never raises for a cluster's sake."""
        while not stop.is_set():
            self.turn()
            stop.wait(self._wait())

    def turn(self) -> None:
        """Try once to renew the Lease, or to take it."""
        try:
            self._try()
        except ApiStatusError as exc:
            self._lease = None  # read it again
            if exc.status != _CONFLICT:  # else another one wrote it: an election as it should be
                _log.warning("the Lease %s cannot be had: %s", self._shown, exc)
        except (ClusterError, msgspec.DecodeError, UnicodeDecodeError) as exc:
            self._lease = None
            _log.warning("the Lease %s cannot be had: %s", self._shown, exc)
        self._tell()

    def resign(self) -> None:
        """Give the Lease up, so that another takes it at once; to be called when all work is done.

        Never raises: where it fails, the others wait until the Lease ends.
        """
        lease = self._lease
        self._leads_until = float("-inf")
        self._tell()
        if lease is None or lease.spec.holder_identity != self.identity:
            return
        spec = self._spec(lease.spec, holder="", seconds=RELEASED_SECONDS)
        try:
            self._write(lease.metadata.resource_version, spec)
        except (ClusterError, msgspec.DecodeError, UnicodeDecodeError) as exc:
            _log.warning("the Lease %s cannot be given up: %s", self._shown, exc)

    # --- one turn ------------------------------------------------------------------------------

    def _try(self) -> None:
        if self._lease is None or not self.leading():
            self._lease = self._read()
        lease = self._lease
        if lease is not None and self._taken(lease.spec):
            self._leads_until = float("-inf")
            return
        sent = self._now()
        if lease is None:
            self._lease = self._write("", self._spec(None))
        else:
            self._lease = self._write(lease.metadata.resource_version, self._spec(lease.spec))
        self._leads_until = sent + RENEW_DEADLINE

    def _read(self) -> _Lease | None:
        try:
            answer = self._api.request("GET", self._path, timeout=REQUEST_TIMEOUT)
        except ApiStatusError as exc:
            if exc.is_not_found:
                return None
            raise
        lease = _DECODER.decode(answer)
        if lease.spec != self._seen:
            self._seen, self._seen_at = lease.spec, self._now()
        return lease

    def _taken(self, spec: _Spec) -> bool:
        """Tell whether another holds the Lease, and it has not ended."""
        held = spec.holder_identity not in {None, "", self.identity}
        return held and self._now() < self._end and not self._outdated(spec)

    def _outdated(self, spec: _Spec) -> bool:
        """Tell whether the Lease has ended by the API server's clock, which its holder wrote by.

        So a controller that starts need not watch the Lease of one that has been gone for long.
        """
        now, renewed = self._server_time(), _epoch(spec.renew_time)
        if now is None or renewed is None:
            return False
        return now - renewed >= (spec.lease_duration_seconds or LEASE_SECONDS)

    @property
    def _end(self) -> float:
        return self._seen_at + (self._seen.lease_duration_seconds or LEASE_SECONDS)

    def _write(self, version: str, spec: dict[str, Any]) -> _Lease:
        """Write the Lease, if it still has this version; an empty one makes it, if there is none.

        PUT makes a Lease too, and then needs the right to create this one by its name alone.
        """
        metadata = {"name": LEASE, "namespace": self._namespace}
        if version:
            metadata["resourceVersion"] = version
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }
        answer = self._api.request(
            "PUT", self._path, body=msgspec.json.encode(body), timeout=REQUEST_TIMEOUT
        )
        return _DECODER.decode(answer)

    def _spec(
        self, before: _Spec | None, *, holder: str | None = None, seconds: int = LEASE_SECONDS
    ) -> dict[str, Any]:
        seconds_now = self._server_time() or time.time()  # others see only a Lease that changes
        now = datetime.fromtimestamp(seconds_now, UTC).strftime(_MICRO_TIME)
        holder = self.identity if holder is None else holder
        known = before or _Spec(holder_identity=holder)
        moved = holder not in {"", known.holder_identity}
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "acquireTime": now if moved else known.acquire_time or now,
            "renewTime": now,
            "leaseTransitions": (known.lease_transitions or 0) + moved,
        }

    # --- what becomes of it --------------------------------------------------------------------

    def _wait(self) -> float:
        if self._lease is None or self.leading():
            return RETRY_SECONDS
        return min(RETRY_SECONDS, max(self._end - self._now(), 0.05))

    def _tell(self) -> None:
        leads = self.leading()
        if leads == self._led:
            return
        self._led = leads
        self._metrics.leader_transitions.labels("leading" if leads else "standby").inc()
        if not leads:
            _log.warning("leads no more")
            return
        _log.info("leads now, by the Lease %s", self._shown)
        for listener in self._listeners:
            listener()

    @property
    def _path(self) -> str:
        return f"{self._collection}/{LEASE}"

    @property
    def _shown(self) -> str:
        return f"{self._namespace}/{LEASE}"


def _epoch(text: str | None) -> float | None:
    """Read a time as seconds since 1970; None where it is none, whoever wrote it."""
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except (ValueError, OverflowError):
        return None


def own_namespace(file: Path = NAMESPACE_FILE) -> str:
    """Read the namespace that this process's pod is in. Raises StartError outside of a pod."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise StartError(
            f"no namespace: {file} cannot be read ({os.strerror(exc.errno or 0)}); name one with "
            "--namespace"
        ) from None
