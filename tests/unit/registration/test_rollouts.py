"""A changed configuration is published when its rollout is complete."""

from holdfast.webhook.registration import configurations
from tests.support.builders import make_profiles
from tests.unit.registration.world import (
    DIGEST,
    OTHER,
    VALIDATING,
    blank,
    installed,
    take_over,
    widen,
)

NEW = """
profiles:
- schedulerName: "*"
  plugins: {enabled: [{name: delay}]}
  pluginConfig:
  - {name: delay, args: {annotations: [example.com/wait]}}
"""


def test_new_conditions_are_published_when_the_rollout_is_complete() -> None:
    old = installed()
    webhooks = old.webhooks()
    new = take_over(old, NEW)
    digest = configurations.digest(make_profiles(NEW))
    assert digest != DIGEST

    new.roll_out(updatedReplicas=1, replicas=3)
    new.conditions = [DIGEST, DIGEST, digest]
    new.reconcile_times()
    assert new.webhooks() == webhooks
    new.conditions = [digest, digest]
    new.reconcile_times()
    assert new.webhooks() == webhooks
    new.roll_out()
    new.reconcile_times()
    assert "example.com/wait" in new.webhooks()[0]["matchConditions"][0]["expression"]


def test_blanked_bundle_is_restored_during_a_rollout() -> None:
    old = installed()
    webhooks = old.webhooks()
    new = take_over(old, NEW)
    new.roll_out(updatedReplicas=1, replicas=3)
    new.edit(blank)
    new.edit(blank, VALIDATING)
    new.reconcile_times(1)
    assert new.webhooks() == webhooks
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
