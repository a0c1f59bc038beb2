import base64
import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.certs import authority
from holdfast.certs.rotation import Plan
from holdfast.webhook.kube.api import APPLY_PATCH, Api
from holdfast.webhook.registration import configurations
from holdfast.webhook.registration.reconciler import INTERVAL_SECONDS, WebhookReconciler
from holdfast.webhook.registration.replicas import Replica, Service
from holdfast.webhook.registration.secrets import CA_SECRET, LEAF_SECRET, CertificateSecrets
from holdfast.webhook.registration.writer import LARGE
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from tests.support.builders import make_profiles
from tests.support.fakes import FakeApi, raising, status_error, unreachable

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
            Replica(
                f"10.0.0.{number}",
                called=True,
                certificate=self.served if known is not None else None,
                conditions=known,
            )
            for number, known in enumerate(self.conditions)
        ]

    def roll_out(self, **status: int) -> None:
        done = {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2}
        self.api.put(
            DEPLOYMENT,
            {
                "metadata": {"generation": 3},
                "spec": {"replicas": 2},
                "status": {**done, "availableReplicas": 2, **status},
            },
        )

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
        found = self.api.objects[f"{SECRETS}/{secret}"]["data"]
        return {key: base64.b64decode(value) for key, value in found.items()}

    def webhooks(self, path: str = MUTATING) -> list[dict[str, Any]]:
        return list(self.api.objects[path].get("webhooks", ()))

    def bundles(self) -> set[bytes]:
        return {
            base64.b64decode(one["clientConfig"].get("caBundle", ""))
            for path in (MUTATING, VALIDATING)
            for one in self.webhooks(path)
        }

    def metric(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"holdfast_{name}")

    def edit(self, change: Callable[[dict[str, Any]], None], path: str = MUTATING) -> None:
        """Change a configuration as another client."""
        found = copy.deepcopy(self.api.objects[path])
        change(found)
        self.api.put(path, found)

    def writes(self) -> list[str]:
        return [f"{method} {path.rpartition('/')[2]}" for method, path in self.api.writes()]


def installed(**settings: Any) -> World:
    world = World(**settings)
    world.reconcile_times()
    world.api.requests.clear()
    return world


# --- first installation ------------------------------------------------------------------------


def test_secrets_are_written_before_webhooks_are_registered() -> None:
    world = World()
    world.mounts = False
    world.reconcile_times()
    assert world.writes() == [f"PATCH {CA_SECRET}", f"PATCH {LEAF_SECRET}"]
    assert world.webhooks() == []
    assert world.metric("webhooks_registered") == 0

    world.mounts = True
    world.reconcile_times()
    names = [one["name"] for one in world.webhooks()]
    assert names == ["pods.holdfast.dev", "vms.holdfast.dev"]
    assert len(world.webhooks(VALIDATING)) == 7
    assert world.bundles() == {world.data(CA_SECRET)["tls.crt"]}
    assert world.metric("webhooks_registered") == 1
    assert world.metric("ca_expiry_timestamp_seconds") == (NOW + PLAN.ca_lifetime).timestamp()
    webhook, _ = world.webhooks()
    assert webhook["clientConfig"]["service"] == {
        "namespace": "holdfast-system",
        "name": "holdfast-webhook",
        "path": "/mutate",
        "port": 443,
    }
    excluded = webhook["namespaceSelector"]["matchExpressions"][0]["values"]
    assert excluded == ["kube-system", "holdfast-system"]


def test_steady_state_writes_nothing() -> None:
    world = installed()
    world.reconcile_times(20)
    assert world.writes() == []


BLOCKERS: list[Any] = [
    pytest.param(lambda w: setattr(w, "conditions", []), "no replica is ready", id="no-replica"),
    pytest.param(
        lambda w: setattr(w, "conditions", [DIGEST, None]),
        "10.0.0.1 does not answer",
        id="unresponsive-replica",
    ),
    pytest.param(
        lambda w: setattr(w, "conditions", [DIGEST, OTHER]),
        "replicas have a different configuration",
        id="another-configuration",
    ),
    pytest.param(
        lambda w: setattr(w, "mounts", False), "10.0.0.0 does not answer", id="no-certificate"
    ),
    pytest.param(
        lambda w: w.roll_out(updatedReplicas=1),
        "Deployment holdfast-webhook is not rolled out",
        id="old-replicas",
    ),
    pytest.param(
        lambda w: w.roll_out(replicas=3), "is not rolled out", id="old-replicas-terminating"
    ),
    pytest.param(
        lambda w: w.roll_out(availableReplicas=1), "is not rolled out", id="not-available"
    ),
    pytest.param(
        lambda w: w.roll_out(observedGeneration=2), "is not rolled out", id="not-observed"
    ),
]


@pytest.mark.parametrize(("block", "reason"), BLOCKERS)
def test_nothing_is_registered_until_all_replicas_can_be_called(
    block: Callable[[World], None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world = World()
    block(world)
    world.reconcile_times()
    assert world.webhooks() == []
    assert reason in caplog.text
    assert caplog.text.count(reason) == 1


def test_untrusted_serving_certificate_blocks_registration() -> None:
    world = World()
    world.mounts = False
    ca = authority.new_ca("other", now=NOW)
    pair = authority.issue(ca, common_name="x", now=NOW, dns_names=SERVICE.dns_names)
    world.served = authority.read(pair.certificate)
    world.reconcile_times()
    assert world.webhooks() == []


# --- changes by others -------------------------------------------------------------------------


def blank(found: dict[str, Any]) -> None:
    found["webhooks"][0]["clientConfig"]["caBundle"] = ""


def drop(found: dict[str, Any]) -> None:
    found["webhooks"] = []


def widen(found: dict[str, Any]) -> None:
    found["webhooks"][0]["matchConditions"] = []


def ignore(found: dict[str, Any]) -> None:
    found["webhooks"][0]["failurePolicy"] = "Ignore"


def add_old(found: dict[str, Any]) -> None:
    found["webhooks"].append({**found["webhooks"][0], "name": "old.holdfast.dev"})


def idle(found: dict[str, Any]) -> None:
    found["webhooks"][0]["matchConditions"].append(configurations.NOT_YET)


CHANGES = [
    pytest.param(blank, id="blanked"),
    pytest.param(drop, id="emptied"),
    pytest.param(widen, id="conditions-dropped"),
    pytest.param(ignore, id="failure-policy"),
    pytest.param(add_old, id="older-webhook-added"),
    pytest.param(idle, id="made-idle"),
]
ADDING = (add_old, idle)


@pytest.mark.parametrize("known", [DIGEST, None], ids=["replicas answer", "no replica answers"])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_by_others_are_reverted(
    change: Callable[[dict[str, Any]], None], known: str | None
) -> None:
    """Server-side apply keeps additions by others, so a second patch removes them."""
    world = installed()
    expected = world.webhooks()
    world.conditions = [known, known]
    world.edit(change)
    world.reconcile_times(1)
    assert world.writes() == ["PATCH holdfast"] * (2 if change in ADDING else 1)
    assert world.webhooks() == expected
    world.reconcile_times(1)
    assert known is None or world.metric("webhooks_registered") == 1


class DeepApi(FakeApi):
    """Adds a field to each response, as deeply nested as `managedFields` may be."""

    def request(self, *args: Any, **options: Any) -> bytes:
        return super().request(*args, **options)[:-1] + b', "deep": %s}' % (
            b'{"f:a":' * 5_000 + b"{}" + b"}" * 5_000
        )


def test_additions_are_removed_despite_deeply_nested_responses() -> None:
    world = installed(api=DeepApi())
    expected = world.webhooks()
    world.edit(idle)
    world.reconcile_times(1)
    assert world.webhooks() == expected


class FullApi(FakeApi):
    """Rejects an apply to an object of the maximum size, as an API server with etcd does."""

    def request(self, method: str, path: str, **options: Any) -> bytes:
        full = len(msgspec.json.encode(self.objects.get(path))) > LARGE
        if full and options.get("content_type") == APPLY_PATCH and not is_dry_run(options):
            self.requests.append((method, path))
            raise status_error(500)  # etcdserver: request is too large
        return super().request(method, path, **options)


def is_dry_run(options: dict[str, Any]) -> bool:
    return "dryRun" in (options.get("query") or {})


def test_configurations_full_of_managed_fields_are_restored() -> None:
    world = installed(api=FullApi())
    expected = world.webhooks()
    fields: dict[str, Any] = {f"f:{number:060}": {} for number in range(10_000)}
    for path in (MUTATING, VALIDATING):
        world.edit(drop, path)
        world.api.objects[path]["metadata"]["managedFields"] = [{"fieldsV1": fields}]
    world.reconcile_times(1)
    assert world.webhooks() == expected
    world.reconcile_times(1)
    assert world.metric("webhooks_registered") == 1


def test_managed_fields_are_kept_after_another_failure() -> None:
    world = installed()
    world.edit(drop)

    def reject(method: str, path: str) -> None:
        if method == "PATCH" and path == MUTATING:
            raise status_error(500)

    world.api.on_request = reject
    world.reconcile_times(1)
    assert world.writes() == ["PATCH holdfast"]
    assert world.metric("publisher_failures_total") == 1


def add_foreign(found: dict[str, Any]) -> None:
    found["metadata"]["annotations"] = {"team": "a"}
    found["webhooks"][0]["objectSelector"] = {"matchLabels": {"a": "b"}}
    found["webhooks"][0]["matchConditions"].append({"name": "mine", "expression": "true"})
    found["webhooks"].append({"name": "theirs.example.com", "clientConfig": {"url": "https://a"}})


def test_unrelated_additions_by_others_are_kept() -> None:
    world = installed()
    world.edit(add_foreign)
    world.reconcile_times()
    assert world.writes() == []


def lengthen(found: dict[str, Any]) -> None:
    for one in found["webhooks"]:
        one["namespaceSelector"]["matchExpressions"][0]["values"].append("gke-managed")


def test_platform_excluded_namespaces_cause_no_write_loop() -> None:
    """GKE Autopilot adds them to every write."""
    world = World()

    def add(method: str, path: str) -> None:
        stored = method == "PATCH" and "dryRun" not in world.api.queries[-1]
        if stored and path in {MUTATING, VALIDATING}:
            world.edit(lengthen, path)

    world.api.on_response = add
    world.reconcile_times(4)
    world.api.requests.clear()
    world.reconcile_times(20)
    assert world.writes() == []
    assert world.metric("webhooks_registered") == 1


def test_formerly_excluded_namespace_is_included_again() -> None:
    old = installed()
    expected = old.webhooks()
    for path in (MUTATING, VALIDATING):
        old.edit(lengthen, path)
    new = take_over(old, "")
    new.reconcile_times()
    assert new.webhooks() == expected
    assert new.metric("webhooks_registered") == 1


def test_missing_configuration_is_logged_and_not_created(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = installed()
    del world.api.objects[MUTATING]
    world.reconcile_times(1)
    assert world.writes() == []
    assert "does not exist; apply the manifests" in caplog.text
    assert world.metric("publisher_failures_total") == 1
    assert world.metric("webhooks_registered") == 0


EMPTY_SECRET = {"data": {"tls.crt": "", "tls.key": ""}}


def blank_all(found: dict[str, Any]) -> None:
    for one in found["webhooks"]:
        one["clientConfig"]["caBundle"] = ""


@pytest.mark.parametrize("gone", [MUTATING, VALIDATING])
def test_missing_configuration_does_not_block_other_repairs(gone: str) -> None:
    world = installed()
    (kept,) = {MUTATING, VALIDATING} - {gone}
    expected = world.webhooks(kept)
    del world.api.objects[gone]
    world.edit(blank_all, kept)
    world.mounts = False
    world.api.put(f"{SECRETS}/{LEAF_SECRET}", EMPTY_SECRET)
    world.reconcile_times(1)
    assert world.webhooks(kept) == expected
    assert len(authority.read_all(world.data(LEAF_SECRET)["tls.crt"])) == 1
    assert world.metric("publisher_failures_total") == 1


@pytest.mark.parametrize("rejected", [MUTATING, VALIDATING])
def test_both_configurations_are_published_or_neither(rejected: str) -> None:
    world = World()

    def reject(method: str, path: str) -> None:
        if (method, path) == ("PATCH", rejected):
            raise status_error(422)

    world.api.on_request = reject
    world.reconcile_times()
    assert world.webhooks(MUTATING) == world.webhooks(VALIDATING) == []
    assert world.metric("publisher_failures_total")


@pytest.mark.parametrize("rejected", [MUTATING, VALIDATING])
def test_rejected_write_does_not_block_the_other_configuration(rejected: str) -> None:
    world = installed()
    (other,) = {MUTATING, VALIDATING} - {rejected}
    expected = world.webhooks(other)
    for path in (MUTATING, VALIDATING):
        world.edit(blank_all, path)

    def reject(method: str, path: str) -> None:
        if method != "GET" and path == rejected:
            raise status_error(403)

    world.api.on_request = reject
    world.reconcile_times(1)
    assert world.webhooks(other) == expected
    assert world.webhooks(rejected) != world.webhooks(other)
    assert world.metric("publisher_failures_total") == 1
    assert world.metric("webhooks_registered") == 0


def test_unwritable_secret_does_not_block_the_bundle() -> None:
    world = installed()
    expected = world.webhooks()
    world.mounts = False
    world.api.put(f"{SECRETS}/{LEAF_SECRET}", EMPTY_SECRET)
    world.edit(blank_all)

    def reject(method: str, path: str) -> None:
        if method == "PUT" and path.startswith(SECRETS):
            raise status_error(422)

    world.api.on_request = reject
    world.reconcile_times(1)
    assert world.webhooks() == expected
    assert world.metric("publisher_failures_total") == 1


def test_lost_leadership_prevents_publishing_a_new_ca() -> None:
    world = installed()
    expected = world.webhooks()
    world.api.put(f"{SECRETS}/{CA_SECRET}", EMPTY_SECRET)

    def lapse(_method: str, path: str) -> None:
        world.leads = path.startswith(SECRETS) is False

    world.api.on_request = lapse
    world.reconcile_times(1)
    assert world.webhooks() == expected
    assert world.metric("publisher_failures_total") == 1


@pytest.mark.parametrize("days", [-400.0, 400.0])
def test_brief_server_clock_jump_renews_nothing(days: float) -> None:
    world = installed()
    assert world.server_time is not None
    for step in (days, -days):
        world.server_time += step * 86_400
        world.reconcile_times(2)
    assert world.writes() == []
    assert world.metric("webhooks_registered") == 1


def test_deleting_both_secrets_replaces_expired_certificates() -> None:
    """The guide recommends this for a cluster that starts with expired certificates."""
    world = installed()
    assert world.server_time is not None
    world.server_time += 400 * 86_400
    for name in (CA_SECRET, LEAF_SECRET):
        del world.api.objects[f"{SECRETS}/{name}"]
    world.reconcile_times(9)
    leaf = authority.read(world.data(LEAF_SECRET)["tls.crt"])
    assert leaf.valid_at(datetime.fromtimestamp(world.server_time, UTC))
    assert world.data(CA_SECRET)["tls.crt"] in min(world.bundles())
    assert len(world.bundles()) == 1


def test_lasting_server_clock_jump_is_accepted() -> None:
    world = installed()
    assert world.server_time is not None
    world.server_time += 400 * 86_400
    for _ in range(61):
        world.reconcile_times(1)
        world.server_time += INTERVAL_SECONDS
    assert authority.read(world.data(CA_SECRET)["tls.crt"]).valid_at(
        datetime.fromtimestamp(world.server_time, UTC)
    )


# --- a changed configuration is a rollout ------------------------------------------------------

NEW = """
profiles:
- schedulerName: "*"
  plugins: {enabled: [{name: delay}]}
  pluginConfig:
  - {name: delay, args: {annotations: [example.com/wait]}}
"""


def take_over(world: World, yaml: str) -> World:
    """Return a leader with another configuration in the same cluster."""
    other = World(yaml=yaml)
    other.api.objects = world.api.objects
    other.conditions = world.conditions
    other.served = world.served
    return other


def test_new_conditions_are_published_when_the_rollout_is_complete() -> None:
    old = installed()
    before = old.webhooks()
    new = take_over(old, NEW)
    digest = configurations.digest(make_profiles(NEW))
    assert digest != DIGEST

    new.roll_out(updatedReplicas=1, replicas=3)
    new.conditions = [DIGEST, DIGEST, digest]
    new.reconcile_times()
    assert new.webhooks() == before
    new.conditions = [digest, digest]
    new.reconcile_times()
    assert new.webhooks() == before
    new.roll_out()
    new.reconcile_times()
    assert "example.com/wait" in new.webhooks()[0]["matchConditions"][0]["expression"]


def test_blanked_bundle_is_restored_during_a_rollout() -> None:
    old = installed()
    before = old.webhooks()
    new = take_over(old, NEW)
    new.roll_out(updatedReplicas=1, replicas=3)
    new.edit(blank)
    new.edit(blank, VALIDATING)
    new.reconcile_times(1)
    assert new.webhooks() == before
    assert len(new.bundles()) == 1


def test_old_configuration_is_restored_while_a_rollout_is_stuck() -> None:
    world = installed()
    world.roll_out(updatedReplicas=1, replicas=3, availableReplicas=2)
    expected = world.webhooks()
    world.edit(widen)
    world.reconcile_times(1)
    assert world.webhooks() == expected


def test_old_configuration_is_not_restored_once_a_replica_has_the_new_one() -> None:
    world = installed()
    world.conditions = [DIGEST, OTHER]
    world.edit(widen)
    world.reconcile_times()
    assert world.webhooks()[0]["matchConditions"] == []


# --- leadership, time and failures -------------------------------------------------------------


def test_non_leader_sends_no_requests() -> None:
    world = World()
    world.leads = False
    assert world.publisher.reconcile() is False
    assert world.api.requests == []


def test_former_leader_resets_its_metrics() -> None:
    world = installed()
    assert world.metric("ca_expiry_timestamp_seconds")
    world.leads = False
    world.reconcile_times(1)
    assert world.metric("ca_expiry_timestamp_seconds") == 0
    assert world.metric("webhooks_registered") == 0


def test_losing_leadership_stops_further_writes() -> None:
    world = World()

    def lose(method: str, _path: str) -> None:
        world.leads = world.leads and method == "GET"

    world.api.on_response = lose
    world.reconcile_times(1)
    assert world.writes() == [f"PATCH {CA_SECRET}"]


def test_concurrent_write_by_another_leader_is_not_overwritten() -> None:
    world = installed()
    world.edit(lambda one: one.update(webhooks=[]))
    theirs = {"name": "theirs.example.com"}

    def another(method: str, path: str) -> None:
        if (method, path) == ("PATCH", MUTATING):
            world.api.on_request = lambda _method, _path: None
            world.edit(lambda one: one.update(webhooks=[theirs]))

    world.api.on_request = another
    world.reconcile_times(1)
    assert world.webhooks() == [theirs]
    assert world.metric("publisher_failures_total") == 1

    world.reconcile_times()
    assert len(world.webhooks()) > 1


def test_nothing_is_issued_while_the_server_time_is_unknown() -> None:
    world = World()
    world.server_time = None
    world.reconcile_times()
    assert world.api.requests == []


@pytest.mark.parametrize("error", [unreachable(), status_error(409)], ids=["unreachable", "409"])
def test_failure_is_counted_and_retried(error: Exception) -> None:
    world = World()
    fail = raising(error)

    def once(method: str, _path: str) -> None:
        if method != "GET":
            world.api.on_request = lambda _method, _path: None
            fail()

    world.api.on_request = once
    world.reconcile_times(1)
    assert world.metric("publisher_failures_total") == 1
    world.reconcile_times()
    assert world.metric("webhooks_registered") == 1


def test_concurrently_created_secret_is_not_overwritten() -> None:
    world = World()

    def overtake(method: str, path: str) -> None:
        if method != "GET":
            world.api.on_request = lambda _method, _path: None
            world.api.put(path, EMPTY_SECRET)
            world.api.managers[path] = "holdfast-b"

    world.api.on_request = overtake
    world.reconcile_times(1)
    assert world.data(CA_SECRET) == {"tls.crt": b"", "tls.key": b""}


@pytest.mark.parametrize("secret", [CA_SECRET, LEAF_SECRET])
def test_404_not_sent_by_kubernetes_recreates_no_secret(secret: str) -> None:
    world = installed()
    held = world.data(secret)

    def lose(_method: str, path: str) -> None:
        if path == f"{SECRETS}/{secret}":
            raise status_error(404)

    world.api.on_request = lose
    world.reconcile_times(1)
    assert world.writes() == []
    assert world.metric("publisher_failures_total") == 1
    assert world.data(secret) == held


def test_404_not_sent_by_kubernetes_does_not_blame_the_manifests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = installed()

    def lose(_method: str, path: str) -> None:
        if path == MUTATING:
            raise status_error(404)

    world.api.on_request = lose
    world.reconcile_times(1)
    assert "HTTP 404: scripted" in caplog.text
    assert "apply the manifests" not in caplog.text


def test_immutable_secret_is_logged_and_does_not_block_the_bundle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = installed()
    expected = world.webhooks()
    world.mounts = False
    world.api.put(f"{SECRETS}/{LEAF_SECRET}", {**EMPTY_SECRET, "immutable": True})
    world.edit(blank_all)
    world.reconcile_times(1)
    assert f"Secret {LEAF_SECRET} is immutable and cannot be renewed; delete it" in caplog.text
    assert world.webhooks() == expected


def test_managed_fields_of_a_secret_are_not_written_back() -> None:
    """The API server sends timestamps that it would reject."""
    world = installed()
    world.mounts = False
    planted = {"managedFields": [{"time": "10000-01-01T00:00:00Z"}]}
    world.api.put(f"{SECRETS}/{LEAF_SECRET}", {**EMPTY_SECRET, "metadata": planted})
    world.reconcile_times(1)
    assert world.writes() == [f"PUT {LEAF_SECRET}"]
    assert b"10000-01-01" not in b"".join(world.api.bodies)


def test_concurrently_changed_secret_is_not_overwritten() -> None:
    world = installed()
    path = f"{SECRETS}/{LEAF_SECRET}"
    world.mounts = False
    world.api.put(path, EMPTY_SECRET)
    changed = {"data": {"tls.crt": "!", "tls.key": ""}}

    def overtake(method: str, _path: str) -> None:
        if method == "PUT":
            world.api.on_request = lambda _method, _path: None
            world.api.put(path, changed)

    world.api.on_request = overtake
    world.reconcile_times(1)
    assert world.api.objects[path]["data"] == changed["data"]
    world.reconcile_times(1)
    assert authority.read(world.data(LEAF_SECRET)["tls.crt"]).dns_names == set(SERVICE.dns_names)


# --- CA rotation -------------------------------------------------------------------------------


def test_new_ca_is_introduced_with_overlap() -> None:
    world = installed()
    old = world.data(CA_SECRET)["tls.crt"]
    world.advance_days(244)
    world.reconcile_times(2)
    assert world.writes()[:2] == [f"PUT {LEAF_SECRET}", f"PUT {CA_SECRET}"]
    new = world.data(CA_SECRET)["next.crt"]
    assert world.bundles() == {old + new}
    leaf = world.data(LEAF_SECRET)

    world.reconcile_times(5)  # less than a minute has passed since it was read back
    assert world.data(LEAF_SECRET) == leaf
    world.reconcile_times(2)
    assert world.data(CA_SECRET)["tls.crt"] == new
    assert world.data(LEAF_SECRET)["ca.crt"] == new
    world.reconcile_times(2)
    assert world.bundles() == {new + old}

    world.advance_days(30)
    world.reconcile_times(2)
    assert world.bundles() == {new}


def condition_names(world: World) -> list[list[str]]:
    """Return the names of the match conditions of each webhook."""
    return [[one["name"] for one in each["matchConditions"]] for each in world.webhooks()]


def installed_with_replaced_ca() -> tuple[World, dict[str, Any], bytes]:
    """Return an installation with a replaced CA, a backup of the old CA, and the new CA."""
    world = installed()
    backup = copy.deepcopy(world.api.objects[f"{SECRETS}/{CA_SECRET}"])
    del world.api.objects[f"{SECRETS}/{CA_SECRET}"]
    world.reconcile_times(8)
    world.advance_days(1)
    world.reconcile_times(2)
    new = world.data(CA_SECRET)["tls.crt"]
    assert world.bundles() == {new}
    return world, backup, new


@pytest.mark.parametrize("conditions", [[DIGEST, DIGEST], [DIGEST, None]])
def test_restored_ca_takes_over_with_overlap(conditions: list[str | None]) -> None:
    world, backup, new = installed_with_replaced_ca()
    world.mounts, world.conditions = False, conditions
    world.api.put(f"{SECRETS}/{CA_SECRET}", backup)
    world.reconcile_times(1)
    old = world.data(CA_SECRET)["tls.crt"]
    assert world.bundles() == {old + new}

    world.mounts, world.conditions = True, [DIGEST, DIGEST]
    world.reconcile_times(7)
    assert world.data(LEAF_SECRET)["ca.crt"] == old
    world.advance_days(1)
    world.reconcile_times(2)
    assert world.bundles() == {old}


def test_immutable_restored_ca_removes_no_ca_and_allows_repairs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, backup, new = installed_with_replaced_ca()
    expected = condition_names(world)
    world.mounts = False
    world.api.put(f"{SECRETS}/{CA_SECRET}", {**backup, "immutable": True})
    world.edit(idle)
    world.reconcile_times(2)
    assert condition_names(world) == expected
    assert world.bundles() == {world.data(CA_SECRET)["tls.crt"] + new}
    assert f"Secret {CA_SECRET} is immutable and cannot be renewed; delete it" in caplog.text


def test_ca_with_expired_leaves_is_removed_despite_a_silent_replica() -> None:
    world = installed()
    ca = world.data(CA_SECRET)["tls.crt"]
    del world.api.objects[f"{SECRETS}/{CA_SECRET}"]
    world.reconcile_times(8)
    assert ca in min(world.bundles())
    world.conditions = [DIGEST, None]
    world.advance_days(31)
    world.reconcile_times(2)
    assert world.bundles() == {world.data(CA_SECRET)["tls.crt"]}


def test_new_leader_restarts_the_propagation_wait() -> None:
    world = installed()
    world.advance_days(244)
    world.reconcile_times(5)
    world.leads = False
    world.reconcile_times(1)
    world.leads = True
    world.reconcile_times(6)
    assert "next.crt" in world.data(CA_SECRET)
    world.reconcile_times(1)
    assert "next.crt" not in world.data(CA_SECRET)


def test_replica_with_an_untrusted_certificate_is_ignored() -> None:
    """Not every endpoint of the Service need be a replica, and only replicas are trusted."""
    world = installed()
    stranger = authority.issue(authority.new_ca("x", now=NOW), common_name="x", now=NOW)
    known = world.publisher.ask
    world.publisher.ask = lambda api, service: [
        *known(api, service),
        Replica(
            "10.0.0.9",
            called=True,
            certificate=authority.read(stranger.certificate),
            conditions=OTHER,
        ),
    ]
    world.edit(lambda found: found["webhooks"][0].update(matchConditions=[]))
    world.reconcile_times()

    assert [one["name"] for one in world.webhooks()[0]["matchConditions"]] == ["asks-for-something"]


# --- cert-manager ------------------------------------------------------------------------------


def test_webhooks_stay_idle_until_cert_manager_injects_the_bundle() -> None:
    world = World(cert_manager=True)
    ca = authority.new_ca("cert-manager", now=NOW)
    names = SERVICE.dns_names[-1:]
    pair = authority.issue(ca, common_name="x", now=NOW, dns_names=names)
    world.served = authority.read(pair.certificate)
    world.reconcile_times()
    conditions = [one["name"] for one in world.webhooks()[0]["matchConditions"]]
    assert conditions == ["not-yet", "asks-for-something"]
    assert world.bundles() == {b""}
    assert [path for path in world.api.objects if path.startswith(SECRETS)] == []

    def inject(found: dict[str, Any]) -> None:
        for one in found["webhooks"]:
            one["clientConfig"]["caBundle"] = base64.b64encode(ca.certificate).decode()

    world.edit(inject)
    world.reconcile_times()
    # the other configuration has no bundle yet
    assert len(world.webhooks()[0]["matchConditions"]) == 2
    world.edit(inject, VALIDATING)
    world.reconcile_times()
    assert [one["name"] for one in world.webhooks()[0]["matchConditions"]] == ["asks-for-something"]
