"""Run a row: load, fault, recovery and checks."""

import random
import time
from collections import Counter
from collections.abc import Callable

from controlplane.launcher import ControlPlane
from tests.e2e.namespace import Namespace
from tests.faults.assertions import LOAD_AFTER, evaluate
from tests.faults.load import DELAY, SHORT_DELAY, Load
from tests.faults.scenario import Fault, Result, Scenario
from tests.faults.testbed import Testbed

CLEANUP_SECONDS = 600.0
"""How long the deletion of earlier rows' pods may take."""
MAX_LEFT = 1_000
"""Pods of earlier rows that may be left: more would fill the nodes."""
LOAD_BEFORE = 3.0
"""Seconds of load before the fault."""
MESSAGE_LENGTH, MAX_MESSAGES = 300, 3
"""How much of failed creations' messages is kept: characters of each, and how many messages."""


def run(fault: Fault, testbed: Testbed, *, seed: int, short: bool) -> Result:
    rng = random.Random(f"{seed} {fault.name}")
    began = time.time()
    _wait_for_cleanup(testbed)
    ns = Namespace.create_new(testbed.plane, f"{fault.name}-{rng.randrange(16**6):06x}")
    load = Load(testbed.plane, ns.namespace, random.Random(rng.random()))
    load.delay = SHORT_DELAY if short else DELAY
    scenario = Scenario(testbed, ns, load, rng, short)

    def inject() -> None:
        fault.prepare(scenario)
        with testbed.vm_load.restarting(random.Random(rng.random())), load.running():
            time.sleep(LOAD_BEFORE)
            scenario.inject(fault)
            end = time.time() + LOAD_AFTER
            latest = end + load.delay[1] - LOAD_AFTER  # not later than earlier pods
            with load.due_within(end, latest):
                time.sleep(LOAD_AFTER)

    steps = (inject, lambda: fault.verify(scenario), lambda: evaluate(fault, scenario))
    error = "; ".join(filter(None, map(_attempt, steps)))
    testbed.proxy.turn()
    namespaces = [ns.namespace, *scenario.extra_namespaces]
    testbed.plane.kubectl("delete", "namespace", *namespaces, "--wait=false", check=False)
    messages = Counter(failure.message[:MESSAGE_LENGTH] for failure in load.failures)
    frequent = [message for message, _ in messages.most_common(MAX_MESSAGES)]
    texts = (*frequent, *scenario.notes[:MAX_MESSAGES])
    seconds = time.time() - began
    return Result(fault, scenario.checks, scenario.figures, error, texts, began, seconds)


def _attempt(action: Callable[[], None]) -> str:
    """Run an action and return its error: that row has failed, and the other rows still run."""
    try:
        action()
    except Exception as exc:  # noqa: BLE001 - as above
        return f"{type(exc).__name__}: {exc}"
    return ""


def _wait_for_cleanup(testbed: Testbed) -> None:
    """Wait until pods of earlier rows are deleted: thousands of them would fill the nodes."""
    end = time.monotonic() + CLEANUP_SECONDS
    while _count_pods(testbed.plane) > MAX_LEFT and time.monotonic() < end:
        time.sleep(1.0)


def _count_pods(plane: ControlPlane) -> int:
    pod_list = plane.api.get("/api/v1/pods?limit=1")
    assert pod_list is not None
    return len(pod_list["items"]) + int(pod_list["metadata"].get("remainingItemCount", 0))
