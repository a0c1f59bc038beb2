import base64
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


@pytest.mark.parametrize(
    ("state", "updated", "reason"),
    [
        pytest.param({"conditions": []}, 2, "no replica is ready", id="no-replica"),
        pytest.param(
            {"conditions": [DIGEST, None]}, 2, "10.0.0.1 does not answer", id="unresponsive-replica"
        ),
        pytest.param(
            {"conditions": [DIGEST, OTHER]},
            2,
            "replicas have a different configuration",
            id="another-configuration",
        ),
        pytest.param({"mounts": False}, 2, "10.0.0.0 does not answer", id="no-certificate"),
        pytest.param({}, 1, "Deployment holdfast-webhook is not rolled out", id="old-replicas"),
    ],
)
def test_nothing_is_registered_until_all_replicas_can_be_called(
    state: dict[str, Any], updated: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world = World()
    vars(world).update(state)
    world.roll_out(updatedReplicas=updated)
    world.reconcile_times()
    assert world.webhooks() == []
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
    assert world.condition_names()[0] == ["not-yet", "uses-holdfast"]
    assert world.bundles() == {b""}
    assert [path for path in world.api.objects if path.startswith(SECRETS)] == []

    def inject(configuration: dict[str, Any]) -> None:
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"]["caBundle"] = base64.b64encode(ca.certificate).decode()

    world.edit(inject)
    world.reconcile_times()
    # the other configuration has no bundle yet
    assert len(world.condition_names()[0]) == 2
    world.edit(inject, VALIDATING)
    world.reconcile_times()
    assert world.condition_names()[0] == ["uses-holdfast"]
