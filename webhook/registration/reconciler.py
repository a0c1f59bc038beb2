"""Register the webhooks with the API server, and keep the registration correct.

The manifests contain both webhook configurations without webhooks. The leader fills them in once
all replicas serve a certificate that the caBundle trusts and have the same configuration. After
that it restores its fields when others change them.
"""

import enum
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.certs import rotation
from holdfast.webhook.errors import ApiStatusError, ClusterError
from holdfast.webhook.framework.profiles import Profiles
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api, boot_time
from holdfast.webhook.kube.server_clock import ClockStability
from holdfast.webhook.registration import configurations, drift, replicas
from holdfast.webhook.registration.configurations import Configuration, Registration
from holdfast.webhook.registration.replicas import Replica, Service
from holdfast.webhook.registration.secrets import CertificateSecrets
from holdfast.webhook.registration.writer import ConfigurationWriter
from holdfast.webhook.telemetry.metrics import ControllerMetrics

INTERVAL_SECONDS = 10.0
"""Interval of reconciliation. Polling needs fewer permissions than a watch. Even if requests hang,
a change is repaired within half a minute."""
STANDBY_SECONDS = 1.0
"""Interval while the controller is not the leader, or does not know the time."""

_log = logging.getLogger("holdfast.publisher")


class Mode(enum.Enum):
    """The source of the certificates."""

    SELF = "self"
    CERT_MANAGER = "cert-manager"
    NONE = "none"


@dataclass(eq=False)
class WebhookReconciler:
    """Reconciles certificates and webhook configurations while this controller is the leader.

    Without `certificates`, cert-manager writes the caBundle. `server_time` is the API server's
    time in seconds since 1970; nothing is done while it is None.
    """

    api: Api
    profiles: Profiles
    service: Service
    metrics: ControllerMetrics
    _: KW_ONLY
    certificates: CertificateSecrets | None
    leading: Callable[[], bool]
    server_time: Callable[[], float | None]
    ask: Callable[[Api, Service], list[Replica]] = replicas.ask_all
    now: Callable[[], float] = boot_time

    def __post_init__(self) -> None:
        self._steadiness = ClockStability()
        self._writer = ConfigurationWriter(self.api, self.leading, self.metrics)
        self._begin()
        self._digest = configurations.digest(self.profiles)
        self._paths = configurations.paths(self.service.configurations)
        self._blocker = self._logged_blocker = ""

    def _begin(self) -> None:
        """Reset all observations and writes: another leader may change the cluster."""
        self._writer.forget()
        self._trusted_since: dict[str, float] = {}
        """For each CA fingerprint, the time (by `now`) it was first in all registered caBundles."""
        self._is_published = False

    def run(self, stop: threading.Event) -> None:
        """Reconcile until `stop` is set. Cluster errors are logged, never raised."""
        while not stop.wait(INTERVAL_SECONDS if self.reconcile() else STANDBY_SECONDS):
            pass

    def reconcile(self) -> bool:
        """Reconcile once; return False if not the leader, or if the time is unknown."""
        seconds = self.server_time()
        if seconds is not None:
            self._steadiness.observe(seconds, self.now())
        if not self.leading() or seconds is None:
            self._begin()
            self.metrics.registered.set(0)
            self.metrics.ca_expiry.set(0)
            return False
        try:
            self._ensure(datetime.fromtimestamp(seconds, UTC))
        except (ClusterError, msgspec.DecodeError, ValueError) as exc:
            self.metrics.registered.set(0)  # unknown counts as not registered
            self.metrics.publisher_failures.inc()
            _log.warning(
                "cannot reconcile certificates and webhook configurations: %s; retrying", exc
            )
        return True

    def _ensure(self, now: datetime) -> None:
        """Reconcile certificates and configurations. Raises ClusterError with all failures."""
        by_path = {path: listing.one(self.api, path, Configuration) for path in self._paths}
        live = {
            path: configuration
            for path, configuration in by_path.items()
            if configuration is not None
        }
        missing = [path for path in self._paths if path not in live]
        problems = [ClusterError(f"{path} does not exist; apply the manifests") for path in missing]
        bundles = [
            drift.bundle_of(webhook)
            for configuration in live.values()
            for webhook in drift.ours(configuration)
        ]
        since, local = self._trusted_since, self.now()
        self._trusted_since = {ca: since.get(ca, local) for ca in rotation.common(bundles)}
        replicas_seen = self.ask(self.api, self.service)
        bundle: bytes | None = None
        if self.certificates is not None:
            bundle, problem = self.certificates.reconcile(
                now,
                known_for=timedelta(seconds=self._steadiness.seconds(local)),
                bundles=bundles,
                trusted={
                    ca: timedelta(seconds=local - start)
                    for ca, start in self._trusted_since.items()
                },
                asked=replicas_seen,
            )
            problems += [problem] if problem is not None else []
        # Without a bundle, no replica is trusted; an empty list would trust all replicas.
        trust = (bundles or [b""]) if bundle is None else [bundle]
        self._blocker = self._publish_blocker(now, trust, replicas_seen)
        problems += self._publish(live, bundle, may_publish=not self._blocker)
        if problems:
            raise ClusterError("; ".join(map(str, problems)))

    def _publish(
        self, live: Mapping[str, Configuration], bundle: bytes | None, *, may_publish: bool
    ) -> Sequence[ClusterError]:
        desired, correct, problems = self._wanted(bundle), 0, list[ClusterError]()
        if may_publish:
            problems += self._writer.dry_run(desired, live)
            may_publish = not problems
        for path, configuration in live.items():
            try:
                correct += self._update(
                    path, configuration, desired[path], bundle, may_publish=may_publish
                )
            except ApiStatusError as exc:
                problems.append(exc)
        are_correct = correct == len(self._paths)
        if not problems and len(live) == len(self._paths):
            # A configuration that was just written also counts, although it was not correct before.
            self._is_published = may_publish or are_correct
        self.metrics.registered.set(are_correct)
        blocker = "" if are_correct else self._blocker
        if blocker and blocker != self._logged_blocker:
            _log.info("webhooks are not registered as configured: %s", blocker)
        self._logged_blocker = blocker
        return problems

    def _update(
        self,
        path: str,
        live: Configuration,
        desired: Configuration,
        bundle: bytes | None,
        *,
        may_publish: bool,
    ) -> bool:
        """Update a configuration as far as allowed; return True if it was already correct."""
        if may_publish:
            return self._writer.write(path, desired, live)
        if bundle is None and not drift.ours(live):
            self._writer.write(path, drift.idle(desired), live)
        elif bundle:
            self._writer.replace_bundle(path, live, bundle)
        return self._writer.is_correct(path, live, desired)

    def _publish_blocker(  # noqa: PLR0911 - one for each reason
        self, now: datetime, trust: Sequence[bytes], replicas_seen: Sequence[Replica]
    ) -> str:
        """Return the reason not to publish the match conditions yet; empty if there is none."""
        called = [replica for replica in replicas_seen if replica.called]
        # API servers use the last name, SERVICE.NAMESPACE.svc
        names = self.service.dns_names[-1:]
        trusted = [
            replica
            for replica in called
            if replica.certificate is not None
            and all(rotation.serves(replica.certificate, bundle, now, names) for bundle in trust)
        ]
        # Other servers at addresses of the Service are ignored.
        if any(replica.digest not in {self._digest, None} for replica in trusted):
            return "replicas have a different configuration"
        # Restore the conditions even if a replica does not respond: pods must not stay unheld.
        if self._is_published:
            return ""
        if not called:
            return "no replica is ready"
        for replica in called:
            if replica.certificate is None or replica.digest is None:
                return f"replica {replica.address} does not answer"
            if replica not in trusted:
                return (
                    f"replica {replica.address} serves a certificate that the caBundle does not "
                    "trust"
                )
        if not replicas.rolled_out(self.api, self.service):
            return f"Deployment {self.service.deployment} is not rolled out"
        return ""

    def _wanted(self, bundle: bytes | None) -> dict[str, Configuration]:
        service = self.service
        client = configurations.by_service(service.namespace, service.name, bundle)
        excluded = dict.fromkeys((*configurations.EXCLUDED_NAMESPACES, service.namespace))
        registration = Registration(service.configurations, client, tuple(excluded))
        return registration.configurations(self.profiles)
