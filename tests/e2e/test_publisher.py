import base64
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from demo.command import CommandError
from holdfast.certs import authority
from tests.e2e import short_intervals
from tests.e2e.accounts import NAMESPACE
from tests.e2e.installed import KINDS, REPAIR, SERVICE, Installation, deployment, installation
from tests.e2e.namespace import Object, pod
from tests.e2e.steady_load import creations

QUIET = 6 * short_intervals.SECONDS
"""Seconds after which the controller would have written: several reconciliations."""
KEY = "example.com/wait"


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Installation]:
    with installation(tmp_path) as installed:
        installed.module = short_intervals.__name__
        yield installed


def configuration(folder: Path, name: str, key: str) -> Path:
    path = folder / f"{name}.yaml"
    arguments = {"annotations": [key, "delay"]}
    content = {
        "apiVersion": "holdfast.dev/v1beta1",
        "kind": "HoldfastConfiguration",
        "profiles": [
            {"schedulerName": "*", "pluginConfig": [{"name": "delay", "args": arguments}]}
        ],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def conditions(installed: Installation) -> str:
    return json.dumps([webhook["matchConditions"] for webhook in installed.webhooks()])


def holds(installed: Installation, annotations: dict[str, str]) -> bool:
    (stored,) = installed.ns.apply(pod("delayed", annotations), dry_run=True)
    return bool(stored["spec"].get("schedulingGates"))


def edit(installed: Installation, kind: str, *operations: Object) -> list[Object]:
    """Patch a configuration, and return its webhooks right after the patch."""
    arguments = ("patch", f"{kind}webhookconfiguration", "holdfast", "--type=json", "-o", "json")
    response = json.loads(installed.kubectl(*arguments, "-p", json.dumps(operations)))
    return list(response.get("webhooks") or ())


def webhooks_of(installed: Installation) -> dict[str, list[Object]]:
    """Return the webhooks of both configurations, under "mutating" and "validating"."""
    kinds = (kind.removesuffix("webhookconfiguration") for kind in KINDS)
    webhook_lists = (manifest.get("webhooks") or [] for manifest in installed.configurations())
    return dict(zip(kinds, webhook_lists, strict=True))


def by_name(webhooks: list[Object]) -> list[Object]:
    """Sort webhooks: the API server need not keep the order in which they were written."""
    return sorted(webhooks, key=lambda webhook: str((webhook["name"], webhook["clientConfig"])))


RESETS = [
    pytest.param([{"op": "replace", "path": "/webhooks", "value": []}], id="emptied"),
    pytest.param(
        [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}], id="policy"
    ),
    pytest.param(
        [
            {"op": "copy", "from": "/webhooks/0", "path": "/webhooks/-"},
            {"op": "replace", "path": "/webhooks/0/name", "value": "old.holdfast.dev"},
        ],
        id="older-version",
    ),
]


@pytest.mark.xdist_group("installed")
@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("kind", ["mutating", "validating"])
def test_changed_configuration_is_restored(
    installed: Installation, kind: str, reset: list[Object]
) -> None:
    before = installed.webhooks()
    changed = edit(installed, kind, *reset)
    assert not changed or any(webhook not in before for webhook in changed)
    installed.ns.eventually(lambda: by_name(installed.webhooks()) == by_name(before), REPAIR)


@pytest.mark.xdist_group("installed")
def test_invalid_configuration_stops_new_replicas_only(
    installed: Installation, tmp_path: Path
) -> None:
    before = installed.webhooks()
    installed.apply(deployment("broken", paused=True))
    broken = tmp_path / "broken.yaml"
    broken.write_text("kind: HoldfastConfiguration\nprofile: []\n")
    with pytest.raises(CommandError, match=r"broken\.yaml"):
        installed.replica("--config", str(broken))
    edit(installed, "mutating", {"op": "replace", "path": "/webhooks", "value": []})
    installed.ns.eventually(lambda: by_name(installed.webhooks()) == by_name(before), REPAIR)
    assert creations(installed.ns, 3) == []


@pytest.mark.xdist_group("installed")
def test_user_additions_are_kept_without_a_write_loop(installed: Installation) -> None:
    condition = {"name": "mine", "expression": "true"}
    installed.kubectl("annotate", "mutatingwebhookconfiguration", "holdfast", "team=a")
    edit(
        installed,
        "mutating",
        {"op": "add", "path": "/webhooks/0/matchConditions/-", "value": condition},
    )
    version = installed.configurations()[0]["metadata"]["resourceVersion"]
    time.sleep(QUIET)
    after = installed.configurations()[0]
    assert after["metadata"]["resourceVersion"] == version
    assert condition in after["webhooks"][0]["matchConditions"]


def test_new_conditions_are_published_when_the_rollout_is_complete(
    fresh: Installation, tmp_path: Path
) -> None:
    old_config = configuration(tmp_path, "old", "example.com/old")
    new_config = configuration(tmp_path, "new", KEY)
    fresh.replica("--config", str(old_config))
    fresh.replica("--config", str(old_config))
    first_controller = fresh.controller("--config", str(old_config))
    fresh.ready()
    before = conditions(fresh)

    fresh.apply(deployment("new", paused=True))
    fresh.replica("--config", str(new_config))
    fresh.replica("--config", str(new_config))
    fresh.controller("--config", str(new_config))
    first_controller.stop()
    assert creations(fresh.ns, QUIET) == []
    assert conditions(fresh) == before  # old replicas are still running

    fresh.retire(0)
    fresh.retire(1)
    assert creations(fresh.ns, QUIET) == []
    assert conditions(fresh) == before  # the rollout is not complete
    assert not holds(fresh, {KEY: "3600"})

    edit(fresh, "mutating", {"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"})
    fresh.ns.eventually(lambda: len(fresh.bundles()) == 1, REPAIR)
    assert conditions(fresh) == before

    fresh.apply(deployment("new"))
    fresh.ns.eventually(lambda: holds(fresh, {KEY: "3600"}), REPAIR)
    assert holds(fresh, {"delay": "3600"})
    # the validating configuration is written after the mutating one
    fresh.ns.eventually(lambda: "example.com/old" not in conditions(fresh))


def test_cert_manager_provides_the_ca_bundle(fresh: Installation) -> None:
    now = datetime.now(UTC)
    ca = authority.new_ca("cert-manager", now=now)
    name = f"{SERVICE}.{NAMESPACE}.svc"
    pair = authority.issue(ca, common_name=name, now=now, dns_names=[name])
    data = {"tls.crt": pair.certificate, "tls.key": pair.key}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "holdfast-tls"},
        "type": "kubernetes.io/tls",
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }
    fresh.apply(secret)
    fresh.replica()
    fresh.controller(certificates="cert-manager")
    fresh.ns.eventually(lambda: all(webhooks_of(fresh).values()))
    assert not fresh.ns.holds_pods()
    fresh.ns.apply(pod("delayed", {"delay": "3600"}), dry_run=True)  # and is not rejected

    bundle = base64.b64encode(ca.certificate).decode()
    for kind, webhooks in webhooks_of(fresh).items():
        places = [f"/webhooks/{index}/clientConfig/caBundle" for index in range(len(webhooks))]
        edit(fresh, kind, *({"op": "add", "path": path, "value": bundle} for path in places))
    fresh.ready()
    assert fresh.bundles() == {bundle}
    assert creations(fresh.ns, 3) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_leaf_and_ca_rotate_under_load_without_failures(fresh: Installation) -> None:
    """Both are renewed with a third of their lifetime left: the CA twice, the leaf more often."""
    fresh.replica()
    fresh.replica()
    options = ["--ca-lifetime", "75s", "--leaf-lifetime", "30s", "--ca-propagation", "5s"]
    fresh.controller(*options)
    fresh.ready()
    certificates: dict[str, set[str]] = {"holdfast-ca": set(), "holdfast-tls": set()}
    end = time.monotonic() + 320
    failures: list[str] = []
    while len(certificates["holdfast-ca"]) < 3 and time.monotonic() < end:
        failures += creations(fresh.ns, 2)
        for name, issued in certificates.items():
            issued.add(fresh.secret(name)["tls.crt"])
    failures += creations(fresh.ns, 10)
    assert failures == []
    assert len(certificates["holdfast-ca"]) == 3
    assert len(certificates["holdfast-tls"]) >= 5
