"""What a row of the list is, what it acts on, and what came of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.e2e.world import World
from tests.faults.arena import Arena
from tests.faults.load import Load
from webhook.errors import ClusterError

BOUND = 60.0
"""Seconds after which a pod that is due, and well again, counts as stuck."""
Names = tuple[str, str]
"""A pod's namespace and name."""
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
    """By what of `tests.faults.broken` this row has to fail."""
    caught_by: str
    """The check that has to find it: a row that fails for another reason shows nothing."""
    refuses: bool = False
    """Whether pods that ask for something may be refused meanwhile."""
    outage: bool = False
    """Whether the API server itself may fail meanwhile."""
    halts: bool = False
    """Whether nothing can be released meanwhile; else pods are released on time all the same."""
    tested: bool = False
    """Whether it is part of `make test`, in its short form."""
    prepare: Callable[[Scene], None] | None = None
    """Makes, before the load begins, what the act needs."""
    minutes: float = 1.5
    """How long its long form takes, about: what takes longest is begun first."""
    alone: bool = False
    """Whether its long form has the machine for itself: it measures how fast something goes, or
    takes all processors."""
    fills: bool = False
    """Whether it leaves thousands of pods behind: it is alone, and the last on its cluster."""


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
    refusals: list[Span] = field(default_factory=list)
    """When pods that ask for something could be refused."""
    outages: list[Span] = field(default_factory=list)
    """When the API server itself could fail."""
    apart: list[str] = field(default_factory=list)
    """Further namespaces that go when the row is over."""
    due: float = 0.0
    """When what a row has prepared falls due: seconds since 1970, where it matters."""
    own: dict[Names, float] = field(default_factory=dict)
    """When the pods are due that a row makes for itself, and that nobody may release before:
    seconds since 1970."""
    notes: list[str] = field(default_factory=list)
    """What helps whoever looks into a check that failed."""
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

    def prepare(self, fault: Fault) -> None:
        """Make what the harm needs."""
        if fault.prepare is not None:
            fault.prepare(self)

    def act(self, fault: Fault) -> None:
        """Do the harm, and note when it was over."""
        self.began = time.time()
        try:
            fault.act(self)
        finally:
            ended = time.time()
            self.recovered = self.recovered or ended
            if fault.halts:
                self.halted.append((self.began, self.recovered))
            if fault.refuses:
                self.refusals.append((self.began, ended))
            if fault.outage:
                self.outages.append((self.began, ended))

    def play(self, fault: Fault) -> Scene:
        """Do the harm of another row, in its short form, as a part of this one."""
        inner = Scene(self.arena, self.world, self.load, self.source, short=True)
        try:
            inner.prepare(fault)
            inner.act(fault)
        finally:
            self.arena.proxy.turn()
            self.halted += inner.halted
            self.refusals += inner.refusals
            self.outages += inner.outages
            self.apart += inner.apart
            self.own |= inner.own
        return inner

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
    """What creations failed with, the most frequent first, and what else was noted."""
    began: float = 0.0
    """Seconds since 1970."""
    took: Mapping[str, float] = field(default_factory=dict)
    """Seconds, of each part of it."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return sum(self.took.values())

    @property
    def caught(self) -> bool:
        """Whether what was broken on purpose was found, by the check that is there for it."""
        check = self.checks.get(self.fault.caught_by)
        return check is not None and not check.passed

    @property
    def passed(self) -> bool:
        """Whether it came to its end, and every check holds."""
        return not self.said and all(check.passed for check in self.checks.values())
