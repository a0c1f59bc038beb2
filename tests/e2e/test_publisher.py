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
from holdfast.webhook.registration.configurations import NOT_YET
from tests.e2e import short_intervals
from tests.e2e.accounts import NAMESPACE
from tests.e2e.installed import KINDS, REPAIR, SERVICE, Installation, deployment, installation
from tests.e2e.namespace import Object, pod
from tests.e2e.steady_load import creations

QUIET = 10 * short_intervals.SECONDS
"""Seconds in which the controller would have written a configuration: several reconciliations."""
KEY = "example.com/wait"


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installation]:
    with installation(tmp_path) as made:
        made.module = short_intervals.__name__
        yield made


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
    return json.dumps([one["matchConditions"] for one in installed.webhooks()])


def holds(installed: Installation, annotations: dict[str, str]) -> bool:
    (made,) = installed.ns.apply(pod("asks", annotations), dry_run=True)
    return bool(made["spec"].get("schedulingGates"))


def edit(installed: Installation, kind: str, *operations: Object) -> list[Object]:
    """Patch a configuration, and give its webhooks as they were then."""
    named = ("patch", f"{kind}webhookconfiguration", "holdfast", "--type=json", "-o", "json")
    patched = json.loads(installed.kubectl(*named, "-p", json.dumps(operations)))
    return list(patched.get("webhooks") or ())


def webhooks_of(installed: Installation) -> dict[str, list[Object]]:
    """Give the webhooks of both configurations, under "mutating" and "validating"."""
    kinds = (kind.removesuffix("webhookconfiguration") for kind in KINDS)
    found = (one.get("webhooks") or [] for one in installed.configurations())
    return dict(zip(kinds, found, strict=True))


def by_name(webhooks: list[Object]) -> list[Object]:
    """Sort webhooks: the API server need not keep the order in which they were written."""
    return sorted(webhooks, key=lambda one: str((one["name"], one["clientConfig"])))


RESETS = [
    pytest.param([{"op": "replace", "path": "/webhooks", "value": []}], id="emptied"),
    pytest.param([{"op": "remove", "path": "/webhooks/0/matchConditions"}], id="conditions"),
    pytest.param(
        [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}], id="policy"
    ),
    pytest.param(
        [{"op": "add", "path": "/webhooks/0/matchConditions/-", "value": NOT_YET}], id="idle-again"
    ),
    pytest.param(
        [
            {"op": "copy", "from": "/webhooks/0", "path": "/webhooks/-"},
            {"op": "replace", "path": "/webhooks/0/name", "value": "old.holdfast.dev"},
        ],
        id="of-an-older-version",
    ),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("shared")) as made:
        made.module = short_intervals.__name__
        made.replica()
        made.controller()
        made.ready()
        yield made


@pytest.mark.xdist_group("publisher")
@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("kind", ["mutating", "validating"])
def test_changed_configuration_is_restored(
    shared: Installation, kind: str, reset: list[Object]
) -> None:
    before = shared.webhooks()
    spoilt = edit(shared, kind, *reset)
    assert not spoilt or any(one not in before for one in spoilt)
    shared.ns.eventually(lambda: by_name(shared.webhooks()) == by_name(before), REPAIR)


@pytest.mark.xdist_group("publisher")
def test_invalid_configuration_stops_new_replicas_only(
    shared: Installation, tmp_path: Path
) -> None:
    before = shared.webhooks()
    shared.apply(deployment("broken", paused=True))
    broken = tmp_path / "broken.yaml"
    broken.write_text("kind: HoldfastConfiguration\nprofile: []\n")
    with pytest.raises(CommandError, match=r"broken\.yaml"):
        shared.replica("--config", str(broken))
    edit(shared, "mutating", {"op": "replace", "path": "/webhooks", "value": []})
    shared.ns.eventually(lambda: by_name(shared.webhooks()) == by_name(before), REPAIR)
    assert creations(shared.ns, 3) == []


@pytest.mark.xdist_group("publisher")
def test_additions_of_others_stay_and_cause_no_write_loop(shared: Installation) -> None:
    mine = {"name": "mine", "expression": "true"}
    shared.kubectl("annotate", "mutatingwebhookconfiguration", "holdfast", "team=a")
    edit(shared, "mutating", {"op": "add", "path": "/webhooks/0/matchConditions/-", "value": mine})
    version = shared.configurations()[0]["metadata"]["resourceVersion"]
    time.sleep(QUIET)
    after = shared.configurations()[0]
    assert after["metadata"]["resourceVersion"] == version
    assert mine in after["webhooks"][0]["matchConditions"]


def test_new_conditions_are_published_when_the_rollout_is_complete(
    installed: Installation, tmp_path: Path
) -> None:
    old = configuration(tmp_path, "old", "example.com/old")
    new = configuration(tmp_path, "new", KEY)
    installed.replica("--config", str(old))
    installed.replica("--config", str(old))
    first = installed.controller("--config", str(old))
    installed.ready()
    before = conditions(installed)

    installed.apply(deployment("new", paused=True))
    installed.replica("--config", str(new))
    installed.replica("--config", str(new))
    installed.controller("--config", str(new))
    first.stop()
    assert creations(installed.ns, QUIET) == []
    assert conditions(installed) == before  # old replicas are there still

    installed.retire(0)
    installed.retire(1)
    assert creations(installed.ns, QUIET) == []
    assert conditions(installed) == before  # the Deployment is not through
    assert not holds(installed, {KEY: "3600"})

    edit(installed, "mutating", {"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"})
    installed.ns.eventually(lambda: len(installed.bundles()) == 1, REPAIR)
    assert conditions(installed) == before

    installed.apply(deployment("new"))
    installed.ns.eventually(lambda: holds(installed, {KEY: "3600"}), REPAIR)
    assert holds(installed, {"delay": "3600"})
    assert "example.com/old" not in conditions(installed)


def test_cert_manager_provides_the_ca_bundle(installed: Installation) -> None:
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
    installed.apply(secret)
    installed.replica()
    installed.controller(certificates="cert-manager")
    installed.ns.eventually(lambda: all(webhooks_of(installed).values()))
    assert not installed.ns.holds_pods()
    installed.ns.apply(pod("asks", {"delay": "3600"}), dry_run=True)  # and is not refused

    bundle = base64.b64encode(ca.certificate).decode()
    for kind, webhooks in webhooks_of(installed).items():
        places = [f"/webhooks/{index}/clientConfig/caBundle" for index in range(len(webhooks))]
        edit(installed, kind, *({"op": "add", "path": one, "value": bundle} for one in places))
    installed.ready()
    assert installed.bundles() == {bundle}
    assert creations(installed.ns, 3) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_leaf_and_ca_rotate_under_load_without_failures(installed: Installation) -> None:
    """Both are renewed when a third of their time is left: the CA twice, the leaf more often."""
    installed.replica()
    installed.replica()
    short = ["--ca-lifetime", "75s", "--leaf-lifetime", "30s", "--ca-propagation", "5s"]
    installed.controller(*short)
    installed.ready()
    seen: dict[str, set[str]] = {"holdfast-ca": set(), "holdfast-tls": set()}
    end = time.monotonic() + 320
    wrong: list[str] = []
    while len(seen["holdfast-ca"]) < 3 and time.monotonic() < end:
        wrong += creations(installed.ns, 2)
        for name, found in seen.items():
            found.add(installed.secret(name)["tls.crt"])
    wrong += creations(installed.ns, 10)
    assert wrong == []
    assert len(seen["holdfast-ca"]) == 3
    assert len(seen["holdfast-tls"]) >= 5
