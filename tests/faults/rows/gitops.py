"""A GitOps tool applies the webhook configurations again and again, and somebody resets them."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from tests.e2e import installed
from tests.e2e.namespace import Object
from tests.faults.rows.certificates import blank, replace_in_all
from tests.faults.scenario import Scenario, Table

FAULTS = Table(7)

EVERY = 5.0
"""Seconds between two runs of the tool."""
LOOK = 1.0
"""Seconds between two looks at what the configurations say."""
EMPTY = [{"op": "replace", "path": "/webhooks", "value": []}]


@FAULTS.row(
    "gitops-loop",
    minutes=4.5,
    broken="never-repairs",
    caught_by="seconds until all was right: spoilt no more",
    refuses=True,
)
def loop(scenario: Scenario) -> None:
    """Apply the webhook configurations every five seconds; spoil, blank and empty them as often."""
    made = scenario.testbed.installed
    before = made.webhooks()
    path = Path(made.folder) / "gitops.yaml"
    path.write_text("\n---\n".join(map(json.dumps, installed.empty_configurations())))
    again(scenario, "spoilt", before, path)
    known = len(scenario.load.failures)
    again(scenario, "blanked", before, path)
    refused = [one for one in scenario.load.failures[known:] if one.by_webhook and one.wish.asks]
    scenario.figures["refused while blanked"] = len(refused)
    scenario.check("blanked, and no creation was refused", int(not refused))
    for name in ("emptied", "opened"):
        with unasked(scenario):
            again(scenario, name, before, path)
            scenario.ns.eventually(scenario.ns.holds_pods)


def again(scenario: Scenario, name: str, before: list[Object], path: Path) -> None:
    """Do a harm before each run of the tool, and bound for how long anything is wrong."""
    made, runs, left, longest = scenario.testbed.installed, 0, 0, 0.0
    right_at = time.monotonic()
    end = right_at + scenario.lasts(60, 10)
    while time.monotonic() < end:
        left += HARMS[name](made)
        scenario.testbed.plane.kubectl(
            "apply", "--server-side", "--force-conflicts", "-f", str(path)
        )
        runs += 1
        until = time.monotonic() + EVERY
        while time.monotonic() < until:
            scenario.go_on(LOOK)
            if made.webhooks() == before:
                right_at = time.monotonic()
            longest = max(longest, time.monotonic() - right_at)
    after = scenario.eventually(lambda: made.webhooks() == before, installed.REPAIR)
    scenario.figures |= {f"times {name}": runs, f"seconds {name} at most": round(longest, 1)}
    scenario.check(f"webhooks that were not {name}", left)
    scenario.check(
        f"seconds until all was right: {name} again and again", longest, installed.REPAIR
    )
    scenario.check(f"seconds until all was right: {name} no more", after, installed.REPAIR)


def spoil(made: installed.Installation) -> int:
    """Set failurePolicy Ignore in each webhook, and return how many do not have it."""
    seen = replace_in_all(made, "failurePolicy", "Ignore")
    return sum(one["failurePolicy"] != "Ignore" for one in seen)


def empty(made: installed.Installation) -> int:
    """Remove every webhook, and return how many are left."""
    options = ("holdfast", "--type=json", "-o", "json", "-p", json.dumps(EMPTY))
    seen = [json.loads(made.kubectl("patch", kind, *options)) for kind in installed.KINDS]
    return sum(len(each.get("webhooks") or ()) for each in seen)


def reopen(made: installed.Installation) -> int:
    """Do what `spoil` and `blank` do, so that everything is let through."""
    return spoil(made) + blank(made)


HARMS: Mapping[str, Callable[[installed.Installation], int]] = MappingProxyType(
    {"spoilt": spoil, "blanked": blank, "emptied": empty, "opened": reopen}
)
"""Each returns how many webhooks it has left unchanged."""


@contextmanager
def unasked(scenario: Scenario) -> Iterator[None]:
    """Create no pods that need Holdfast while the block lasts."""
    with scenario.testbed.vm_load.kept_down(), scenario.load.asking_nothing():
        yield
