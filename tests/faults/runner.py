"""Run a row: load, fault, recovery and verdict."""

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import msgspec

from holdfast.webhook.kube.client import Cluster
from tests.e2e.namespace import Namespace
from tests.faults.assertions import AFTER, evaluate
from tests.faults.load import DELAY, SHORT_DELAY, Load
from tests.faults.scenario import Fault, Result, Scenario
from tests.faults.testbed import Testbed

ROOM_SECONDS = 600.0
"""How long pods of the rows before may take to be gone."""
FEW = 1_000
"""Pods that may be left of them: more would fill the nodes."""
CALM = 3.0
"""Seconds of load before the harm."""
SAID, MOST_SAID = 300, 3
"""How much is kept of what failed creations said: characters of each, and how many."""


@dataclass
class Laps:
    """How long each part of a row takes."""

    took: dict[str, float] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)

    def note(self, part: str) -> None:
        now = time.monotonic()
        self.took[part], self.since = round(now - self.since, 1), now


def run(fault: Fault, testbed: Testbed, *, seed: int, short: bool) -> Result:
    source = random.Random(f"{seed} {fault.name}")
    began, laps = time.time(), Laps()
    _await_room(testbed)
    ns = Namespace.create_new(testbed.plane, f"{fault.name}-{source.randrange(16**6):06x}")
    load = Load(testbed.plane, ns.namespace, random.Random(source.random()))
    load.delay = SHORT_DELAY if short else DELAY
    scenario = Scenario(testbed, ns, load, source, short)
    laps.note("room")

    def harm() -> None:
        scenario.prepare(fault)
        laps.note("preparation")
        with testbed.vm_load.restarting(random.Random(source.random())), load.running():
            time.sleep(CALM)
            scenario.act(fault)
            end = time.time() + AFTER
            with load.due_within(end, end + load.delay[1] - AFTER):  # no later than those before
                time.sleep(AFTER)

    said = [_attempt(harm)]
    laps.note("load")
    said.append(_attempt(lambda: scenario.verify(fault)))
    said.append(_attempt(lambda: evaluate(fault, scenario)))
    testbed.proxy.turn()
    spaces = [ns.namespace, *scenario.apart]
    testbed.plane.kubectl("delete", "namespace", *spaces, "--wait=false", check=False)
    laps.note("verdict")
    said_of = Counter(one.said[:SAID] for one in load.failures).most_common(MOST_SAID)
    texts = (*(text for text, _ in said_of), *scenario.notes[:MOST_SAID])
    stopped = "; ".join(filter(None, said))
    return Result(fault, scenario.checks, scenario.figures, stopped, texts, began, laps.took)


def _attempt(deed: Callable[[], None]) -> str:
    """Do something, and return what broke it: a row that breaks has failed, and others go on."""
    try:
        deed()
    except Exception as exc:  # noqa: BLE001 - as above
        return f"{type(exc).__name__}: {exc}"
    return ""


def _await_room(testbed: Testbed) -> None:
    """Wait until the rows before have left: thousands of their pods would fill the nodes."""
    end = time.monotonic() + ROOM_SECONDS
    with closing(Cluster.connect(testbed.plane.kubeconfig)) as cluster:
        while _pods(cluster) > FEW and time.monotonic() < end:
            time.sleep(1.0)


def _pods(cluster: Cluster) -> int:
    answer = cluster.request("GET", "/api/v1/pods", query={"limit": 1})
    seen = msgspec.json.decode(answer)
    return len(seen["items"]) + int(seen["metadata"].get("remainingItemCount", 0))
