"""Changes of the configurations by others."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.certs import authority
from holdfast.webhook.kube.api import APPLY_PATCH
from holdfast.webhook.registration.reconciler import INTERVAL_SECONDS
from holdfast.webhook.registration.secrets import CA_SECRET, LEAF_SECRET
from holdfast.webhook.registration.writer import LARGE
from tests.support.fakes import FakeApi, status_error
from tests.unit.registration.world import (
    DIGEST,
    EMPTY_SECRET,
    MUTATING,
    SECRETS,
    VALIDATING,
    World,
    blank,
    blank_all,
    idle,
    installed,
    reject_writes,
    take_over,
    widen,
)


def drop(configuration: dict[str, Any]) -> None:
    configuration["webhooks"] = []


def ignore(configuration: dict[str, Any]) -> None:
    configuration["webhooks"][0]["failurePolicy"] = "Ignore"


def add_old(configuration: dict[str, Any]) -> None:
    configuration["webhooks"].append({**configuration["webhooks"][0], "name": "old.holdfast.dev"})


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
        is_full = len(msgspec.json.encode(self.objects.get(path))) > LARGE
        is_dry_run = "dryRun" in (options.get("query") or {})
        if is_full and options.get("content_type") == APPLY_PATCH and not is_dry_run:
            self.requests.append((method, path))
            raise status_error(500)  # etcdserver: request is too large
        return super().request(method, path, **options)


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
    reject_writes(world, MUTATING, 500)
    world.reconcile_times(1)
    assert world.writes() == ["PATCH holdfast"]
    assert world.metric("publisher_failures_total") == 1


def add_foreign(configuration: dict[str, Any]) -> None:
    configuration["metadata"]["annotations"] = {"team": "a"}
    configuration["webhooks"][0]["objectSelector"] = {"matchLabels": {"a": "b"}}
    configuration["webhooks"][0]["matchConditions"].append({"name": "mine", "expression": "true"})
    configuration["webhooks"].append(
        {"name": "theirs.example.com", "clientConfig": {"url": "https://a"}}
    )


def test_unrelated_additions_by_others_are_kept() -> None:
    world = installed()
    world.edit(add_foreign)
    world.reconcile_times()
    assert world.writes() == []


def lengthen(configuration: dict[str, Any]) -> None:
    for webhook in configuration["webhooks"]:
        webhook["namespaceSelector"]["matchExpressions"][0]["values"].append("gke-managed")


def test_platform_excluded_namespaces_cause_no_write_loop() -> None:
    """GKE Autopilot adds them to every write."""
    world = World()

    def add(method: str, path: str) -> None:
        is_stored = method == "PATCH" and "dryRun" not in world.api.queries[-1]
        if is_stored and path in {MUTATING, VALIDATING}:
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


@pytest.mark.parametrize("gone", [MUTATING, VALIDATING])
def test_missing_configuration_is_logged_and_does_not_block_other_repairs(
    gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = installed()
    (remaining,) = {MUTATING, VALIDATING} - {gone}
    expected = world.webhooks(remaining)
    del world.api.objects[gone]
    world.edit(blank_all, remaining)
    world.mounts = False
    world.api.put(f"{SECRETS}/{LEAF_SECRET}", EMPTY_SECRET)
    world.reconcile_times(1)
    assert world.webhooks(remaining) == expected
    assert len(authority.read_all(world.data(LEAF_SECRET)["tls.crt"])) == 1
    assert gone not in world.api.objects
    assert f"{gone} does not exist; apply the manifests" in caplog.text
    assert world.metric("publisher_failures_total") == 1
    assert world.metric("webhooks_registered") == 0


@pytest.mark.parametrize("rejected", [MUTATING, VALIDATING])
def test_both_configurations_are_published_or_neither(rejected: str) -> None:
    world = World()
    reject_writes(world, rejected, 422)
    world.reconcile_times()
    assert world.webhooks(MUTATING) == world.webhooks(VALIDATING) == []
    assert world.metric("publisher_failures_total")


@pytest.mark.parametrize("rejected", [MUTATING, VALIDATING])
def test_rejected_write_does_not_block_the_other_configuration(rejected: str) -> None:
    world = installed()
    (accepted,) = {MUTATING, VALIDATING} - {rejected}
    expected = world.webhooks(accepted)
    for path in (MUTATING, VALIDATING):
        world.edit(blank_all, path)
    reject_writes(world, rejected, 403)
    world.reconcile_times(1)
    assert world.webhooks(accepted) == expected
    assert world.webhooks(rejected) != world.webhooks(accepted)
    assert world.metric("publisher_failures_total") == 1
    assert world.metric("webhooks_registered") == 0


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
