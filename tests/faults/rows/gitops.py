"""A GitOps tool applies the webhook configurations again and again, and somebody resets them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from tests.e2e import installed
from tests.e2e.world import Object
from tests.faults.rows.certificates import blank, replace_in_all
from tests.faults.scene import Fault, Scene

EVERY = 5.0
"""Seconds between two runs of the tool."""
LOOK = 1.0
"""Seconds between two looks at what the configurations say."""
EMPTY = [{"op": "replace", "path": "/webhooks", "value": []}]


def loop(scene: Scene) -> None:
    """Apply the webhook configurations every five seconds; spoil, blank and empty them as often."""
    made = scene.arena.installed
    before = made.webhooks()
    path = Path(made.folder) / "gitops.yaml"
    path.write_text("\n---\n".join(map(json.dumps, installed.empty_configurations())))
    again(scene, "spoilt", before, path)
    known = len(scene.load.failures)
    again(scene, "blanked", before, path)
    refused = [one for one in scene.load.failures[known:] if one.by_webhook and one.wish.asks]
    scene.figures["refused while blanked"] = len(refused)
    scene.check("blanked, and nobody was refused", int(not refused))
    for name in ("emptied", "opened"):
        with unasked(scene):
            again(scene, name, before, path)
            scene.world.eventually(scene.world.holds_pods)


def again(scene: Scene, name: str, before: list[Object], path: Path) -> None:
    """Do a harm before each run of the tool, and bound for how long anything is wrong."""
    made, runs, left, longest = scene.arena.installed, 0, 0, 0.0
    right_at = time.monotonic()
    end = right_at + scene.lasts(60, 10)
    while time.monotonic() < end:
        left += HARMS[name](made)
        scene.arena.plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
        runs += 1
        until = time.monotonic() + EVERY
        while time.monotonic() < until:
            scene.go_on(LOOK)
            if made.webhooks() == before:
                right_at = time.monotonic()
            longest = max(longest, time.monotonic() - right_at)
    after = scene.eventually(lambda: made.webhooks() == before, installed.REPAIR)
    scene.figures |= {f"times {name}": runs, f"seconds {name} at most": round(longest, 1)}
    scene.check(f"webhooks that were not {name}", left)
    scene.check(f"seconds until all was right: {name} again and again", longest, installed.REPAIR)
    scene.check(f"seconds until all was right: {name} no more", after, installed.REPAIR)


def spoil(made: installed.Installation) -> int:
    """Have each webhook let through what it cannot be asked about, and count those that do not."""
    seen = replace_in_all(made, "failurePolicy", "Ignore")
    return sum(one["failurePolicy"] != "Ignore" for one in seen)


def empty(made: installed.Installation) -> int:
    """Take every webhook away, and count those that are left."""
    options = ("holdfast", "--type=json", "-o", "json", "-p", json.dumps(EMPTY))
    seen = [json.loads(made.kubectl("patch", kind, *options)) for kind in installed.KINDS]
    return sum(len(each.get("webhooks") or ()) for each in seen)


def reopen(made: installed.Installation) -> int:
    """Let through everything: nothing can be asked about, and nothing has to be."""
    return spoil(made) + blank(made)


HARMS: Mapping[str, Callable[[installed.Installation], int]] = MappingProxyType(
    {"spoilt": spoil, "blanked": blank, "emptied": empty, "opened": reopen}
)
"""Each tells how many webhooks it has left as they were."""


@contextmanager
def unasked(scene: Scene) -> Iterator[None]:
    """Let no pod need Holdfast while the block lasts: it is not asked, or not waited for."""
    with scene.arena.machines.kept_down(), scene.load.asking_nothing():
        yield


FAULTS = [
    Fault(
        "gitops-loop",
        7,
        loop,
        minutes=4.5,
        broken="never-repairs",
        caught_by="seconds until all was right: spoilt no more",
        refuses=True,
        means="Applying the manifests takes nothing away. What somebody resets, every five seconds "
        "too, is right again within 30 s, until the next time. While the caBundle is blank, pods "
        "that ask are refused. While the lists are empty, or the failure policy is Ignore as well, "
        "nobody hears Holdfast: pods are created unheld, and those of VMs without their node.",
    ),
]
