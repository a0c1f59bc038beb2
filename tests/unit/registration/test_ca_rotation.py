"""A new CA is trusted before it signs."""

import copy
from typing import Any

import pytest

from holdfast.certs import authority
from holdfast.webhook.registration.replicas import Replica
from holdfast.webhook.registration.secrets import CA_SECRET, LEAF_SECRET
from tests.unit.registration.world import DIGEST, NOW, OTHER, SECRETS, World, idle, installed


def test_new_ca_is_introduced_with_overlap() -> None:
    world = installed()
    old_ca = world.data(CA_SECRET)["tls.crt"]
    world.advance_days(244)
    world.reconcile_times(2)
    assert world.writes()[:2] == [f"PUT {LEAF_SECRET}", f"PUT {CA_SECRET}"]
    new_ca = world.data(CA_SECRET)["next.crt"]
    assert world.bundles() == {old_ca + new_ca}
    leaf = world.data(LEAF_SECRET)

    world.reconcile_times(5)  # less than a minute has passed since it was read back
    assert world.data(LEAF_SECRET) == leaf
    world.reconcile_times(2)
    assert world.data(CA_SECRET)["tls.crt"] == new_ca
    assert world.data(LEAF_SECRET)["ca.crt"] == new_ca
    world.reconcile_times(2)
    assert world.bundles() == {new_ca + old_ca}

    world.advance_days(30)
    world.reconcile_times(2)
    assert world.bundles() == {new_ca}


def installed_with_replaced_ca() -> tuple[World, dict[str, Any], bytes]:
    """Return an installation with a replaced CA, a backup of the old CA, and the new CA."""
    world = installed()
    backup = copy.deepcopy(world.api.objects[f"{SECRETS}/{CA_SECRET}"])
    del world.api.objects[f"{SECRETS}/{CA_SECRET}"]
    world.reconcile_times(8)
    world.advance_days(1)
    world.reconcile_times(2)
    new_ca = world.data(CA_SECRET)["tls.crt"]
    assert world.bundles() == {new_ca}
    return world, backup, new_ca


@pytest.mark.parametrize("conditions", [[DIGEST, DIGEST], [DIGEST, None]])
def test_restored_ca_takes_over_with_overlap(conditions: list[str | None]) -> None:
    world, backup, new_ca = installed_with_replaced_ca()
    world.mounts, world.conditions = False, conditions
    world.api.put(f"{SECRETS}/{CA_SECRET}", backup)
    world.reconcile_times(1)
    old_ca = world.data(CA_SECRET)["tls.crt"]
    assert world.bundles() == {old_ca + new_ca}

    world.mounts, world.conditions = True, [DIGEST, DIGEST]
    world.reconcile_times(7)
    assert world.data(LEAF_SECRET)["ca.crt"] == old_ca
    world.advance_days(1)
    world.reconcile_times(2)
    assert world.bundles() == {old_ca}


def test_immutable_restored_ca_removes_no_ca_and_allows_repairs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, backup, new_ca = installed_with_replaced_ca()
    expected = world.condition_names()
    world.mounts = False
    world.api.put(f"{SECRETS}/{CA_SECRET}", {**backup, "immutable": True})
    world.edit(idle)
    world.reconcile_times(2)
    assert world.condition_names() == expected
    assert world.bundles() == {world.data(CA_SECRET)["tls.crt"] + new_ca}
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
    untrusted = authority.issue(authority.new_ca("x", now=NOW), common_name="x", now=NOW)
    replica = Replica("10.0.0.9", True, authority.read(untrusted.certificate), OTHER)
    ask = world.publisher.ask
    world.publisher.ask = lambda api, service: [*ask(api, service), replica]
    world.edit(lambda configuration: configuration["webhooks"][0].update(matchConditions=[]))
    world.reconcile_times()

    assert world.condition_names()[0] == ["uses-holdfast"]
