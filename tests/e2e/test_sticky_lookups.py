"""The admission server's lookups: under its own account with the rights that ship, and unanswered.

Reviews are sent to it as an API server would, so that what is answered can be told to the letter.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from certs import authority
from controlplane.kubeconfig import token_kubeconfig
from controlplane.launcher import ControlPlane
from demo.command import Command
from tests.e2e import vms
from tests.e2e.accounts import MANIFESTS, kubevirt_rights
from tests.e2e.vms import FEDORA
from tests.e2e.world import Object, World, pod
from webhook.cluster import Cluster
from webhook.errors import ApiStatusError
from webhook.lookup import ClusterLookup

pytestmark = pytest.mark.xdist_group("kubevirt")

ACCOUNT = "system:serviceaccount:kubevirt:kubevirt-controller"
WEBHOOK = "system:serviceaccount:holdfast-system:holdfast-webhook"
ROLE = "clusterrole/holdfast-webhook"
RECORD = "holdfast.dev/sticky-node"
PATIENCE = 20.0

_numbers = itertools.count(1)


def certificate(folder: Path) -> list[str]:
    """Make a server's certificate, and give the options that name it."""
    now = datetime.now(UTC)
    pair = authority.issue(
        authority.new_ca("test", now=now), common_name="x", now=now, ip_addresses=["127.0.0.1"]
    )
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    return ["--cert", str(folder / "tls.crt"), "--key", str(folder / "tls.key")]


@contextmanager
def serve(kubeconfig: Path, folder: Path, *more: str) -> Iterator[Command]:
    """Run `holdfast serve` with this kubeconfig."""
    options = ["--host", "127.0.0.1", "--port", "0", "--kubeconfig", str(kubeconfig)]
    with Command(
        "serve", *options, *certificate(folder), *more, log=folder / "serve.log"
    ) as running:
        yield running


def ask(address: str, manifest: Object, namespace: str) -> tuple[int, str]:
    """Send the review of a pod that KubeVirt creates; return status and body."""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "c0ffee",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "operation": "CREATE",
            "namespace": namespace,
            "object": manifest,
            "userInfo": {"username": ACCOUNT},
        },
    }
    context = ssl._create_unverified_context()  # what it says counts here, not who it is
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPSConnection(host, int(port), timeout=PATIENCE, context=context)
    try:
        connection.request(
            "POST", "/mutate", json.dumps(review), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def patch_of(answer: tuple[int, str]) -> list[Any]:
    """Read the patch of an answer that allows the pod."""
    status, body = answer
    assert status == 200, body
    response = json.loads(body)["response"]
    assert response["allowed"], body
    return list(json.loads(base64.b64decode(response["patch"])))


def refusal_of(server: Command, manifest: Object, namespace: str) -> str:
    """Read why a pod is refused; nothing where it is allowed."""
    status, body = ask(server.address, manifest, namespace)
    assert status == 200, body
    return str(json.loads(body)["response"].get("status", {}).get("message", ""))


def launcher(owner: str, uid: str) -> Object:
    """Make a launcher pod of a VMI."""
    made = pod("virt-launcher-x")
    reference = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": owner}
    made["metadata"]["ownerReferences"] = [{**reference, "uid": uid, "controller": True}]
    return made


@pytest.fixture(scope="module")
def server(kubevirt: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """The admission server under its own ServiceAccount."""
    folder = tmp_path_factory.mktemp("serve")
    kubevirt.kubectl("apply", "-k", str(MANIFESTS / "rbac"))
    kubevirt.kubectl("apply", "-f", str(kubevirt_rights("webhook")))
    token = kubevirt.kubectl("create", "token", "holdfast-webhook", "--namespace=holdfast-system")
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_bytes(
        token_kubeconfig(kubevirt.server, kubevirt.ca.read_bytes(), "webhook", token.strip())
    )
    with serve(kubeconfig, folder) as running:
        yield running


@pytest.fixture
def recorded(kubevirt: ControlPlane) -> World:
    """A namespace with a VM that runs, and has a record."""
    world = World.in_new_namespace(kubevirt, f"lookup-{next(_numbers)}")
    world.create(vms.vm(annotations={RECORD: "node-2"}))
    world.eventually(lambda: vms.find(world, "vmi", FEDORA))
    return world


def instance_uid(world: World) -> str:
    return vms.uid(world.get("vmi", FEDORA))


def test_the_rights_that_ship_suffice_and_are_only_used_to_read(
    server: Command, recorded: World
) -> None:
    manifest = launcher(FEDORA, instance_uid(recorded))
    operations = patch_of(ask(server.address, manifest, recorded.namespace))
    assert {"op": "add", "path": "/metadata/finalizers", "value": ["holdfast.dev/sticky"]} in (
        operations
    )
    assert "node-2" in json.dumps(operations)
    done = {
        (event["verb"], event["objectRef"]["resource"])
        for event in recorded.audit()
        if event["user"]["username"] == WEBHOOK
    }
    assert done == {("get", "virtualmachines"), ("get", "virtualmachineinstances")}


LEGACY = """
apiVersion: holdfast.dev/v1alpha1
kind: HoldfastConfiguration
profiles:
- pluginConfig:
  - name: sticky
    args: {nodeAnnotation: example.com/sticky-node, affinity: %s}
"""


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        ("required", "requiredDuringSchedulingIgnoredDuringExecution"),
        ("preferred", "preferredDuringSchedulingIgnoredDuringExecution"),
    ],
)
def test_the_legacy_annotation_works_as_the_plugins(
    recorded: World, kubevirt: ControlPlane, tmp_path: Path, affinity: str, expected: str
) -> None:
    recorded.kubectl("annotate", "vm", FEDORA, f"{RECORD}-", "example.com/sticky-node=node-3")
    file = tmp_path / "holdfast.yaml"
    file.write_text(LEGACY % affinity)
    manifest = launcher(FEDORA, instance_uid(recorded))
    with serve(kubevirt.kubeconfig, tmp_path, "--config", str(file)) as running:
        operations = patch_of(ask(running.address, manifest, recorded.namespace))
    (added,) = (each["value"] for each in operations if each["path"] == "/spec/affinity")
    assert list(added["nodeAffinity"]) == [expected]
    assert '"key": "metadata.name", "operator": "In", "values": ["node-3"]' in json.dumps(added)


@pytest.mark.parametrize("resource", ["virtualmachines", "virtualmachineinstances"])
def test_none_of_the_rights_can_be_removed(
    server: Command, recorded: World, kubevirt: ControlPlane, resource: str
) -> None:
    manifest = launcher(FEDORA, instance_uid(recorded))
    role = yaml.safe_load(kubevirt.kubectl("get", ROLE, "-o", "yaml"))
    (rule,) = role["rules"]
    (verb,) = rule["verbs"]
    rule["resources"].remove(resource)
    change = json.dumps({"rules": [rule]})
    kubevirt.kubectl("patch", ROLE, "--type=merge", "-p", change)
    try:
        said = f'User "{WEBHOOK}" cannot {verb} resource "{resource}"'
        recorded.eventually(lambda: said in refusal_of(server, manifest, recorded.namespace))
        assert said in server.log.read_text()
    finally:
        kubevirt.kubectl("apply", "-f", str(kubevirt_rights("webhook")))
    recorded.eventually(lambda: not refusal_of(server, manifest, recorded.namespace))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/apis/kubevirt.example.com/v1/namespaces/default/vms/x", id="group"),
        pytest.param("/apis/kubevirt.io/v99/namespaces/default/virtualmachines/x", id="version"),
        pytest.param("/apis/kubevirt.io/v1/namespaces/default/nothings/x", id="resource"),
    ],
)
def test_a_vm_that_is_gone_is_told_from_a_kind_that_is_not_served(
    kubevirt: ControlPlane, path: str
) -> None:
    with closing(Cluster.connect(kubevirt.kubeconfig)) as cluster:
        lookup = ClusterLookup(lambda: cluster)
        assert lookup.get("/apis/kubevirt.io/v1/namespaces/default/virtualmachines/x") is None
        with pytest.raises(ApiStatusError) as caught:
            lookup.get(path)
    assert caught.value.status == 404


def test_reviews_of_others_do_not_wait_for_a_cluster_that_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        kubeconfig = tmp_path / "kubeconfig"
        ca = authority.new_ca("test", now=datetime.now(UTC)).certificate
        kubeconfig.write_bytes(token_kubeconfig(f"https://127.0.0.1:{port}", ca, "x", "y"))
        with serve(kubeconfig, tmp_path) as running, ThreadPoolExecutor(24) as pool:
            waiting = [
                pool.submit(ask, running.address, launcher("vm", "u"), "default") for _ in range(24)
            ]
            answered = threading.Event()
            for job in waiting:
                job.add_done_callback(lambda _: answered.set())
            patch_of(ask(running.address, pod("held", {"delay": "15"}), "default"))
            assert not answered.is_set()
            for status, body in (job.result() for job in waiting):
                assert status == 200, body
                assert not json.loads(body)["response"]["allowed"], body
