"""What is shipped, on a real node: it holds, survives, changes, and goes. In this order."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from controlplane import node_plan
from controlplane.launcher import ControlPlane
from tests.e2e.world import UNCALLED, World, created, gates, pod
from tests.node.installation import MANIFESTS, NAMESPACE, TAGS, Installation, everything, kill
from tests.node.load import creating

RIGHTS = Path(__file__).resolve().parent / "rights"
ASKS = {"delay": "3600"}
RESTARTS = 2
MOST_ERROR_SECONDS = 5.0


def test_pods_are_held(world: World) -> None:
    made = world.create_pods(pod(f"p-{n}", ASKS) for n in range(200))
    assert [gates(one) for one in made] == [["holdfast.dev/delay"]] * 200


def test_a_pod_is_released_and_runs_on_the_node(world: World) -> None:
    container = {"name": "main", "image": node_plan.PAUSE_IMAGE, "imagePullPolicy": "Never"}
    made = world.create(pod("real", {"delay": "3"}, containers=[container]))
    assert gates(made) == ["holdfast.dev/delay"]
    world.kubectl("wait", "--for=condition=Ready", "pod/real", "--timeout=60s")
    seen = world.get("pod", "real")
    assert seen["spec"]["nodeName"] == node_plan.NAME
    assert world.releases()["real"] >= created(seen) + 3


def test_applying_again_changes_nothing(plane: ControlPlane, installation: Installation) -> None:
    before = installation.generations()
    plane.kubectl("diff", "-k", str(MANIFESTS))  # fails where anything differs
    installation.apply()
    assert installation.generations() == before


@pytest.mark.parametrize("account", ["holdfast-webhook", "holdfast-controller"])
def test_the_rights_are_those_that_are_written_down(
    account: str, installation: Installation
) -> None:
    named = f"system:serviceaccount:{NAMESPACE}:{account}"
    shown = installation.kubectl("auth", "can-i", "--list", "--as", named)
    lines = sorted(" ".join(line.split()) for line in shown.splitlines()[1:] if line[0] != " ")
    assert lines == (RIGHTS / f"{account}.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("component", "mounts"), [("webhook", 0), ("controller", 1)], ids=["webhook", "controller"]
)
def test_a_token_is_mounted_only_where_it_is_needed(
    component: str, mounts: int, installation: Installation
) -> None:
    for one in installation.pods(component):
        names = [volume["name"] for volume in one["spec"]["volumes"]]
        assert len([name for name in names if name.startswith("kube-api-access")]) == mounts


def test_a_rolling_restart_is_not_noticed(world: World, installation: Installation) -> None:
    with creating(world) as load:
        for _ in range(RESTARTS):
            installation.kubectl("rollout", "restart", "deployment/holdfast-webhook")
            installation.rolled_out("holdfast-webhook")
    assert (load.failures, load.ungated) == ([], [])
    assert load.made > 100


def test_errors_end_soon_after_a_replica_is_killed(
    world: World, installation: Installation
) -> None:
    victim = installation.pods("webhook")[0]
    with creating(world) as load:
        time.sleep(3.0)
        killed = time.monotonic()
        kill(victim)
        time.sleep(15.0)
    late = [said for began, said in load.failures if began > killed + MOST_ERROR_SECONDS]
    assert (late, load.ungated) == ([], [])
    assert [said for began, said in load.failures if began < killed - 3.0] == []
    installation.rolled_out("holdfast-webhook")


@pytest.mark.parametrize("secret", ["holdfast-tls", "holdfast-ca"])
def test_certificates_are_replaced_under_load(
    secret: str, world: World, installation: Installation
) -> None:
    def served() -> str:
        return installation.kubectl(
            *("get", "secret", "holdfast-tls", "--ignore-not-found"),
            *("-o", r"jsonpath={.data.tls\.crt}"),
        )

    before = served()
    with creating(world) as load:
        installation.kubectl("delete", "secret", secret)
        world.eventually(lambda: served() not in {"", before}, 120.0)
        time.sleep(25.0)  # what is mounted follows within the kubelet's 10 s, and a bit
    assert (load.failures, load.ungated) == ([], [])


def test_an_upgrade_is_not_noticed(world: World, installation: Installation) -> None:
    held = world.create_pods([pod("held-before", {"delay": "20"})])
    with creating(world) as load:
        installation.apply(installation.version(TAGS[1]))
        installation.ready()
    assert (load.failures, load.ungated) == ([], [])
    images = {one["spec"]["containers"][0]["image"] for one in installation.pods("webhook")}
    assert images == {f"holdfast:{TAGS[1]}"}
    released = world.eventually(lambda: world.releases().get("held-before", 0.0))
    assert released >= created(held[0]) + 20


def test_without_any_replica_only_those_that_ask_are_refused(
    world: World, installation: Installation
) -> None:
    installation.kubectl("scale", "deployment/holdfast-webhook", "--replicas=0")
    world.eventually(lambda: not installation.pods("webhook"))
    installation.kubectl(
        "wait", "--for=delete", "pod", "-l", "app.kubernetes.io/component=webhook",
        "--timeout=60s",
    )  # fmt: skip
    assert gates(world.create(pod("unconcerned"))) == []
    assert UNCALLED in world.refusal(pod("asks", ASKS))
    installation.kubectl("scale", "deployment/holdfast-webhook", "--replicas=2")
    installation.rolled_out("holdfast-webhook")
    # kube-proxy follows a moment after the rollout; until then pods are refused, never let through
    assert gates(world.create_when_called(pod("asks", ASKS))) == ["holdfast.dev/delay"]


@pytest.mark.parametrize(
    "components",
    [
        pytest.param(["kubevirt"], id="kubevirt"),
        pytest.param(["high-availability", "kubevirt"], id="both"),
    ],
)
def test_the_api_server_takes_the_components(
    components: list[str], plane: ControlPlane, installation: Installation
) -> None:
    folder = installation.with_components(*components)
    plane.kubectl("apply", "-k", str(folder), "--dry-run=server", "--validate=strict")


@pytest.mark.parametrize(
    ("component", "kinds"),
    [
        pytest.param("monitoring", {"PodMonitor", "PrometheusRule"}, id="monitoring"),
        pytest.param("cert-manager", {"Certificate", "Issuer"}, id="cert-manager"),
    ],
)
def test_components_for_other_operators_can_be_built(
    component: str, kinds: set[str], plane: ControlPlane, installation: Installation
) -> None:
    built = plane.kubectl("kustomize", str(installation.with_components(component)))
    found = [one for one in yaml.safe_load_all(built) if one["kind"] in kinds]
    assert {one["kind"] for one in found} == kinds
    assert {one["metadata"]["namespace"] for one in found} == {NAMESPACE}


def test_cert_manager_takes_the_right_to_secrets_away(
    plane: ControlPlane, installation: Installation
) -> None:
    built = plane.kubectl("kustomize", str(installation.with_components("cert-manager")))
    rules = [rule for one in yaml.safe_load_all(built) for rule in one.get("rules") or ()]
    assert [rule for rule in rules if "secrets" in rule["resources"]] == []


def test_uninstalling_leaves_no_trace(plane: ControlPlane, installation: Installation) -> None:
    world = World.in_new_namespace(plane, "uninstall")
    world.create_pods(pod(f"held-{n}", ASKS) for n in range(20))
    command = [sys.executable, "-m", "webhook", "uninstall"]
    options = ["--kubeconfig", str(plane.kubeconfig), "--release", "now", "--purge", "--yes"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [gates(one) for one in world.all("pods")] == [[]] * 20
    plane.kubectl("delete", "namespace", world.namespace, timeout=200)
    world.eventually(
        lambda: "namespace/test-" not in plane.kubectl("get", "namespaces", "-o", "name")
    )
    assert everything(plane) == installation.before
