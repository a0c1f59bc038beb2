"""The documented terminal sessions, run on a real cluster with `holdfast dev`."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from docs import transcript
from docs.transcript import Session
from tests.e2e.cli.commands import CRDS
from tests.e2e.namespace import Namespace, pod
from tests.support import pages
from tests.support.pages import ROOT, RUN

KEPT = "holdfast.dev/sticky"


def environment(ns: Namespace, folder: Path) -> Mapping[str, str]:
    """Return the variables that the pages export; their namespace is the test's."""
    config = yaml.safe_load(ns.plane.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = ns.namespace
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    search_path = f"{ns.plane.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "KUBECONFIG": str(path), "PATH": search_path}


@pytest.mark.parametrize("page", RUN)
def test_documented_session_runs(ns: Namespace, tmp_path: Path, page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for folder in ("demo", "manifests"):
        (tmp_path / folder).symlink_to(ROOT / folder)

    def names() -> list[str]:
        return [manifest["metadata"]["name"] for manifest in ns.all("pods")]

    replacements = {ns.namespace: "default", "holdfast-admin": "jane"}
    session = Session(tmp_path, environment(ns, tmp_path), names, replacements)
    session.write(text)
    for step in transcript.steps(text):
        if not pages.elsewhere(page, step):
            session.run(step)


def script(page: str, part: str, ns: Namespace, folder: Path, *changes: tuple[str, str]) -> str:
    """Run the page's command that contains `part`, after replacements, and return its output."""
    (command,) = (
        step.command for step in pages.steps(f"docs/how-to/{page}") if part in step.command
    )
    for old, new in changes:
        command = command.replace(old, new)
    session = Session(folder, environment(ns, folder), list)
    return "\n".join(session.run(transcript.Step(command, ("…",))))


def test_documented_manual_cleanup_works(
    new_cluster: Callable[[], Namespace], tmp_path: Path
) -> None:
    ns = new_cluster()
    ns.apply(*CRDS)
    ns.definitions_established()
    vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "db"}}
    vm["metadata"]["annotations"] = {"holdfast.dev/sticky-node": "node-2"}  # type: ignore[index]
    other_vm = {**vm, "metadata": {"name": "free"}}
    ns.apply(vm, other_vm)
    script("sticky-vms.md", "kubectl get vm -A", ns, tmp_path)
    annotations = ns.get("virtualmachine", "db")["metadata"]["annotations"]
    assert annotations["example.com/sticky-node"] == "node-2"
    assert "example.com" not in str(ns.get("virtualmachine", "free")["metadata"])

    for name, before in (("last", ["example.com/x", KEPT]), ("first", [KEPT])):
        manifest = pod(name)
        manifest["metadata"]["finalizers"] = before
        ns.apply(manifest)
    assert script("install.md", "kubectl get pods -A -o custom", ns, tmp_path).count(KEPT) == 2
    script("sticky-vms.md", "kubectl get pods -A -o go-template", ns, tmp_path)
    assert ns.get("pod", "last")["metadata"]["finalizers"] == ["example.com/x"]
    assert "finalizers" not in ns.get("pod", "first")["metadata"]


def test_documented_command_unblocks_namespace_deletion(
    plain_ns: Namespace, tmp_path: Path
) -> None:
    ns = Namespace.create_new(plain_ns.plane, "ended")
    for namespace in (ns, plain_ns):
        manifest = pod("kept")
        manifest["metadata"]["finalizers"] = [KEPT]
        namespace.apply(manifest)
    ns.eventually(lambda: ns.get("pod", "kept")["spec"].get("nodeName"))
    ns.plane.kubectl("delete", "namespace", ns.namespace, "--wait=false")
    ns.eventually(lambda: ns.get("pod", "kept")["metadata"].get("deletionTimestamp"))
    change = (" -A ", f" -n {ns.namespace} ")
    script("sticky-vms.md", "kubectl get pods -A -o go-template", ns, tmp_path, change)
    ns.eventually(lambda: ns.namespace not in ns.plane.kubectl("get", "namespaces"))
    assert plain_ns.get("pod", "kept")["metadata"]["finalizers"] == [KEPT]
    no_finalizers = '{"metadata": {"finalizers": null}}'
    plain_ns.kubectl("patch", "pod", "kept", "--type=merge", "-p", no_finalizers)


def test_gate_can_be_removed_with_kubectl(plain_ns: Namespace, tmp_path: Path) -> None:
    ns = plain_ns
    ns.apply(pod("held", schedulingGates=[{"name": "holdfast.dev/delay"}]))
    assert "held" in script("install.md", "kubectl get pods -A --field", ns, tmp_path)
    changes = ("NAMESPACE", ns.namespace), ("NAME", "held")
    assert script("install.md", "patch pod", ns, tmp_path, *changes) == "pod/held patched"
    assert "schedulingGates" not in ns.get("pod", "held")["spec"]
