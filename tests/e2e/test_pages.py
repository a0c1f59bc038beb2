"""What the pages show of a terminal, run again on a real cluster with `holdfast dev`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from docs import transcript
from docs.transcript import Session
from tests import pages
from tests.e2e.test_cli import CRDS
from tests.e2e.world import World, pod
from tests.pages import ROOT, RUN

KEPT = "holdfast.dev/sticky"


def environment(world: World, folder: Path) -> Mapping[str, str]:
    """Give what the pages tell people to export; their namespace is the test's."""
    config = yaml.safe_load(world.plane.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = world.namespace
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    found = f"{world.plane.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "KUBECONFIG": str(path), "PATH": found}


@pytest.mark.parametrize("page", RUN)
def test_page(world: World, tmp_path: Path, page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for folder in ("demo", "manifests"):
        (tmp_path / folder).symlink_to(ROOT / folder)

    def names() -> list[str]:
        return [one["metadata"]["name"] for one in world.all("pods")]

    session = Session(tmp_path, environment(world, tmp_path), names, {world.namespace: "default"})
    session.write(text)
    for step in transcript.steps(text):
        if not pages.elsewhere(page, step):
            session.run(step)


def script(page: str, start: str, world: World, folder: Path) -> str:
    """Run the command of a page that begins so, and return what it prints."""
    (step,) = (
        step for step in pages.steps(f"docs/how-to/{page}") if step.command.startswith(start)
    )
    session = Session(folder, environment(world, folder), list)
    return "\n".join(session.run(transcript.Step(step.command, ("…",))))


def test_what_goes_by_hand_goes(bare_world: Callable[[], World], tmp_path: Path) -> None:
    world = bare_world()
    world.apply(*CRDS)
    world.kubectl("wait", "--for=condition=Established", "crd", "--all")
    vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "db"}}
    vm["metadata"]["annotations"] = {"holdfast.dev/sticky-node": "node-2"}  # type: ignore[index]
    other = {**vm, "metadata": {"name": "free"}}
    world.apply(vm, other)
    script("sticky-vms.md", "kubectl get vm -A", world, tmp_path)
    annotations = world.get("virtualmachine", "db")["metadata"]["annotations"]
    assert annotations["example.com/sticky-node"] == "node-2"
    assert "example.com" not in str(world.get("virtualmachine", "free")["metadata"])

    for name, before in (("last", ["example.com/x", KEPT]), ("first", [KEPT])):
        kept = pod(name)
        kept["metadata"]["finalizers"] = before
        world.apply(kept)
    assert script("install.md", "kubectl get pods -A -o custom", world, tmp_path).count(KEPT) == 2
    script("sticky-vms.md", "kubectl get pods -A -o go-template", world, tmp_path)
    assert world.get("pod", "last")["metadata"]["finalizers"] == ["example.com/x"]
    assert "finalizers" not in world.get("pod", "first")["metadata"]


def test_a_gate_goes_by_kubectl_alone(bare_world: Callable[[], World], tmp_path: Path) -> None:
    world = bare_world()
    world.apply(pod("held", schedulingGates=[{"name": "holdfast.dev/delay"}]))
    assert "held" in script("install.md", "kubectl get pods -A --field", world, tmp_path)
    (step,) = (
        step for step in pages.steps("docs/how-to/install.md") if "patch pod" in step.command
    )
    command = step.command.replace("NAMESPACE", world.namespace).replace("NAME", "held")
    session = Session(tmp_path, environment(world, tmp_path), list)
    assert session.run(transcript.Step(command, ("…",))) == ["pod/held patched"]
    assert "schedulingGates" not in world.get("pod", "held")["spec"]
