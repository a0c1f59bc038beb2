"""A GitOps tool applies the webhook configurations again and again, and somebody spoils them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e import installed
from tests.e2e.world import Object
from tests.faults.scene import Fault, Scene

EVERY = 5.0
"""Seconds between two runs of the tool."""
SPOIL = [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]
EMPTY = [{"op": "replace", "path": "/webhooks", "value": []}]


def loop(scene: Scene) -> None:
    """Apply the webhook configurations every five seconds; spoil them, and empty them."""
    before = scene.arena.installed.webhooks()
    path = Path(scene.arena.installed.folder) / "gitops.yaml"
    path.write_text("\n---\n".join(map(json.dumps, installed.empty_configurations())))
    end = time.monotonic() + scene.lasts(60, 10)
    while time.monotonic() < end:
        write(scene, SPOIL)
        apply(scene, path)
        scene.go_on(EVERY)
    right = scene.eventually(lambda: scene.arena.installed.webhooks() == before, installed.REPAIR)
    scene.check("seconds until all was right again", right, installed.REPAIR)
    for _ in range(1 if scene.short else 5):
        with unasked(scene):
            emptied(scene, before, path)


def emptied(scene: Scene, before: list[Object], path: Path) -> None:
    """Leave no webhook in the configurations, and wait until all of them are back and called."""
    began = time.monotonic()
    left = [one for each in write(scene, EMPTY) for one in each.get("webhooks") or ()]
    seconds = 2 * installed.REPAIR
    while time.monotonic() - began < installed.REPAIR:
        apply(scene, path)
        if scene.eventually(lambda: scene.arena.installed.webhooks() == before, EVERY) <= EVERY:
            seconds = time.monotonic() - began
            break
    scene.check("webhooks that were not taken away", len(left))
    scene.check("seconds until emptied lists were full again", seconds, installed.REPAIR)
    scene.world.eventually(scene.world.holds_pods)


@contextmanager
def unasked(scene: Scene) -> Iterator[None]:
    """Let no pod need Holdfast while the block lasts: without its webhooks it is not asked."""
    with scene.arena.machines.kept_down(), scene.load.asking_nothing():
        yield


def write(scene: Scene, patch: list[Object]) -> list[Object]:
    """Patch both configurations by hand, and give what became of them."""
    options = ("holdfast", "--type=json", "-o", "json", "-p", json.dumps(patch))
    kubectl = scene.arena.plane.kubectl
    return [json.loads(kubectl("patch", kind, *options)) for kind in installed.KINDS]


def apply(scene: Scene, path: Path) -> None:
    """Apply the manifests' configurations, which name no webhooks, as the tool does."""
    scene.arena.plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))


FAULTS = [
    Fault(
        "gitops-loop",
        7,
        loop,
        broken="never-repairs",
        means="Applying the manifests takes nothing away; what is changed by hand is put right "
        "within 30 s, and lists that were emptied are full again. In the meantime Holdfast is "
        "not asked: pods are created unheld, and those of VMs without their node.",
    ),
]
