"""Registering the webhooks with the API server, and keeping the registration right.

Whoever installs Holdfast makes both webhook configurations without any webhook in them. The
leading controller fills them in once there is somebody to call: replicas that serve a certificate
of the CA in the caBundle, and that all know what to do with the pods that would be sent. From then
on it puts back what others reset, as far as it is ours.
"""

from __future__ import annotations

import base64
import binascii
import enum
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from certs import rotation
from webhook import registration, replicas
from webhook.certificates import Certificates, Published
from webhook.cluster import APPLY_PATCH, JSON_PATCH, Api, boot_time
from webhook.errors import ApiStatusError, ClusterError
from webhook.metrics import ControllerMetrics
from webhook.pipeline import Pipeline
from webhook.registration import NOT_YET, Configuration, Registration
from webhook.replicas import Replica, Service

NAME = "holdfast"
"""Of both webhook configurations."""
FIELD_MANAGER = "holdfast-controller"
TURN_SECONDS = 10.0
"""How often everything is looked at. So nothing has to be watched, which would need more rights,
and what is spoilt or reset is right again well within half a minute."""
_OWN_SUFFIX = ".holdfast.dev"

_log = logging.getLogger("holdfast.publisher")


class Mode(enum.Enum):
    """Where the certificates come from."""

    SELF = "self"
    CERT_MANAGER = "cert-manager"
    NONE = "none"


class Publisher:
    """Keeps certificates and registration right, while this controller leads."""

    def __init__(
        self,
        api: Api,
        pipeline: Pipeline,
        service: Service,
        metrics: ControllerMetrics,
        *,
        certificates: Certificates | None,
        leading: Callable[[], bool],
        server_time: Callable[[], float | None],
        ask: Callable[[Api, Service], list[Replica]] = replicas.ask_all,
        now: Callable[[], float] = boot_time,
    ) -> None:
        """Publish what this pipeline says.

        Without `certificates`, cert-manager gives the caBundle. `server_time` is the API server's
        clock, in seconds since 1970: without it nothing is done.
        """
        self._api = api
        self._pipeline = pipeline
        self._service = service
        self._metrics = metrics
        self._certificates = certificates
        self._leading = leading
        self._server_time = server_time
        self._ask = ask
        self._now = now
        self._published = Published()
        self._stands = False
        self._digest = registration.digest(pipeline)
        self._paths = [registration.path(kind, NAME) for kind in ("mutating", "validating")]
        self._waits_for = ""
        self._told = ""

    def run(self, stop: threading.Event) -> None:
        """Keep everything right until told to stop. Never raises for what a cluster may do."""
        while not stop.wait(TURN_SECONDS if self.turn() else 1.0):
            pass

    def turn(self) -> bool:
        """Look at everything once, and do what is to be done; False where it could not be."""
        seconds = self._server_time()
        if not self._leading() or seconds is None:
            self._published = Published()  # whoever led meanwhile may have changed it
            self._stands = False
            self._metrics.registered.set(0)
            self._metrics.ca_expiry.set(0)
            return False
        try:
            self._keep(datetime.fromtimestamp(seconds, UTC))
        except (ClusterError, msgspec.DecodeError, UnicodeDecodeError) as exc:
            self._metrics.registered.set(0)  # whoever cannot look has not found them so
            self._metrics.publisher_failures.inc()
            _log.warning("certificates and webhook configurations: %s; looking again", exc)
        return True

    # --- one look ------------------------------------------------------------------------------

    def _keep(self, now: datetime) -> None:
        live = [self._read(path) for path in self._paths]
        bundles = [_bundle(one) for each in live for one in _webhooks(each)]
        self._published.observe(bundles, self._now())
        asked = self._ask(self._api, self._service)
        bundle = None
        if self._certificates is not None:
            trusted = self._published.trusted(self._now())
            bundle = self._certificates.keep(now, bundles=bundles, trusted=trusted, asked=asked)
        else:
            bundles = bundles or [b""]
        self._publish(now, live, bundle, bundles, asked)

    def _publish(
        self,
        now: datetime,
        live: Sequence[Configuration],
        bundle: bytes | None,
        bundles: Sequence[bytes],
        asked: Sequence[Replica],
    ) -> None:
        trust = [bundle] if bundle is not None else bundles
        self._waits_for = self._obstacle(now, trust, asked)
        may = not self._waits_for
        wanted = self._wanted(bundle)
        right = []
        for path, found in zip(self._paths, live, strict=True):
            desired = wanted[path]
            if may:
                right.append(self._apply(path, desired, found))
                continue
            right.append(_holds(found, desired))
            if bundle is None and not _webhooks(found):
                self._apply(path, _idle(desired), found)
            elif bundle:
                self._replace_bundle(path, found, bundle)
        self._stands = may or all(right)
        self._metrics.registered.set(all(right))
        self._tell("" if all(right) else self._waits_for)

    def _obstacle(  # noqa: PLR0911 - one for each
        self, now: datetime, trust: Sequence[bytes], asked: Sequence[Replica]
    ) -> str:
        """Tell what keeps the conditions of this configuration from being published, if anything.

        What stands is put back unless a replica knows other conditions: those that do not answer
        are no reason to leave pods unheld.
        """
        called = [one for one in asked if one.called]
        if any(one.conditions not in {self._digest, None} for one in called):
            return "replicas have another configuration"
        if self._stands:
            return ""
        if not called:
            return "no replica is ready"
        for one in called:
            if one.certificate is None or one.conditions is None:
                return f"the replica {one.address} does not answer"
            if not self._is_trusted(one, trust, now):
                return f"the replica {one.address} serves no certificate of the caBundle"
        if not replicas.rolled_out(self._api, self._service):
            return f"the Deployment {self._service.deployment} is not rolled out"
        return ""

    def _is_trusted(self, replica: Replica, trust: Sequence[bytes], now: datetime) -> bool:
        names = self._service.dns_names[-1:]
        certificate = replica.certificate
        return certificate is not None and all(
            rotation.serves(certificate, bundle, now, names) for bundle in trust
        )

    def _wanted(self, bundle: bytes | None) -> dict[str, Configuration]:
        service = self._service
        client = registration.by_service(service.namespace, service.name, bundle)
        excluded = dict.fromkeys((*registration.EXCLUDED_NAMESPACES, service.namespace))
        return Registration(NAME, client, tuple(excluded)).configurations(self._pipeline)

    def _tell(self, obstacle: str) -> None:
        if obstacle and obstacle != self._told:
            _log.info("the webhooks are not registered as configured: %s", obstacle)
        self._told = obstacle

    # --- reading and writing -------------------------------------------------------------------

    def _read(self, path: str) -> Configuration:
        try:
            found = msgspec.json.decode(self._api.request("GET", path))
        except ApiStatusError as exc:
            if exc.is_not_found:
                raise ClusterError(f"{path} is not there; apply the manifests") from exc
            raise
        return dict(found)

    def _apply(self, path: str, desired: Configuration, found: Configuration) -> bool:
        """Make it so, where it is not; True where it was."""
        if _holds(found, desired):
            return True
        if not self._leading():
            return False
        # as it was found, or not at all: a leader that slept must not undo what another has done
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        applied = self._api.request(
            "PATCH",
            path,
            query={"fieldManager": FIELD_MANAGER, "force": "true"},
            body=msgspec.json.encode({**desired, "metadata": {**desired["metadata"], **version}}),
            content_type=APPLY_PATCH,
        )
        self._metrics.registrations.inc()
        _log.info("%s: written", path)
        left = msgspec.json.decode(applied)
        if self._patch(path, left, [{"op": "remove", "path": at} for at in _stale(left, desired)]):
            _log.info("%s: taken out what is not wanted any more", path)
        return False

    def _replace_bundle(self, path: str, found: Configuration, bundle: bytes) -> None:
        """Correct the caBundle of webhooks whose conditions are not ours to decide now."""
        encoded = base64.b64encode(bundle).decode()
        changes = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": encoded}
            for index, one in enumerate(found.get("webhooks") or ())
            if one["name"].endswith(_OWN_SUFFIX) and _bundle(one) != bundle
        ]
        if self._patch(path, found, changes):
            _log.info("%s: caBundle written", path)

    def _patch(self, path: str, found: Configuration, changes: Sequence[Mapping[str, str]]) -> bool:
        """Change a configuration if it is as it was found still; False where nothing is to do."""
        if not changes or not self._leading():
            return False
        version = found["metadata"]["resourceVersion"]
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        self._api.request(
            "PATCH",
            path,
            query={"fieldManager": FIELD_MANAGER},
            body=msgspec.json.encode([test, *changes]),
            content_type=JSON_PATCH,
        )
        self._metrics.registrations.inc()
        return True


def _webhooks(found: Configuration) -> list[dict[str, Any]]:
    """Give those that are ours."""
    return [one for one in found.get("webhooks") or () if one["name"].endswith(_OWN_SUFFIX)]


def _bundle(webhook: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(webhook["clientConfig"].get("caBundle") or "", validate=True)
    except (binascii.Error, KeyError):
        return b""


def _idle(desired: Configuration) -> Configuration:
    """Make webhooks that nobody calls yet."""
    webhooks = [
        {**one, "matchConditions": [NOT_YET, *one["matchConditions"]]}
        for one in desired["webhooks"]
    ]
    return {**desired, "webhooks": webhooks}


def _stale(found: Configuration, desired: Configuration) -> list[str]:
    """Find webhooks of ours, and the condition of idle ones, that are not wanted; the last first.

    An apply leaves them where somebody else has written them.
    """
    wanted = {one["name"]: one["matchConditions"] for one in desired["webhooks"]}
    stale: list[str] = []
    for place, one in enumerate(found.get("webhooks") or ()):
        if one["name"] not in wanted:
            stale += [f"/webhooks/{place}"] if one["name"].endswith(_OWN_SUFFIX) else []
        elif NOT_YET not in wanted[one["name"]]:
            stale += [
                f"/webhooks/{place}/matchConditions/{at}"
                for at, condition in enumerate(one.get("matchConditions") or ())
                if condition["name"] == NOT_YET["name"]
            ]
    return stale[::-1]


def _holds(found: Any, wanted: Any) -> bool:
    """Tell whether all that is wanted is there; what others have added is theirs.

    Lists of named things are compared by name, as the API server merges them; webhooks and
    conditions that were ours, and are wanted no longer, make a difference.
    """
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and _holds(found[key], value) for key, value in wanted.items()
        )
    if not isinstance(wanted, list):
        return bool(found == wanted)
    if not isinstance(found, list):
        return False
    if wanted and all(isinstance(one, dict) and "name" in one for one in wanted):
        there = {one["name"]: one for one in found}
        names = {one["name"] for one in wanted}
        stale = {name for name in there if name.endswith(_OWN_SUFFIX)} - names
        idle = NOT_YET["name"] in there and NOT_YET["name"] not in names
        return not stale and not idle and all(_holds(there.get(one["name"]), one) for one in wanted)
    return len(found) == len(wanted) and all(map(_holds, found, wanted))
