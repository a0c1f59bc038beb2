"""A cluster of fake replicas, whose webhooks are registered."""

import base64
import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from holdfast.certs import authority
from holdfast.certs.rotation import Plan
from holdfast.webhook.kube.api import Api
from holdfast.webhook.registration import configurations
from holdfast.webhook.registration.reconciler import INTERVAL_SECONDS, WebhookReconciler
from holdfast.webhook.registration.replicas import Replica, Service
from holdfast.webhook.registration.secrets import LEAF_SECRET, CertificateSecrets
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from tests.support.builders import make_profiles
from tests.support.fakes import FakeApi, status_error

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SERVICE = Service("holdfast-system")
PLAN = Plan(SERVICE.dns_names)
MUTATING, VALIDATING = (
    configurations.path(kind, "holdfast") for kind in ("mutating", "validating")
)
SECRETS = "/api/v1/namespaces/holdfast-system/secrets"
DEPLOYMENT = "/apis/apps/v1/namespaces/holdfast-system/deployments/holdfast-webhook"
DIGEST = configurations.digest(make_profiles())
OTHER = "another configuration's"


class World:
    """A cluster with an installation whose replicas mount the leaf immediately."""

    def __init__(
        self, *, cert_manager: bool = False, yaml: str = "", api: FakeApi | None = None
    ) -> None:
        self.api = api or FakeApi()
        self.local = 0.0
        self.leads = True
        self.server_time: float | None = NOW.timestamp()
        self.metrics = ControllerMetrics()
        self.conditions: list[str | None] = [DIGEST, DIGEST]
        self.mounts = True
        self.served: authority.Certificate | None = None
        for path in (MUTATING, VALIDATING):
            self.api.put(path, {"metadata": {"name": "holdfast"}})
        self.roll_out()
        certificates = CertificateSecrets(
            self.api,
            PLAN,
            self.metrics,
            namespace="holdfast-system",
            identity="a",
            may_write=lambda: self.leads,
        )
        self.publisher = WebhookReconciler(
            self.api,
            make_profiles(yaml),
            SERVICE,
            self.metrics,
            certificates=None if cert_manager else certificates,
            leading=lambda: self.leads,
            server_time=lambda: self.server_time,
            ask=self.ask,
            now=lambda: self.local,
        )

    def ask(self, _api: Api, _service: Service) -> list[Replica]:
        if self.mounts and f"{SECRETS}/{LEAF_SECRET}" in self.api.objects:
            self.served = authority.read(self.data(LEAF_SECRET)["tls.crt"])
        return [
            Replica(f"10.0.0.{number}", True, self.served if digest is not None else None, digest)
            for number, digest in enumerate(self.conditions)
        ]

    def roll_out(self, **status: int) -> None:
        counts = {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
        status = {"observedGeneration": 3, **counts, **status}
        spec = {"replicas": 2}
        self.api.put(DEPLOYMENT, {"metadata": {"generation": 3}, "spec": spec, "status": status})

    def reconcile_times(self, count: int = 3) -> None:
        for _ in range(count):
            self.publisher.reconcile()
            self.local += INTERVAL_SECONDS

    def advance_days(self, days: float) -> None:
        """Advance both clocks without reconciling."""
        assert self.server_time is not None
        self.server_time += days * 86_400
        self.local += days * 86_400

    def data(self, secret: str) -> dict[str, bytes]:
        encoded = self.api.objects[f"{SECRETS}/{secret}"]["data"]
        return {key: base64.b64decode(value) for key, value in encoded.items()}

    def webhooks(self, path: str = MUTATING) -> list[dict[str, Any]]:
        return list(self.api.objects[path].get("webhooks", ()))

    def condition_names(self) -> list[list[str]]:
        """Return the names of the match conditions of each webhook."""
        return [
            [condition["name"] for condition in webhook["matchConditions"]]
            for webhook in self.webhooks()
        ]

    def bundles(self) -> set[bytes]:
        return {
            base64.b64decode(webhook["clientConfig"].get("caBundle", ""))
            for path in (MUTATING, VALIDATING)
            for webhook in self.webhooks(path)
        }

    def metric(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"holdfast_{name}")

    def edit(self, change: Callable[[dict[str, Any]], None], path: str = MUTATING) -> None:
        """Change a configuration as another client."""
        configuration = copy.deepcopy(self.api.objects[path])
        change(configuration)
        self.api.put(path, configuration)

    def writes(self) -> list[str]:
        return [f"{method} {path.rpartition('/')[2]}" for method, path in self.api.writes()]


def installed(**settings: Any) -> World:
    world = World(**settings)
    world.reconcile_times()
    world.api.requests.clear()
    return world


def blank(configuration: dict[str, Any]) -> None:
    configuration["webhooks"][0]["clientConfig"]["caBundle"] = ""


def widen(configuration: dict[str, Any]) -> None:
    configuration["webhooks"][0]["matchConditions"] = []


def idle(configuration: dict[str, Any]) -> None:
    configuration["webhooks"][0]["matchConditions"].append(configurations.NOT_YET)


def reject_writes(world: World, rejected: str, status: int) -> None:
    """Let the API server reject all writes to an object."""

    def reject(method: str, path: str) -> None:
        if method != "GET" and path == rejected:
            raise status_error(status)

    world.api.on_request = reject


EMPTY_SECRET = {"data": {"tls.crt": "", "tls.key": ""}}


def blank_all(configuration: dict[str, Any]) -> None:
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"]["caBundle"] = ""


def take_over(world: World, yaml: str) -> World:
    """Return a leader with another configuration in the same cluster."""
    successor = World(yaml=yaml)
    successor.api.objects = world.api.objects
    successor.conditions = world.conditions
    successor.served = world.served
    return successor
