"""The rows of the list of faults, the scenario in which a row runs, and its result."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.errors import ControlPlaneError
from holdfast.webhook.errors import ClusterError
from tests.e2e.namespace import Namespace
from tests.faults.audit import PodKey
from tests.faults.load import Load
from tests.faults.testbed import Testbed

BOUND = 60.0
"""Seconds after its due time, or after the fault, at which a held pod counts as stuck."""
Action = Callable[["Scenario"], None]
Span = tuple[float, float]
"""Start and end: seconds since 1970."""


@dataclass(frozen=True)
class Check:
    """A measured value and its upper limit."""

    value: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.value <= self.limit

    def is_worse(self, other: Check) -> bool:
        return self.value - self.limit > other.value - other.limit


def nothing(_scenario: Scenario) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Fault:
    name: str
    inject: Action
    """Causes the fault, and undoes whatever does not recover without help."""
    broken: str
    """The break in `tests.faults.broken` that has to make this row fail."""
    caught_by: str
    """The check that has to fail then: a row that fails for another reason proves nothing."""
    rejects: bool = False
    """Whether annotated pods may be rejected during the fault."""
    outage: bool = False
    """Whether the API server itself may fail during the fault."""
    halts_releases: bool = False
    """Whether nothing can be released during the fault; otherwise pods are released on time."""
    tested: bool = False
    """Whether `make test-slow` runs its short form."""
    prepare: Action = nothing
    """Creates what `inject` needs, before the load starts."""
    verify: Action = nothing
    """Checks what was created, after the load has ended."""
    minutes: float = 1.5
    """About how long its long form takes: the longest rows start first."""
    alone: bool = False
    """Whether its long form needs the machine to itself: it measures speed, or uses all
    processors."""
    fills: bool = False
    """Whether it leaves thousands of pods behind: it runs alone, and last on its cluster."""


class Table(list[Fault]):
    """The rows of one module."""

    def row(self, name: str, **fields: Any) -> Callable[[Action], Action]:
        """Add a row with these fields of a Fault; the decorated function causes the fault."""

        def add(inject: Action) -> Action:
            self.append(Fault(name, inject, **fields))
            return inject

        return add


@dataclass
class Scenario:
    """The testbed and the load of a row, and what the row measures."""

    testbed: Testbed
    ns: Namespace
    load: Load
    rng: random.Random
    short: bool
    checks: dict[str, Check] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    began: float = 0.0
    """When the fault started: seconds since 1970."""
    recovered: float = 0.0
    """When the fault was over: seconds since 1970; by default, when `inject` returned."""
    halted: list[Span] = field(default_factory=list)
    """When nothing could be released."""
    rejections: list[Span] = field(default_factory=list)
    """When annotated pods could be rejected."""
    outages: list[Span] = field(default_factory=list)
    """When the API server itself could fail."""
    extra_namespaces: list[str] = field(default_factory=list)
    """Further namespaces, which are deleted at the end of the row."""
    due: float = 0.0
    """When the pods that `prepare` created fall due, if set: seconds since 1970."""
    own: dict[PodKey, float] = field(default_factory=dict)
    """Due times of pods that a row creates, in seconds since 1970; none may be released earlier."""
    notes: list[str] = field(default_factory=list)
    """Notes for the investigation of a failed check."""
    mark: str = ""
    """Distinguishes this scenario's objects from others' in the same namespace."""

    def __post_init__(self) -> None:
        self.mark = self.mark or f"{self.rng.randrange(16**6):06x}"

    def long_or_short(self, long: float, short: float) -> float:
        """Return the value for the long or the short form, whichever is running."""
        return short if self.short else long

    def wait(self, seconds: float, short: float | None = None) -> None:
        """Sleep while the load goes on; `short` is for the short form, if it differs."""
        time.sleep(seconds if short is None else self.long_or_short(seconds, short))

    def check(self, name: str, value: float, limit: float = 0) -> None:
        """Record a value that must not exceed `limit`; of several with one name, keep the worst."""
        check, previous = Check(round(value, 3), limit), self.checks.get(name)
        if previous is None or check.is_worse(previous):
            self.checks[name] = check

    def inject(self, fault: Fault) -> None:
        self.began = time.time()
        try:
            fault.inject(self)
        finally:
            ended = time.time()
            self.recovered = self.recovered or ended
            if fault.halts_releases:
                self.halted.append((self.began, self.recovered))
            if fault.rejects:
                self.rejections.append((self.began, ended))
            if fault.outage:
                self.outages.append((self.began, ended))

    def run(self, fault: Fault) -> Scenario:
        """Inject the fault of another row, in its short form, as a part of this row."""
        inner = Scenario(self.testbed, self.ns, self.load, self.rng, short=True)
        try:
            fault.prepare(inner)
            inner.inject(fault)
        finally:
            self.testbed.proxy.turn()
            self.halted += inner.halted
            self.rejections += inner.rejections
            self.outages += inner.outages
            self.extra_namespaces += inner.extra_namespaces
            self.own |= inner.own
        return inner

    def eventually(self, condition: Callable[[], object], seconds: float = BOUND) -> float:
        """Wait until a condition is true, and return how many seconds that took.

        Return twice `seconds` if it is not true in time. A failed request counts as not true.
        """
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            try:
                if condition():
                    return time.monotonic() - began
            except (ClusterError, ControlPlaneError):
                pass
            time.sleep(0.1)
        return 2 * seconds


@dataclass(frozen=True)
class Result:
    fault: Fault
    checks: dict[str, Check]
    figures: dict[str, float]
    error: str = ""
    """The error that stopped the row; empty if it finished."""
    failures: Sequence[str] = ()
    """Messages of failed creations, the most frequent first, and other notes."""
    began: float = 0.0
    """Seconds since 1970."""
    seconds: float = 0.0
    """How long the row took."""

    @property
    def caught(self) -> bool:
        """Whether the check that has to find the break has failed."""
        check = self.checks.get(self.fault.caught_by)
        return check is not None and not check.passed

    @property
    def passed(self) -> bool:
        return not self.error and all(check.passed for check in self.checks.values())
