"""The Secrets of CA and leaf, kept as `certs.rotation` decides.

Each write is held to what was read: an update by its resourceVersion; and to make a Secret, a
process applies it under a name of its own without force, which fails on a Secret that somebody
else has made meanwhile. (An apply is also the one way to make an object that needs the right to
`create` no other name.)
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from certs import authority, rotation
from certs.rotation import Action, Plan, Seen
from certs.stored import Authority, Data
from webhook import replicas
from webhook.cluster import APPLY_PATCH, Api
from webhook.errors import ApiStatusError, ClusterError
from webhook.metrics import ControllerMetrics
from webhook.replicas import Replica

CA_SECRET, LEAF_SECRET = "holdfast-ca", "holdfast-tls"
_TYPES = {CA_SECRET: "Opaque", LEAF_SECRET: "kubernetes.io/tls"}
MOST_STEPS = 6
"""Writes in one go: more than a whole bootstrap needs."""

_CONFLICT = 409
"""The HTTP status of a write of what somebody else has written meanwhile."""

_log = logging.getLogger("holdfast.certificates")


@dataclass
class Published:
    """The caBundles that API servers have, and for how long each CA has been in all of them.

    Times are seconds by the process's own clock.
    """

    bundles: Sequence[bytes] = ()
    since: Mapping[str, float] = field(default_factory=dict)

    def observe(self, bundles: Sequence[bytes], now: float) -> None:
        """Take in what was just read."""
        self.bundles = bundles
        self.since = {one: self.since.get(one, now) for one in rotation.common(bundles)}

    def trusted(self, now: float) -> dict[str, timedelta]:
        """Tell for how long each CA has been in every bundle."""
        return {one: timedelta(seconds=now - since) for one, since in self.since.items()}


class Kept(NamedTuple):
    """The bundle that API servers are to have, and what could not be written, if anything."""

    bundle: bytes
    problem: ClusterError | None = None


class Certificates:
    """Keeps both Secrets right, one step after the other."""

    def __init__(
        self,
        api: Api,
        plan: Plan,
        metrics: ControllerMetrics,
        *,
        namespace: str,
        identity: str,
        may_write: Callable[[], bool],
    ) -> None:
        self._api = api
        self._plan = plan
        self._metrics = metrics
        self._namespace = namespace
        self._manager = f"holdfast-{identity}"[:128]
        self._may_write = may_write

    def keep(
        self,
        now: datetime,
        *,
        known_for: timedelta,
        bundles: Sequence[bytes],
        trusted: Mapping[str, timedelta],
        asked: Sequence[Replica],
    ) -> Kept:
        """Do what is to be done, and return the bundle that API servers are to have.

        `now` is the API server's time, which has been known for so long without having been set.
        A Secret that cannot be written keeps nobody from having the bundle of those that there are.
        Raises ClusterError where nothing can be read, and where somebody else wrote first: it is
        then all to be looked at again.
        """
        for _ in range(MOST_STEPS):
            secrets = {name: self._read(name) for name in _TYPES}
            seen = Seen(
                now,
                authority=_data(secrets[CA_SECRET]),
                leaf=_data(secrets[LEAF_SECRET]),
                bundles=bundles,
                trusted=trusted,
                served=replicas.certificates(asked),
                unknown=any(one.called and one.certificate is None for one in asked),
                known_for=known_for,
            )
            step = rotation.next_step(seen, self._plan)
            if step is None or not self._may_write():
                return Kept(self._bundle(seen))
            name = LEAF_SECRET if step.action is Action.ISSUE else CA_SECRET
            try:
                self._write(name, secrets[name], rotation.carry_out(step, seen, self._plan))
            except ApiStatusError as exc:
                if exc.status == _CONFLICT or Authority.read(seen.authority) is None:
                    raise
                return Kept(self._bundle(seen), exc)
            self._metrics.certificate_writes.labels(step.action.name.lower()).inc()
            _log.info("Secret %s: %s (%s)", name, step.action.value, step.reason)
        return Kept(self._bundle(seen))

    def _bundle(self, seen: Seen) -> bytes:
        known = Authority.read(seen.authority)
        if known is None:
            raise ClusterError(f"the Secret {CA_SECRET} holds no CA that can sign")
        expiry = authority.not_after(known.signer.certificate)
        self._metrics.ca_expiry.set(expiry.timestamp())
        return known.bundle

    def _path(self, name: str) -> str:
        return f"/api/v1/namespaces/{quote(self._namespace)}/secrets/{name}"

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found = msgspec.json.decode(self._api.request("GET", self._path(name)))
        except ApiStatusError as exc:
            if exc.is_not_found:
                return None
            raise
        return dict(found)

    def _write(self, name: str, before: dict[str, Any] | None, data: Data) -> None:
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        if before is not None:
            body = msgspec.json.encode({**before, "data": encoded})
            self._api.request("PUT", self._path(name), body=body)
            return
        labels = {"app.kubernetes.io/name": "holdfast"}
        made = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": self._namespace, "labels": labels},
            "type": _TYPES[name],
            "data": encoded,
        }
        self._api.request(
            "PATCH",
            self._path(name),
            query={"fieldManager": self._manager, "force": "false"},
            body=msgspec.json.encode(made),
            content_type=APPLY_PATCH,
        )


def _data(secret: Mapping[str, Any] | None) -> Data | None:
    """Decode what a Secret holds; what cannot be decoded is left out."""
    if secret is None:
        return None
    found: dict[str, bytes] = {}
    for key, value in (secret.get("data") or {}).items():
        try:
            found[key] = base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError):
            continue
    return found
