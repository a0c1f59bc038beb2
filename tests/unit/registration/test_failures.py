"""Leadership, untrusted time, and failures."""

import pytest

from holdfast.certs import authority
from holdfast.webhook.registration.secrets import CA_SECRET, LEAF_SECRET
from tests.support.fakes import raising, status_error, unreachable
from tests.unit.registration.world import (
    EMPTY_SECRET,
    MUTATING,
    SECRETS,
    SERVICE,
    World,
    blank_all,
    installed,
)


@pytest.mark.parametrize("state", [{"leads": False}, {"server_time": None}], ids=str)
def test_without_the_lead_or_the_time_no_requests_are_sent(state: dict[str, bool | None]) -> None:
    world = World()
    vars(world).update(state)
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
    world.edit(lambda configuration: configuration.update(webhooks=[]))
    foreign = {"name": "theirs.example.com"}
    world.api.before("PATCH", lambda: world.edit(lambda live: live.update(webhooks=[foreign])))
    world.reconcile_times(1)
    assert world.webhooks() == [foreign]
    assert world.metric("publisher_failures_total") == 1

    world.reconcile_times()
    assert len(world.webhooks()) > 1


@pytest.mark.parametrize("error", [unreachable(), status_error(409)], ids=["unreachable", "409"])
def test_failure_is_counted_and_retried(error: Exception) -> None:
    world = World()
    world.api.before("PATCH", raising(error))
    world.reconcile_times(1)
    assert world.metric("publisher_failures_total") == 1
    world.reconcile_times()
    assert world.metric("webhooks_registered") == 1


def test_concurrently_created_secret_is_not_overwritten() -> None:
    world, path = World(), f"{SECRETS}/{CA_SECRET}"
    world.api.managers[path] = "holdfast-b"

    def overtake() -> None:
        world.api.put(path, EMPTY_SECRET)

    world.api.before("PATCH", overtake)
    world.reconcile_times(1)
    assert world.data(CA_SECRET) == {"tls.crt": b"", "tls.key": b""}


@pytest.mark.parametrize(
    "lost",
    [f"{SECRETS}/{CA_SECRET}", f"{SECRETS}/{LEAF_SECRET}", MUTATING],
    ids=["CA", "leaf", "configuration"],
)
def test_404_not_sent_by_kubernetes_does_not_mean_missing(
    lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = installed()

    def lose(_method: str, path: str) -> None:
        if path == lost:
            raise status_error(404)

    world.api.on_request = lose
    world.reconcile_times(1)
    assert world.writes() == []
    assert world.metric("publisher_failures_total") == 1
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
    assert world.metric("publisher_failures_total") == 1


def test_managed_fields_of_a_secret_are_not_written_back() -> None:
    """The API server sends timestamps that it would reject."""
    world = installed()
    world.mounts = False
    metadata = {"managedFields": [{"time": "10000-01-01T00:00:00Z"}]}
    world.api.put(f"{SECRETS}/{LEAF_SECRET}", {**EMPTY_SECRET, "metadata": metadata})
    world.reconcile_times(1)
    assert world.writes() == [f"PUT {LEAF_SECRET}"]
    assert b"10000-01-01" not in b"".join(world.api.bodies)


def test_concurrently_changed_secret_is_not_overwritten() -> None:
    world = installed()
    path = f"{SECRETS}/{LEAF_SECRET}"
    world.mounts = False
    world.api.put(path, EMPTY_SECRET)
    secret = {"data": {"tls.crt": "!", "tls.key": ""}}
    world.api.before("PUT", lambda: world.api.change(path, lambda live: live.update(secret)))
    world.reconcile_times(1)
    assert world.api.objects[path]["data"] == secret["data"]
    world.reconcile_times(1)
    assert authority.read(world.data(LEAF_SECRET)["tls.crt"]).dns_names == set(SERVICE.dns_names)
