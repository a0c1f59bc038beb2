"""One row's run: the load, the harm, the cure, and the verdict."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import msgspec

from tests.e2e.world import Object, World, gates
from tests.faults.arena import Arena
from tests.faults.load import DELAY, GATE, SHORT_DELAY, Failure, Load
from webhook.cluster import Cluster
from webhook.errors import ClusterError

ROOM_SECONDS = 600.0
"""How long the namespaces of the rows before may take to be gone."""
CALM = 3.0
"""Seconds of load before the harm."""
AFTER, LAST = 6.0, 3.0
"""Seconds of load after it, and those at its end in which creations succeed again."""
LAST_FAILED = 0.2
"""The share of the last creations that may fail in the short form: six in ten ask, all of which
fail when nothing answers; a call or two that a crowded machine gives up is no more than this. In
the long form none may."""
SOAK = 10
"""The number in the list after which VMs are waited for even in the short form."""
BOUND = 60.0
"""Seconds after which a pod that is due, and well again, counts as stuck."""
SAID, MOST_SAID = 300, 3
"""How much is kept of what failed creations said: characters of each, and how many."""
CROWDED = 0.02
"""The share of creations that may time out in the short form where none should: the tests share
their machine, and a call that waits for a processor for 3 s is given up. No other failure is
excused."""
Span = tuple[float, float]
"""From when to when: seconds since 1970."""


@dataclass(frozen=True)
class Check:
    """One figure, and how much of it there may be."""

    found: float
    most: float

    @property
    def passed(self) -> bool:
        """Whether it is no more than that."""
        return self.found <= self.most

    def is_worse(self, other: Check) -> bool:
        """Whether it exceeds its bound by more than another does."""
        return self.found - self.most > other.found - other.most


@dataclass(frozen=True)
class Fault:
    """A row of the list."""

    name: str
    group: int
    """The number in the list."""
    act: Callable[[Scene], None]
    """Does the harm, and puts right what does not come right by itself."""
    means: str
    """What happens then, for the page that users read."""
    broken: str
    """By what of `tests.faults.broken` this row was seen to fail."""
    refuses: bool = False
    """Whether pods that ask for something may be refused meanwhile."""
    outage: bool = False
    """Whether the API server itself may fail meanwhile."""
    halts: bool = False
    """Whether nothing can be released meanwhile; else pods are released on time all the same."""
    tested: bool = False
    """Whether it is part of `make test`, in its short form."""


@dataclass
class Scene:
    """What a row acts on, and where it notes what it finds."""

    arena: Arena
    world: World
    load: Load
    source: random.Random
    short: bool
    checks: dict[str, Check] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    began: float = 0.0
    """When the harm began: seconds since 1970."""
    recovered: float = 0.0
    """When all was well again: seconds since 1970; the end of the act, where it is not noted."""
    halted: list[Span] = field(default_factory=list)
    """When nothing could be released."""
    apart: list[str] = field(default_factory=list)
    """Further namespaces that go when the row is over."""
    mark: str = ""
    """Tells what this scene makes from what others make in the same namespace."""

    def __post_init__(self) -> None:
        self.mark = self.mark or f"{self.source.randrange(16**6):06x}"

    def lasts(self, seconds: float, short: float) -> float:
        """Give how long something lasts: in full, or in the short form."""
        return short if self.short else seconds

    def go_on(self, seconds: float, short: float | None = None) -> None:
        """Let the load run on."""
        time.sleep(seconds if short is None else self.lasts(seconds, short))

    def check(self, name: str, found: float, most: float = 0) -> None:
        """Note a figure that must be no more than `most`; of several by one name, the worst."""
        noted, known = Check(round(found, 3), most), self.checks.get(name)
        if known is None or noted.is_worse(known):
            self.checks[name] = noted

    def act(self, fault: Fault) -> None:
        """Do the harm, and note when it was over."""
        self.began = time.time()
        fault.act(self)
        self.recovered = self.recovered or time.time()
        if fault.halts:
            self.halted.append((self.began, self.recovered))

    def eventually(self, look: Callable[[], object], seconds: float = BOUND) -> float:
        """Wait until something is so, and tell how many seconds that took; never raises.

        Where it does not become so, that is twice the time it had.
        """
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            try:
                if look():
                    return time.monotonic() - began
            except ClusterError:
                pass
            time.sleep(0.1)
        return 2 * seconds


@dataclass(frozen=True)
class Result:
    """What came of a row."""

    fault: Fault
    checks: dict[str, Check]
    figures: dict[str, float]
    said: str = ""
    """What stopped it, where it did not come to its end."""
    failures: Sequence[str] = ()
    """What creations failed with, the most frequent first."""

    @property
    def passed(self) -> bool:
        """Whether it came to its end, and every check holds."""
        return not self.said and all(check.passed for check in self.checks.values())


def run(fault: Fault, arena: Arena, *, seed: int, short: bool) -> Result:
    """Run a row in a namespace of its own."""
    source = random.Random(f"{seed} {fault.name}")
    _await_room(arena)
    world = World.in_new_namespace(arena.plane, f"{fault.name}-{source.randrange(16**6):06x}")
    load = Load(arena.plane, world.namespace, random.Random(source.random()))
    load.delay = SHORT_DELAY if short else DELAY
    scene = Scene(arena, world, load, source, short)
    try:
        with arena.machines.restarting(random.Random(source.random())), load.running():
            time.sleep(CALM)
            scene.act(fault)
            time.sleep(AFTER)
        judge(fault, scene)
        said = ""
    except Exception as exc:  # noqa: BLE001 - a row that breaks has failed, and others go on
        said = f"{type(exc).__name__}: {exc}"
    finally:
        arena.proxy.turn()
    spaces = [world.namespace, *scene.apart]
    arena.plane.kubectl("delete", "namespace", *spaces, "--wait=false", check=False)
    said_of = Counter(one.said[:SAID] for one in load.failures).most_common(MOST_SAID)
    return Result(fault, scene.checks, scene.figures, said, tuple(text for text, _ in said_of))


def _await_room(arena: Arena) -> None:
    """Wait until the rows before have left: thousands of their pods would fill the nodes."""
    phases = ("get", "namespaces", "--output=jsonpath={.items[*].status.phase}")
    end = time.monotonic() + ROOM_SECONDS
    while "Terminating" in arena.plane.kubectl(*phases) and time.monotonic() < end:
        time.sleep(1.0)


def judge(fault: Fault, scene: Scene) -> None:
    """Wait for what is still due, and hold every row to the same."""
    load, audit = scene.load, scene.arena.audit
    with closing(Cluster.connect(scene.arena.plane.kubeconfig)) as cluster:
        end = max([scene.recovered, *load.due.values()]) + BOUND
        while (held := _held(cluster, load.namespace)) and time.time() < end:
            time.sleep(0.5)
    scene.figures["seconds until all were released"] = round(time.time() - scene.recovered, 1)
    audit.read()
    at = {name: audit.releases[load.namespace, name] for name in load.due}
    tries = {name: [one.at for one in writes if one.may_have_worked] for name, writes in at.items()}
    bound = {name: audit.bindings.get((load.namespace, name), float("inf")) for name in load.due}
    early = {
        name
        for name, due in load.due.items()
        if any(one < due for one in [*tries[name], bound[name]])
    }
    late = [
        waited(due, max(tries[name]), scene.halted) for name, due in load.due.items() if tries[name]
    ]
    scene.check("loads without a delayed pod", int(not load.due))
    scene.check("early", len(early))
    scene.check("stuck", len(held))
    scene.check("seconds late, at most", max(late, default=0.0), BOUND)
    if not fault.outage:  # an API server or etcd that is killed forgets writes, and its log of them
        untold = [name for name in load.due if not tries[name]]
        scene.check("due pods without a release", len(untold))
    scene.check("delayed pods let through", len(load.ungated))
    scene.check("pods with other than one gate and one term", len(load.misshapen))
    with closing(Cluster.connect(scene.arena.plane.kubeconfig)) as cluster:
        scene.eventually(lambda: not _unbound(cluster, load.namespace))
        scene.check("released but never bound", len(_unbound(cluster, load.namespace)))
    judge_creations(fault, scene)
    if not scene.short or fault.group == SOAK:
        scene.figures["seconds until VMs ran"] = round(scene.arena.machines.settle(), 1)
        scene.check("loads without a restart of a VM", int(not scene.arena.machines.restarts))
    scene.check("sticky VMs astray", len(scene.arena.machines.astray()))
    scene.check("VMs' pods without their node", len(scene.arena.machines.unbidden()))
    scene.figures |= {
        "pods": load.made,
        "delayed": len(load.due),
        "restarts of VMs": scene.arena.machines.restarts,
    }


def waited(due: float, until: float, halted: Iterable[Span]) -> float:
    """Tell for how many seconds a pod was due, and could have been released, before it was."""
    late, reached = until - due, due
    for began, ended in sorted(halted):
        late -= max(0.0, min(until, ended) - max(reached, began))
        reached = max(reached, ended)
    return late


def judge_creations(fault: Fault, scene: Scene) -> None:
    """Check which creations failed, and that they succeed in the end."""
    load = scene.load
    refused = [one for one in load.failures if one.by_webhook]
    others = [one for one in load.failures if not one.by_webhook]
    asking = [one for one in refused if one.wish.asks]
    crowded = CROWDED * load.made if scene.short else 0
    scene.check("creations refused that ask nothing", len(refused) - len(asking))
    if not fault.refuses:
        _excuse(scene, "creations refused that ask", asking, crowded)
    if not fault.outage:
        _excuse(scene, "creations failed by the API server", others, crowded)
    end = max(load.begun, default=0.0) - LAST
    last = sum(at > end for at in load.begun)
    failed = sum(one.at > end for one in load.failures)
    most = scene.lasts(0.0, LAST_FAILED)
    scene.check("share of the last creations that failed", failed / max(last, 1), most)
    scene.figures |= {"refused": len(refused), "failed": len(others)}


def _excuse(scene: Scene, name: str, failures: Sequence[Failure], most: float) -> None:
    timed_out = sum(one.timed_out for one in failures)
    scene.check(name, len(failures) - timed_out)
    scene.check(f"{name}: timed out", timed_out, most)


def _held(cluster: Cluster, namespace: str) -> list[str]:
    """Name the pods of the load that carry our gate still."""
    return [name for name, held in _waiting(cluster, namespace) if GATE in held]


def _unbound(cluster: Cluster, namespace: str) -> list[str]:
    """Name the pods of the load that have no gate, and no node."""
    return [name for name, held in _waiting(cluster, namespace) if not held]


def _waiting(cluster: Cluster, namespace: str) -> list[tuple[str, list[str]]]:
    """Name the pods of the load that have no node, and their gates."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    query = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
    try:
        items: list[Object] = msgspec.json.decode(cluster.request("GET", path, query=query))[
            "items"
        ]
    except ClusterError:
        return [("the API server does not answer", [GATE])]
    named = [(str(one["metadata"]["name"]), gates(one)) for one in items]
    return [(name, held) for name, held in named if name.startswith("load-")]
