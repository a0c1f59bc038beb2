"""Uninstalling while KubeVirt's launcher pods have our finalizer: no record is lost, unless that is
requested. The processes run on this machine; kwok reports the pods of their Deployment as ready.
"""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from controlplane.kubevirt import install
from controlplane.launcher import ControlPlane
from tests.e2e import vms
from tests.e2e.accounts import NAMESPACE, controller_kubeconfig, kubevirt_rights
from tests.e2e.installed import deployment
from tests.e2e.namespace import Namespace, Object, gates, pod
from tests.e2e.two_processes import TwoProcesses
from tests.e2e.vms import FEDORA

pytestmark = [pytest.mark.xdist_group("uninstall"), pytest.mark.slow]

CHOSEN, RECORD, CHOICE = (
    "example.com/sticky-node",
    "holdfast.dev/sticky-node",
    "holdfast.dev/sticky",
)
FINALIZER = "holdfast.dev/sticky"
CONFIGURED = f"""
profiles:
- pluginConfig:
  - {{name: sticky, args: {{nodeAnnotation: {CHOSEN}}}}}
"""
CONFIGURATIONS = "mutatingwebhookconfigurations,validatingwebhookconfigurations"

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A cluster with KubeVirt for these tests only: uninstalling affects every namespace."""
    with ControlPlane(nodes=3, audit=True) as cluster:
        install(cluster)
        yield cluster


@pytest.fixture
def machines(plane: ControlPlane) -> Namespace:
    return Namespace.create_new(plane, f"machines-{next(_numbers)}")


@contextmanager
def installed(plane: ControlPlane, folder: Path, config: str = "") -> Iterator[TwoProcesses]:
    """Install what uninstalling has to remove, and run both processes."""
    kubeconfig = controller_kubeconfig(plane, folder / "kubeconfig")
    for process in ("controller", "webhook"):
        plane.kubectl("apply", "-f", str(kubevirt_rights(process)))
    text = "apiVersion: holdfast.dev/v1beta1\nkind: HoldfastConfiguration\n" + config
    configuration = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "holdfast-config-hash"},
        "data": {"holdfast.yaml": text},
    }
    objects = yaml.safe_dump_all([configuration, deployment(component="controller")])
    options = ("--namespace", NAMESPACE)
    plane.kubectl(*options, "apply", "-f", "-", stdin=objects)
    plane.kubectl(*options, "rollout", "status", "deployment/holdfast-controller", "--timeout=60s")
    settings = {"config": config, "name": "holdfast", "controller_kubeconfig": kubeconfig}
    with TwoProcesses(plane, folder, **settings) as processes:  # type: ignore[arg-type]
        yield processes


def uninstalling(plane: ControlPlane, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "holdfast.webhook", "uninstall", "--yes", *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*command, "--kubeconfig", str(plane.kubeconfig)], stdout=output, stderr=output
        )


def uninstall(plane: ControlPlane, log: Path, *arguments: str, code: int = 0) -> None:
    """Uninstall, and check the exit status."""
    with uninstalling(plane, log, *arguments) as command:
        pass
    assert command.returncode == code, log.read_text()


def finalizers(pod: Object) -> list[str]:
    return [
        finalizer for finalizer in pod["metadata"].get("finalizers", ()) if finalizer == FINALIZER
    ]


def annotated(ns: Namespace, name: str = FEDORA) -> dict[str, str]:
    return dict(ns.get("vm", name)["metadata"].get("annotations") or {})


def is_gone(plane: ControlPlane) -> bool:
    names = plane.kubectl("get", f"{CONFIGURATIONS},namespaces,clusterroles", "-o", "name")
    return "holdfast" not in names


def test_first_node_is_recorded_before_uninstalling(
    plane: ControlPlane, machines: Namespace, tmp_path: Path
) -> None:
    log = tmp_path / "uninstall.log"
    with installed(plane, tmp_path) as holdfast:
        holdfast.controller.stop()  # the node is not recorded
        machines.create(vms.vm())
        pod = vms.landed(machines)
        assert (finalizers(pod), annotated(machines).get(RECORD)) == ([FINALIZER], None)

        with uninstalling(plane, log, "--release", "wait") as command:
            machines.eventually(
                lambda: "waiting for the nodes of 1 VM pod to be recorded" in log.read_text()
            )
            assert not is_gone(plane)
            holdfast.controller.start()
        assert command.returncode == 0, log.read_text()
        assert is_gone(plane)
    assert annotated(machines)[RECORD] == vms.node_of(pod)
    assert finalizers(machines.get("pod", pod["metadata"]["name"])) == []
    vms.delete_run(machines)
    assert finalizers(vms.landed(machines, other_than=vms.uid(pod))) == []


def test_uninstall_keeps_records_and_purge_removes_them(
    plane: ControlPlane, machines: Namespace, tmp_path: Path
) -> None:
    log = tmp_path / "uninstall.log"
    with installed(plane, tmp_path, CONFIGURED) as holdfast:
        machines.create(vms.vm("older", {RECORD: "node-1", CHOICE: "true"}, run_strategy="Halted"))
        machines.create(vms.vm())
        first_pod = vms.landed(machines)
        machines.eventually(lambda: annotated(machines).get(CHOSEN) == vms.node_of(first_pod))
        machines.eventually(
            lambda: not finalizers(machines.get("pod", first_pod["metadata"]["name"]))
        )
        holdfast.controller.stop()
        vms.delete_run(machines)
        second_pod = vms.landed(machines, other_than=vms.uid(first_pod))
        assert finalizers(second_pod) == [FINALIZER]

        plane.kubectl(
            "--namespace", NAMESPACE, "scale", "deployment/holdfast-controller", "--replicas=0"
        )
        uninstall(plane, log, "--release", "wait", code=1)
        assert not is_gone(plane)
        assert f"no controller is running in {NAMESPACE}" in log.read_text()
        assert finalizers(machines.get("pod", second_pod["metadata"]["name"])) == [FINALIZER]

        options = ("--release", "now", "--purge")
        for mode, suffix in (("client", "(dry run)"), ("server", "(server dry run)")):
            uninstall(plane, log, *options, f"--dry-run={mode}")
            assert log.read_text().endswith(f"Holdfast is uninstalled {suffix}\n")
            assert finalizers(machines.get("pod", second_pod["metadata"]["name"])) == [FINALIZER]
            assert not is_gone(plane)

        uninstall(plane, log, *options)
        assert is_gone(plane)
    assert finalizers(machines.get("pod", second_pod["metadata"]["name"])) == []
    annotations = {**annotated(machines), **annotated(machines, "older")}
    assert {key for key in annotations if "sticky" in key} == {CHOICE}


def test_vm_moves_while_uninstalled_are_recorded_or_reported(
    plane: ControlPlane, machines: Namespace, tmp_path: Path
) -> None:
    """A migration that the VMI still reports is recorded; a start on another node is reported."""
    folders = tmp_path / "before", tmp_path / "after"
    for folder in folders:
        folder.mkdir()
    with installed(plane, folders[0]):
        for name in ("migrates", "starts"):
            machines.create(vms.vm(name))
        first_pod = vms.landed(machines, "starts")
        machines.eventually(
            lambda: all(RECORD in annotated(machines, name) for name in ("migrates", "starts"))
        )
        uninstall(plane, tmp_path / "first.log", "--release", "wait")
    _, target = vms.migrate(machines, "migrates")
    with vms.avoided(machines, vms.node_of(first_pod)):
        vms.delete_run(machines, "starts")
        second_pod = vms.landed(machines, "starts", other_than=vms.uid(first_pod))
    old_node, new_node = vms.node_of(first_pod), vms.node_of(second_pod)
    assert old_node != new_node

    with installed(plane, folders[1]):
        machines.eventually(lambda: annotated(machines, "migrates")[RECORD] == vms.node_of(target))
        (note,) = machines.eventually(lambda: differences(machines))
        assert note.startswith(f"the VM runs on {new_node}, but starts on {old_node} the next time")
        with vms.avoided(machines, vms.node_of(target)):
            vms.delete_run(machines, "migrates")
            pod = vms.landed(machines, "migrates", other_than=vms.uid(target))
        assert vms.node_of(pod) == vms.node_of(target)
        vms.delete_run(machines, "starts")
        pod = vms.landed(machines, "starts", other_than=vms.uid(second_pod))
        assert vms.node_of(pod) == old_node
        uninstall(plane, tmp_path / "second.log", "--release", "wait")


def differences(ns: Namespace) -> list[str]:
    events = ns.all("events.events.k8s.io")
    return [event["note"] for event in events if event["reason"] == "StickyNodeDiffers"]


def test_uninstall_frees_restored_pods_without_an_installation(
    plane: ControlPlane, machines: Namespace, tmp_path: Path
) -> None:
    """A restore keeps gates and finalizers; no webhook, CRB or controller is left."""
    assert is_gone(plane)
    held, bound = pod("held"), pod("bound")
    held["spec"]["schedulingGates"] = [{"name": "holdfast.dev/delay"}]
    bound["metadata"]["finalizers"] = [FINALIZER]
    bound["metadata"]["labels"] = {"kubevirt.io": "virt-launcher"}
    bound["spec"]["nodeName"] = "node-1"
    machines.create(held)
    machines.create(bound)
    log = tmp_path / "uninstall.log"
    uninstall(plane, log, "--release", "now")
    assert f"the nodes of {machines.namespace}/bound stay unrecorded" in log.read_text()
    assert gates(machines.get("pod", "held")) == []
    assert finalizers(machines.get("pod", "bound")) == []
