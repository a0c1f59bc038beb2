"""Rows of the list of faults, the scenario they act on, and their results."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.webhook.errors import ClusterError
from tests.e2e.namespace import Namespace
from tests.faults.load import Load
from tests.faults.testbed import Testbed

BOUND = 60.0
"""Seconds after which a pod that is due, and well again, counts as stuck."""
Names = tuple[str, str]
"""A pod's namespace and name."""
Act = Callable[["Scenario"], None]
Span = tuple[float, float]
"""From when to when: seconds since 1970."""


@dataclass(frozen=True)
class Check:
    """One figure, and how much of it there may be."""

    found: float
    most: float

    @property
    def passed(self) -> bool:
        return self.found <= self.most

    def is_worse(self, other: Check) -> bool:
        return self.found - self.most > other.found - other.most


@dataclass(frozen=True)
class Fault:
    name: str
    group: int
    """The number of the group that this row belongs to; rows are listed by it."""
    act: Act
    """Does the harm, and puts right what does not come right by itself."""
    broken: str
    """The break in `tests.faults.broken` that has to make this row fail."""
    caught_by: str
    """The check that has to find it: a row that fails for another reason shows nothing."""
    refuses: bool = False
    """Whether pods that ask for something may be refused meanwhile."""
    outage: bool = False
    """Whether the API server itself may fail meanwhile."""
    halts: bool = False
    """Whether nothing can be released meanwhile; else pods are released on time all the same."""
    tested: bool = False
    """Whether `make test-slow` runs its short form."""
    prepare: Act | None = None
    """Creates what `act` needs, before the load begins."""
    verify: Act | None = None
    """Checks what comes of what was created, after the load has ended."""
    minutes: float = 1.5
    """How long its long form takes, about: what takes longest is begun first."""
    alone: bool = False
    """Whether its long form has the machine for itself: it measures how fast something goes, or
    takes all processors."""
    fills: bool = False
    """Whether it leaves thousands of pods behind: it is alone, and the last on its cluster."""


class Table(list[Fault]):
    """The rows of one module, which all belong to one group of the list."""

    def __init__(self, group: int) -> None:
        super().__init__()
        self._group = group

    def row(self, name: str, **fields: Any) -> Callable[[Act], Act]:
        """Add a row, with these fields of a Fault: the decorated function does the harm."""

        def add(act: Act) -> Act:
            self.append(Fault(name, self._group, act, **fields))
            return act

        return add


@dataclass
class Scenario:
    """The testbed and load that a row acts on, and its findings."""

    testbed: Testbed
    ns: Namespace
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
    """Due times of pods that a row creates, in seconds since 1970; none may be released earlier."""
    notes: list[str] = field(default_factory=list)
    """Notes for the investigation of a failed check."""
    mark: str = ""
    """Distinguishes this scenario's objects from others' in the same namespace."""

    def __post_init__(self) -> None:
        self.mark = self.mark or f"{self.source.randrange(16**6):06x}"

    def lasts(self, seconds: float, short: float) -> float:
        """Return how long something lasts: in full, or in the short form."""
        return short if self.short else seconds

    def go_on(self, seconds: float, short: float | None = None) -> None:
        time.sleep(seconds if short is None else self.lasts(seconds, short))

    def check(self, name: str, found: float, most: float = 0) -> None:
        """Note a figure that must be no more than `most`; of several by one name, the worst."""
        noted, known = Check(round(found, 3), most), self.checks.get(name)
        if known is None or noted.is_worse(known):
            self.checks[name] = noted

    def prepare(self, fault: Fault) -> None:
        if fault.prepare is not None:
            fault.prepare(self)

    def verify(self, fault: Fault) -> None:
        if fault.verify is not None:
            fault.verify(self)

    def act(self, fault: Fault) -> None:
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

    def run(self, fault: Fault) -> Scenario:
        """Do the harm of another row, in its short form, as a part of this one."""
        inner = Scenario(self.testbed, self.ns, self.load, self.source, short=True)
        try:
            inner.prepare(fault)
            inner.act(fault)
        finally:
            self.testbed.proxy.turn()
            self.halted += inner.halted
            self.refusals += inner.refusals
            self.outages += inner.outages
            self.apart += inner.apart
            self.own |= inner.own
        return inner

    def eventually(self, look: Callable[[], object], seconds: float = BOUND) -> float:
        """Wait until `look` is true, and return how many seconds it took; never raises.

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
    fault: Fault
    checks: dict[str, Check]
    figures: dict[str, float]
    said: str = ""
    """The error that stopped it; empty if it finished."""
    failures: Sequence[str] = ()
    """Messages of failed creations, the most frequent first, and other notes."""
    began: float = 0.0
    """Seconds since 1970."""
    took: Mapping[str, float] = field(default_factory=dict)
    """Seconds, of each part of it."""

    @property
    def seconds(self) -> float:
        return sum(self.took.values())

    @property
    def caught(self) -> bool:
        """Whether what was broken on purpose was found, by the check that is there for it."""
        check = self.checks.get(self.fault.caught_by)
        return check is not None and not check.passed

    @property
    def passed(self) -> bool:
        return not self.said and all(check.passed for check in self.checks.values())
