"""The manifests on a real node: install, disrupt, upgrade and uninstall, in this order."""

import base64
import re
import shlex
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane import node_plan
from controlplane.launcher import ControlPlane
from docs import transcript
from tests.e2e.certificate_secrets import LEAF, corrupt, leaf, mismatch, secret, usable
from tests.e2e.kubectl_user import refusal
from tests.e2e.manifests import built
from tests.e2e.namespace import UNCALLED, Namespace, Object, created, gates, pod
from tests.e2e.steady_load import creating
from tests.node.installation import (
    MANIFESTS,
    NAMESPACE,
    TAGS,
    Installation,
    all_objects,
    check_released_on_time,
    holdfast,
    kill,
    processes,
    reload_failures,
    run_documented,
    running,
    uninstall,
    variables,
)

RIGHTS = Path(__file__).resolve().parent / "rights"
DOCS = Path(__file__).resolve().parents[2] / "docs"
DELAYED = {"delay": "3600"}
OWN_KEY = """apiVersion: holdfast.dev/v1beta1
kind: HoldfastConfiguration
profiles:
- pluginConfig:
  - name: delay
    args: {annotations: [delay, example.com/wait]}
"""
RESTARTS = 5
MAX_ERROR_SECONDS = 5.0
REPAIR = 30.0
"""Seconds within which a damaged Secret must be repaired."""
FOLLOW = 150.0
"""Seconds within which every replica must serve the Secret's certificate; mounts lag."""


def expected_rights(name: str) -> list[str]:
    return (RIGHTS / f"{name}.txt").read_text().splitlines()


def documented_commands(page: str) -> list[str]:
    """Return the kubectl commands that are quoted in a page's text."""
    return re.findall(r"`(kubectl -n [^`]+|kubectl get [^`]+)`", (DOCS / page).read_text())


def fetch(url: str) -> str:
    """Return a page; empty if it is not served."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return str(response.read(), "utf-8")
    except OSError:
        return ""


def await_repair(ns: Namespace, installation: Installation) -> None:
    """Wait until the Secret is valid again and served by every replica."""
    ns.eventually(lambda: usable(installation), REPAIR)
    fingerprints = {leaf(installation).fingerprint}
    ns.eventually(lambda: installation.served() == fingerprints, FOLLOW)


@pytest.mark.timeout(900)  # the first test also sets up the node, the images and Holdfast
def test_pod_is_released_and_runs_on_the_node(ns: Namespace) -> None:
    container = {"name": "main", "image": node_plan.PAUSE_IMAGE, "imagePullPolicy": "Never"}
    held_pod = ns.create(pod("real", {"delay": "3"}, containers=[container]))
    assert gates(held_pod) == ["holdfast.dev/delay"]
    ns.kubectl("wait", "--for=condition=Ready", "pod/real", "--timeout=60s")
    running_pod = ns.get("pod", "real")
    assert running_pod["spec"]["nodeName"] == node_plan.NAME
    assert ns.releases()["real"] >= created(running_pod) + 3


def test_doctor_finds_no_problem(plane: ControlPlane, installation: Installation) -> None:
    checks = [line.partition(":")[0].split() for line in holdfast(plane, "doctor").splitlines()]
    assert [subject for level, *subject in checks if level != "OK"] == []
    assert [subject for _, *subject in checks] == [
        *(["API", "server"], ["clock"], ["webhooks"], ["caBundle"], ["server"], ["certificate"]),
        *(["Deployment"], ["Deployment"]),
        *(["configuration"],) * 3,  # the longest condition, the ConfigMap, and its webhooks
        *(["leader"], ["held", "pods"], ["freezes"], ["guard"]),
    ]


@pytest.mark.parametrize(
    "command",
    [one for one in documented_commands("how-to/respond-to-alerts.md") if not one.endswith(" POD")],
)
def test_runbook_commands_use_existing_names(
    command: str, plane: ControlPlane, installation: Installation
) -> None:
    words = shlex.split(command)[1:]
    heading = "scale" not in words
    assert len(plane.kubectl(*words).splitlines()) > heading


def test_documented_command_changes_the_log_level(
    ns: Namespace, plane: ControlPlane, installation: Installation
) -> None:
    (command,) = documented_commands("reference/logs.md")
    options = ("-l", "app.kubernetes.io/component=webhook", "--tail=-1")

    def logged() -> bool:
        ns.apply(pod("logged", DELAYED), dry_run=True)  # an old replica may answer at first
        return f"mutate patched: {ns.namespace}/logged" in installation.kubectl("logs", *options)

    plane.kubectl(*shlex.split(command)[1:])
    installation.rolled_out("holdfast-webhook")
    ns.eventually(logged)
    plane.kubectl(*shlex.split(command.replace("=debug", "-"))[1:])
    installation.rolled_out("holdfast-webhook")


def test_reapplying_the_manifests_changes_nothing(
    plane: ControlPlane, installation: Installation
) -> None:
    generations = installation.generations()
    plane.kubectl("diff", "-k", str(MANIFESTS))  # fails if anything differs
    installation.apply()
    assert installation.generations() == generations


@pytest.mark.parametrize("account", ["holdfast-webhook", "holdfast-controller"])
def test_rights_match_the_reference(account: str, installation: Installation) -> None:
    assert installation.rights(account) == expected_rights(account)


@pytest.mark.parametrize("process", ["webhook", "controller"])
def test_rights_on_vms_match_the_reference(
    process: str, ns: Namespace, installation: Installation
) -> None:
    file, account = str(MANIFESTS / "kubevirt" / f"{process}.yaml"), f"holdfast-{process}"
    expected = sorted([*expected_rights(account), *expected_rights(f"{account}-kubevirt")])
    installation.kubectl("apply", "-f", file)
    try:
        ns.eventually(lambda: installation.rights(account) == expected)
    finally:
        installation.kubectl("delete", "-f", file)


@pytest.mark.parametrize(
    ("component", "mounts"), [("webhook", 0), ("controller", 1)], ids=["webhook", "controller"]
)
def test_token_is_mounted_only_in_the_controller(
    component: str, mounts: int, installation: Installation
) -> None:
    volumes = [pod["spec"]["volumes"] for pod in installation.pods(component)]
    tokens = [str(volumes).count("'name': 'kube-api-access") for volumes in volumes]
    assert tokens == [mounts] * 2


@pytest.mark.parametrize("component", ["webhook", "controller"])
def test_no_process_runs_as_pid_1(component: str, installation: Installation) -> None:
    pods = installation.pods(component)
    assert len(pods) == 2
    for manifest in pods:
        ids = [
            re.search(r"^NSpid:.*\t(\d+)$", (proc_path / "status").read_text(), re.M)
            for proc_path in processes(manifest)
        ]
        assert ids
        assert "1" not in [match[1] for match in ids if match]


@pytest.mark.timeout(900)
def test_rolling_restart_causes_no_errors(ns: Namespace, installation: Installation) -> None:
    with creating(ns) as load:
        for _ in range(RESTARTS):
            installation.kubectl("rollout", "restart", "deployment/holdfast-webhook")
            installation.rolled_out("holdfast-webhook")
    assert (load.failures, load.ungated) == ([], [])
    assert load.made > 100


def test_errors_end_soon_after_a_replica_is_killed(
    ns: Namespace, installation: Installation
) -> None:
    victim = installation.pods("webhook")[0]
    with creating(ns) as load:
        time.sleep(3.0)
        killed_at = time.monotonic()
        kill(victim)
        time.sleep(15.0)
    late_failures = [
        message for began, message in load.failures if began > killed_at + MAX_ERROR_SECONDS
    ]
    assert (late_failures, load.ungated) == ([], [])
    assert [message for began, message in load.failures if began < killed_at - 3.0] == []
    installation.rolled_out("holdfast-webhook")


def test_lost_certificate_is_replaced_under_load(ns: Namespace, installation: Installation) -> None:
    def kept() -> str:
        return secret(installation, LEAF).get("tls.crt", "")

    old_certificate = kept()
    with creating(ns) as load:
        installation.kubectl("delete", "secret", LEAF)
        ns.eventually(lambda: kept() not in {"", old_certificate}, 120.0)
        await_repair(ns, installation)
        time.sleep(3.0)  # continue the load with the new certificate
    assert (load.failures, load.ungated) == ([], [])


@pytest.mark.timeout(900)
def test_corrupt_pair_is_replaced_while_the_last_good_one_is_served(
    ns: Namespace, installation: Installation
) -> None:
    fingerprints = installation.served()
    failure_counts = {address: reload_failures(address) for address in installation.replicas()}
    with creating(ns) as load:
        # otherwise the controller repairs the Secret before replicas see it
        installation.scale("holdfast-controller", 0)
        mismatch(installation)
        ns.eventually(
            lambda: all(
                reload_failures(address) > count for address, count in failure_counts.items()
            ),
            FOLLOW,
        )
        assert installation.served() == fingerprints
        installation.scale("holdfast-controller", 2)
        await_repair(ns, installation)
        corrupt(installation)
        await_repair(ns, installation)
    assert (load.failures, load.ungated) == ([], [])
    assert installation.served().isdisjoint(fingerprints)


def test_upgrade_causes_no_errors(ns: Namespace, installation: Installation) -> None:
    held_pods = ns.create_pods([pod("held-before", {"delay": "20"})])
    with creating(ns) as load:
        images = [{"name": "holdfast", "newTag": TAGS[1]}]
        installation.apply(installation.kustomization("newer", images=images))
        installation.ready()
    assert (load.failures, load.ungated) == ([], [])
    pods = installation.pods("webhook")
    assert {manifest["spec"]["containers"][0]["image"] for manifest in pods} == {
        f"holdfast:{TAGS[1]}"
    }
    released_at = ns.eventually(lambda: ns.releases().get("held-before", 0.0))
    assert released_at >= created(held_pods[0]) + 20


@pytest.mark.parametrize(
    ("mark", "address"), [("10250", ("10.64.", 10250)), ("hostNetwork", (node_plan.GATEWAY, 8443))]
)
def test_patches_for_control_planes_that_cannot_reach_pods(
    ns: Namespace, installation: Installation, mark: str, address: tuple[str, int]
) -> None:
    page = (DOCS / "how-to" / "install.md").read_text()
    (patch,) = (
        text for _, text in transcript.blocks(page) if text.startswith("patches:") and mark in text
    )
    single_replica = {  # two replicas cannot share the port of the only node
        "target": {"kind": "Deployment", "name": "holdfast-webhook"},
        "patch": "- {op: replace, path: /spec/replicas, value: 1}",
    }
    patches = [*yaml.safe_load(patch)["patches"], single_replica]
    installation.apply(installation.kustomization(mark, patches=patches))
    installation.rolled_out("holdfast-webhook")
    ns.eventually(ns.holds_pods)
    (webhook,) = installation.pods("webhook")
    (port,) = webhook["spec"]["containers"][0]["ports"]
    assert webhook["status"]["podIP"].startswith(address[0])
    assert port["containerPort"] == address[1]
    installation.apply()
    installation.rolled_out("holdfast-webhook")
    ns.eventually(ns.holds_pods)


def test_client_ca_rejects_clients_without_a_certificate(
    ns: Namespace, plane: ControlPlane, installation: Installation
) -> None:
    # this API server presents no certificate, like any other client on the network
    authority = yaml.safe_load(plane.kubeconfig.read_text())["clusters"][0]["cluster"]
    file = installation.folder / "api-server-ca.crt"
    file.write_bytes(base64.b64decode(authority["certificate-authority-data"]))
    installation.kubectl("create", "configmap", "holdfast-client-ca", f"--from-file=ca.crt={file}")
    installation.apply(installation.with_components("client-ca", configuration=OWN_KEY))
    installation.rolled_out("holdfast-webhook")  # its probes have no certificate either

    def is_uncalled() -> bool:
        return UNCALLED in refusal(ns.apply, pod("delayed", DELAYED), dry_run=True)

    ns.eventually(is_uncalled)

    def registered() -> bool:  # once every replica has reported the new configuration
        output = plane.kubectl("get", "mutatingwebhookconfiguration", "holdfast", "-o", "yaml")
        return "example.com/wait" in output

    ns.eventually(registered)
    assert is_uncalled()
    installation.apply()
    installation.rolled_out("holdfast-webhook")
    ns.eventually(ns.holds_pods)


def test_status_page_is_reachable_through_a_port_forward(
    ns: Namespace, plane: ControlPlane, installation: Installation
) -> None:
    page = (DOCS / "how-to" / "inspect-and-release.md").read_text()
    (patch,) = (text for _, text in transcript.blocks(page) if text.startswith("patches:"))
    (command,) = (step for step in transcript.steps(page) if "port-forward" in step.command)
    installation.apply(installation.kustomization("status", **yaml.safe_load(patch)))
    installation.rolled_out("holdfast-controller")
    with running(plane, *shlex.split(command.command)[1:]):
        ns.eventually(lambda: "<title>Holdfast" in fetch("http://localhost:8082/"))


def test_without_replicas_only_pods_with_our_keys_are_rejected(
    ns: Namespace, installation: Installation
) -> None:
    installation.scale("holdfast-webhook", 0)
    assert gates(ns.create(pod("unconcerned"))) == []
    assert UNCALLED in ns.refusal(pod("delayed", DELAYED))
    installation.scale("holdfast-webhook", 2)
    # kube-proxy follows a moment after the rollout; until then pods are rejected, never admitted
    assert gates(ns.create_when_called(pod("delayed", DELAYED))) == ["holdfast.dev/delay"]


@pytest.mark.parametrize(
    "components",
    [
        pytest.param(["high-availability", "kubevirt"], id="both"),
        pytest.param(["client-ca"], id="client-ca"),
    ],
)
def test_api_server_accepts_the_components(
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
    component: str, kinds: set[str], tmp_path: Path
) -> None:
    objects = [document for document in built(tmp_path, [component]) if document["kind"] in kinds]
    assert {document["kind"] for document in objects} == kinds
    assert {document["metadata"]["namespace"] for document in objects} == {NAMESPACE}


@pytest.mark.parametrize("component", ["kubevirt", "high-availability", "client-ca"])
def test_components_use_a_custom_configuration(
    component: str, plane: ControlPlane, installation: Installation
) -> None:
    folder = installation.with_components(component, configuration="# mine")
    objects = [*yaml.safe_load_all(plane.kubectl("kustomize", str(folder)))]
    (config_map,) = [document for document in objects if document["kind"] == "ConfigMap"]
    assert config_map["data"] == {"holdfast.yaml": "# mine"}
    disabled = {"HOLDFAST_DISABLE_PLUGINS": "sticky"} if component != "kubevirt" else {}
    assert [variables(document) for document in objects if document["kind"] == "Deployment"] == [
        disabled
    ] * 2


def test_client_ca_moves_probes_and_metrics_to_the_health_port(tmp_path: Path) -> None:
    specs: dict[tuple[str, str], Any] = {
        (document["kind"], document["metadata"]["name"]): document.get("spec")
        for document in built(tmp_path, ["monitoring", "client-ca"])
    }
    (webhook,) = specs["Deployment", "holdfast-webhook"]["template"]["spec"]["containers"]
    (controller,) = specs["Deployment", "holdfast-controller"]["template"]["spec"]["containers"]
    assert {"name": "health", "containerPort": 8082} in webhook["ports"]
    assert {"--health-port=8082", "--client-ca=/etc/holdfast-client-ca/ca.crt"} < {*webhook["args"]}
    assert "--webhook-health-port=8082" in controller["args"]
    probes = [webhook[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    assert {(probe["port"], probe["scheme"]) for probe in probes} == {("health", "HTTP")}
    (endpoint,) = specs["PodMonitor", "holdfast-webhook"]["podMetricsEndpoints"]
    assert endpoint == {"port": "health", "path": "/metrics"}
    (inbound,) = specs["NetworkPolicy", "holdfast-webhook"]["ingress"]
    outbound = specs["NetworkPolicy", "holdfast-controller"]["egress"][-1]
    assert [port["port"] for port in inbound["ports"]] == ["https", "health"]
    assert [port["port"] for port in outbound["ports"]] == ["https", "health"]


def test_cert_manager_component_adds_an_annotation_and_removes_the_right_to_secrets(
    tmp_path: Path,
) -> None:
    objects = built(tmp_path, ["cert-manager"])
    annotations = [
        document["metadata"]["annotations"]
        for document in objects
        if document["kind"].endswith("WebhookConfiguration")
    ]
    assert annotations == 2 * [
        {
            "admissions.enforcer/disabled": "true",
            "cert-manager.io/inject-ca-from": f"{NAMESPACE}/holdfast-webhook",
        }
    ]
    rules = [rule for document in objects for rule in document.get("rules") or ()]
    assert [rule for rule in rules if "secrets" in rule["resources"]] == []


@pytest.mark.timeout(600)
def test_uninstall_waits_for_held_pods_and_removes_everything(
    plane: ControlPlane, installation: Installation
) -> None:
    ns = Namespace.create_new(plane, "uninstall")
    pods = ns.create_pods(pod(f"held-{n}", {"delay": "15"}) for n in range(20))
    uninstall(plane, "wait")
    check_uninstalled(ns, pods, installation)


def check_uninstalled(ns: Namespace, pods: list[Object], installation: Installation) -> None:
    """Check that these pods were released on time, and that nothing of Holdfast is left."""
    check_released_on_time(ns, pods)
    tests = re.findall(r"namespace/(test-\S+)", ns.plane.kubectl("get", "namespaces", "-o", "name"))
    ns.plane.kubectl("delete", "namespace", ns.namespace, *tests, "--ignore-not-found", timeout=300)
    assert all_objects(ns.plane) == installation.before


@pytest.mark.timeout(900)
def test_uninstall_with_kubectl_removes_everything(
    plane: ControlPlane, installation: Installation
) -> None:
    installation.install()
    ns = Namespace.create_new(plane, "uninstall-by-hand")
    pods = ns.create_pods(pod(f"held-{n}", {"delay": "15"}) for n in range(20))
    assert "webhookconfiguration" in run_documented(plane, "kubectl delete mutating")
    assert run_documented(plane, "kubectl get pods -A").count("held-") == 20
    ns.eventually(lambda: run_documented(plane, "kubectl get pods -A") == "")
    assert 'namespace "holdfast-system" deleted' in run_documented(plane, "kubectl delete -k .")
    check_uninstalled(ns, pods, installation)
