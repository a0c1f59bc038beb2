"""Reconcile the Secrets of the CA and the leaf, as decided by `holdfast.certs.rotation`.

Writes never overwrite another process's changes. Updates carry the resourceVersion, and a Secret is
created by an apply without force, with a field manager that is unique to this process. An apply is
also the only way to create an object with permission for that name only.
"""

import base64
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.certs import authority, rotation
from holdfast.certs.rotation import Action, Authority, Data, Observation, Plan
from holdfast.webhook.errors import ApiStatusError, ClusterError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import APPLY_PATCH, Api
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.registration.replicas import Replica
from holdfast.webhook.telemetry.metrics import ControllerMetrics

CA_SECRET, LEAF_SECRET = "holdfast-ca", "holdfast-tls"
TYPES = {CA_SECRET: "Opaque", LEAF_SECRET: "kubernetes.io/tls"}
MOST_STEPS = 6
"""Maximum writes per reconciliation: more than a bootstrap needs."""

_log = logging.getLogger("holdfast.certificates")


@dataclass(eq=False)
class CertificateSecrets:
    """Reconciles both Secrets, one step at a time."""

    api: Api
    plan: Plan
    metrics: ControllerMetrics
    _: KW_ONLY
    namespace: str
    identity: str
    may_write: Callable[[], bool]

    def reconcile(
        self,
        now: datetime,
        *,
        known_for: timedelta,
        bundles: Sequence[bytes],
        trusted: Mapping[str, timedelta],
        asked: Sequence[Replica],
    ) -> tuple[bytes, ClusterError | None]:
        """Run all due steps; return the bundle to register, and the error of a failed write.

        `now` is the API server's time; its clock has not been set for `known_for`. Raises
        ClusterError if the Secrets cannot be read, or if another process wrote first.
        """
        for _ in range(MOST_STEPS):
            secrets = {
                name: listing.one(self.api, self._path(name), dict[str, Any]) for name in TYPES
            }
            observation = Observation(
                now,
                authority=_data(secrets[CA_SECRET]),
                leaf=_data(secrets[LEAF_SECRET]),
                bundles=bundles,
                trusted=trusted,
                served=[
                    replica.certificate for replica in asked if replica.certificate is not None
                ],
                unknown=any(replica.called and replica.certificate is None for replica in asked),
                known_for=known_for,
            )
            step = rotation.next_step(observation, self.plan)
            if step is None or not self.may_write():
                return self._bundle(observation), None
            name = LEAF_SECRET if step.action is Action.ISSUE else CA_SECRET
            data = rotation.carry_out(step, observation, self.plan)
            try:
                self._write(name, secrets[name], data)
            except ApiStatusError as exc:
                # After a conflict, another leader has written: read everything again. A bundle
                # needs a CA with a stored key, and must keep CAs whose certificates are served.
                if exc.status == 409 or Authority.read(observation.authority) is None:
                    raise
                if step.action is Action.RETAIN:
                    observation = replace(observation, authority=data)
                return self._bundle(observation), exc
            if step.action is Action.FORGET:
                bundles = ()  # do not register it again, even if a replica does not respond
            self.metrics.certificate_writes.labels(step.action.name.lower()).inc()
            _log.info("Secret %s: %s (%s)", name, step.action.value, step.reason)
        return self._bundle(observation), None

    def _bundle(self, observation: Observation) -> bytes:
        ca_secret = Authority.read(observation.authority)
        if ca_secret is None:
            raise ClusterError(f"Secret {CA_SECRET} has no CA that can sign")
        expiry = authority.not_after(ca_secret.signer.certificate)
        self.metrics.ca_expiry.set(expiry.timestamp())
        return ca_secret.bundle

    def _path(self, name: str) -> str:
        return api_path("v1", "secrets", self.namespace, name)

    def _write(self, name: str, secret: dict[str, Any] | None, data: Data) -> None:
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        if secret is not None:
            if secret.get("immutable"):
                raise ApiStatusError(
                    f"Secret {name} is immutable and cannot be renewed; delete it",
                    status=422,
                    reason="Invalid",
                )
            # `secret` has the resourceVersion, so a concurrent change is not lost. The API server
            # keeps its `managedFields`, and may reject them in the form in which it sent them.
            metadata = {**secret["metadata"], "managedFields": None}
            body = msgspec.json.encode({**secret, "metadata": metadata, "data": encoded})
            self.api.request("PUT", self._path(name), body=body)
            return
        labels = {"app.kubernetes.io/name": "holdfast"}
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": self.namespace, "labels": labels},
            "type": TYPES[name],
            "data": encoded,
        }
        self.api.request(
            "PATCH",
            self._path(name),
            # The API server rejects longer field manager names.
            query={"fieldManager": f"holdfast-{self.identity}"[:128], "force": "false"},
            body=msgspec.json.encode(manifest),
            content_type=APPLY_PATCH,
        )


def _data(secret: Mapping[str, Any] | None) -> Data | None:
    if secret is None:
        return None
    return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}
