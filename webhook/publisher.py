"""Registering the webhooks with the API server, and keeping the registration right.

Whoever installs Holdfast makes both webhook configurations without any webhook in them. The
leading controller fills them in once there is somebody to call: replicas that serve a certificate
of the CA in the caBundle, and that all know what to do with the pods that would be sent. From then
on it puts back what others reset, as far as it is ours.
"""

from __future__ import annotations

import base64
import enum
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from certs import rotation
from webhook import registered, registration, replicas
from webhook.certificates import Certificates, Published
from webhook.clock import Steadiness
from webhook.cluster import APPLY_PATCH, JSON_PATCH, Api, boot_time
from webhook.errors import ApiStatusError, ClusterError
from webhook.metrics import ControllerMetrics
from webhook.pipeline import Pipeline
from webhook.registration import Configuration, Registration
from webhook.replicas import Replica, Service

NAME = "holdfast"
"""Of both webhook configurations."""
FIELD_MANAGER = "holdfast-controller"
TURN_SECONDS = 10.0
"""How often everything is looked at. So nothing has to be watched, which would need more rights,
and what is spoilt or reset is right again well within half a minute."""

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
        self._steadiness = Steadiness()
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
        if seconds is not None:
            self._steadiness.observe(seconds, self._now())
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
        """Look, and do what is to be done; what cannot be done keeps nothing else undone.

        Raises ClusterError, which tells all that could not, when all else is done.
        """
        live = {path: self._read(path) for path in self._paths}
        missing = [path for path, found in live.items() if found is None]
        problems = [ClusterError(f"{path} is not there; apply the manifests") for path in missing]
        webhooks = [one for each in live.values() if each for one in registered.ours(each)]
        bundles = [registered.bundle_of(one) for one in webhooks]
        self._published.observe(bundles, self._now())
        asked = self._ask(self._api, self._service)
        bundle: bytes | None = None
        if self._certificates is not None:
            bundle, problem = self._certificates.keep(
                now,
                known_for=timedelta(seconds=self._steadiness.seconds(self._now())),
                bundles=bundles,
                trusted=self._published.trusted(self._now()),
                asked=asked,
            )
            problems += [problem] if problem is not None else []
        trust = (bundles or [b""]) if bundle is None else [bundle]
        self._waits_for = self._obstacle(now, trust, asked)
        problems += self._publish(live, bundle, may=not self._waits_for)
        if problems:
            raise ClusterError("; ".join(map(str, problems)))

    def _publish(
        self,
        live: Mapping[str, Configuration | None],
        bundle: bytes | None,
        *,
        may: bool,
    ) -> Sequence[ClusterError]:
        """Make configurations what they should be; tell what could not be written."""
        wanted, right, problems = self._wanted(bundle), [], list[ClusterError]()
        for path, found in live.items():
            try:
                is_right = found is not None and self._put_right(
                    path, found, wanted[path], bundle, may=may
                )
            except ApiStatusError as exc:
                is_right = False
                problems.append(exc)
            right.append(is_right)
        if not problems and None not in live.values():
            self._stands = may or all(right)
        self._metrics.registered.set(all(right))
        self._tell("" if all(right) else self._waits_for)
        return problems

    def _put_right(
        self,
        path: str,
        found: Configuration,
        desired: Configuration,
        bundle: bytes | None,
        *,
        may: bool,
    ) -> bool:
        """Make a configuration what it should be, as far as that may be; True where it was."""
        if may:
            return self._apply(path, desired, found)
        if bundle is None and not registered.ours(found):
            self._apply(path, registered.idle(desired), found)
        elif bundle:
            self._replace_bundle(path, found, bundle)
        return registered.holds(found, desired)

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

    def _read(self, path: str) -> Configuration | None:
        """Read a configuration; None where there is none."""
        try:
            found = msgspec.json.decode(self._api.request("GET", path))
        except ApiStatusError as exc:
            if exc.is_not_found:
                return None
            raise
        return dict(found)

    def _apply(self, path: str, desired: Configuration, found: Configuration) -> bool:
        """Make it so, where it is not; True where it was."""
        if registered.holds(found, desired):
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
        unwanted = [{"op": "remove", "path": at} for at in registered.stale(left, desired)]
        if self._patch(path, left, unwanted):
            _log.info("%s: taken out what is not wanted any more", path)
        return False

    def _replace_bundle(self, path: str, found: Configuration, bundle: bytes) -> None:
        """Correct the caBundle of webhooks whose conditions are not ours to decide now."""
        encoded = base64.b64encode(bundle).decode()
        changes = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": encoded}
            for index, one in enumerate(found.get("webhooks") or ())
            if one["name"].endswith(registered.OWN_SUFFIX) and registered.bundle_of(one) != bundle
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
