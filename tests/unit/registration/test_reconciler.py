import base64
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.certs import authority
from holdfast.webhook.registration.secrets import CA_SECRET, LEAF_SECRET
from tests.unit.registration.world import (
    DIGEST,
    NOW,
    OTHER,
    PLAN,
    SECRETS,
    SERVICE,
    VALIDATING,
    World,
    installed,
)


def test_secrets_are_written_before_webhooks_are_registered() -> None:
    world = World()
    world.mounts = False
    world.reconcile_times()
    assert world.writes() == [f"PATCH {CA_SECRET}", f"PATCH {LEAF_SECRET}"]
    assert world.webhooks() == []
    assert world.metric("webhooks_registered") == 0

    world.mounts = True
    world.reconcile_times()
    names = [item["name"] for item in world.webhooks()]
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
    pytest.param(
        lambda world: setattr(world, "conditions", []), "no replica is ready", id="no-replica"
    ),
    pytest.param(
        lambda world: setattr(world, "conditions", [DIGEST, None]),
        "10.0.0.1 does not answer",
        id="unresponsive-replica",
    ),
    pytest.param(
        lambda world: setattr(world, "conditions", [DIGEST, OTHER]),
        "replicas have a different configuration",
        id="another-configuration",
    ),
    pytest.param(
        lambda world: setattr(world, "mounts", False),
        "10.0.0.0 does not answer",
        id="no-certificate",
    ),
    pytest.param(
        lambda world: world.roll_out(updatedReplicas=1),
        "Deployment holdfast-webhook is not rolled out",
        id="old-replicas",
    ),
    pytest.param(
        lambda world: world.roll_out(replicas=3), "is not rolled out", id="old-replicas-terminating"
    ),
    pytest.param(
        lambda world: world.roll_out(availableReplicas=1), "is not rolled out", id="not-available"
    ),
    pytest.param(
        lambda world: world.roll_out(observedGeneration=2), "is not rolled out", id="not-observed"
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


def test_webhooks_stay_idle_until_cert_manager_injects_the_bundle() -> None:
    world = World(cert_manager=True)
    ca = authority.new_ca("cert-manager", now=NOW)
    names = SERVICE.dns_names[-1:]
    pair = authority.issue(ca, common_name="x", now=NOW, dns_names=names)
    world.served = authority.read(pair.certificate)
    world.reconcile_times()
    conditions = [condition["name"] for condition in world.webhooks()[0]["matchConditions"]]
    assert conditions == ["not-yet", "asks-for-something"]
    assert world.bundles() == {b""}
    assert [path for path in world.api.objects if path.startswith(SECRETS)] == []

    def inject(configuration: dict[str, Any]) -> None:
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"]["caBundle"] = base64.b64encode(ca.certificate).decode()

    world.edit(inject)
    world.reconcile_times()
    # the other configuration has no bundle yet
    assert len(world.webhooks()[0]["matchConditions"]) == 2
    world.edit(inject, VALIDATING)
    world.reconcile_times()
    assert [condition["name"] for condition in world.webhooks()[0]["matchConditions"]] == [
        "asks-for-something"
    ]
