"""A GitOps tool applies the webhook configurations repeatedly, and somebody changes them."""

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

FAULTS = Table()

INTERVAL = 5.0
"""Seconds between two runs of the tool."""
POLL_INTERVAL = 1.0
"""Seconds between two reads of the configurations."""
EMPTY = [{"op": "replace", "path": "/webhooks", "value": []}]


@FAULTS.row(
    "gitops-loop",
    minutes=4.5,
    broken="never-repairs",
    caught_by="seconds until restored at the end: ignore failures",
    rejects=True,
)
def loop(scenario: Scenario) -> None:
    """Apply the webhook configurations every five seconds, and change them each time before."""
    installation = scenario.testbed.installed
    webhooks = installation.webhooks()
    path = Path(installation.folder) / "gitops.yaml"
    path.write_text("\n---\n".join(map(json.dumps, installed.empty_configurations())))
    repeat(scenario, "ignore failures", webhooks, path)
    failure_count = len(scenario.load.failures)
    repeat(scenario, "blank CA bundles", webhooks, path)
    failures = scenario.load.failures[failure_count:]
    was_rejected = any(failure.by_webhook and failure.pod.annotated for failure in failures)
    scenario.check("no pods rejected while blanked", int(not was_rejected))
    for name in ("remove webhooks", "ignore failures and blank CA bundles"):
        with no_annotated_pods(scenario):
            repeat(scenario, name, webhooks, path)
            scenario.ns.eventually(scenario.ns.holds_pods)


def repeat(scenario: Scenario, name: str, webhooks: list[Object], path: Path) -> None:
    """Make a change before each run of the tool, and check how soon it is reverted."""
    installation, unchanged, longest = scenario.testbed.installed, 0, 0.0
    restored_at = time.monotonic()
    end = restored_at + scenario.long_or_short(60, 10)
    while time.monotonic() < end:
        unchanged += CHANGES[name](installation)
        scenario.testbed.plane.kubectl(
            "apply", "--server-side", "--force-conflicts", "-f", str(path)
        )
        until = time.monotonic() + INTERVAL
        while time.monotonic() < until:
            scenario.wait(POLL_INTERVAL)
            if installation.webhooks() == webhooks:
                restored_at = time.monotonic()
            longest = max(longest, time.monotonic() - restored_at)
    seconds = scenario.eventually(lambda: installation.webhooks() == webhooks, installed.REPAIR)
    scenario.check(f"unchanged webhooks: {name}", unchanged)
    scenario.check(f"maximum seconds until restored: {name}", longest, installed.REPAIR)
    scenario.check(f"seconds until restored at the end: {name}", seconds, installed.REPAIR)


def ignore_failures(installation: installed.Installation) -> int:
    """Set failurePolicy Ignore in each webhook, and return how many webhooks do not have it."""
    webhooks = replace_in_all(installation, "failurePolicy", "Ignore")
    return sum(webhook["failurePolicy"] != "Ignore" for webhook in webhooks)


def remove_webhooks(installation: installed.Installation) -> int:
    """Remove every webhook, and return how many are left."""
    options = ("holdfast", "--type=json", "-o", "json", "-p", json.dumps(EMPTY))
    configurations = [
        json.loads(installation.kubectl("patch", kind, *options)) for kind in installed.KINDS
    ]
    return sum(len(configuration.get("webhooks") or ()) for configuration in configurations)


def ignore_and_blank(installation: installed.Installation) -> int:
    """Set failurePolicy Ignore and blank the CA bundles, so that all pods are admitted."""
    return ignore_failures(installation) + blank(installation)


CHANGES: Mapping[str, Callable[[installed.Installation], int]] = MappingProxyType(
    {
        "ignore failures": ignore_failures,
        "blank CA bundles": blank,
        "remove webhooks": remove_webhooks,
        "ignore failures and blank CA bundles": ignore_and_blank,
    }
)
"""Each returns how many webhooks it did not change."""


@contextmanager
def no_annotated_pods(scenario: Scenario) -> Iterator[None]:
    """Create no pods that Holdfast reviews while the block runs."""
    with scenario.testbed.vm_load.blocked_by_quota(), scenario.load.without_annotations():
        yield
