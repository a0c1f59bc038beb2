"""The tables of the faults that are tried and of the runs whose figures are kept."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import datetime

from docs.tables import table
from tests.faults import records
from tests.faults.broken import BREAKS
from tests.faults.judge import SOAK
from tests.faults.scene import Fault
from tests.faults.table import FAULTS

NEAR = 0.5
"""The share of what a check allows from which on its figures are told."""


def faults() -> str:
    """Make the table of the faults, from the rows that are run."""
    rows = [
        (f"`{each.name}`", _first_line(each.act), each.means, _failing(each)) for each in FAULTS
    ]
    return table(("fault", "what is done", "what then", "creations meanwhile"), rows)


def _failing(fault: Fault) -> str:
    if fault.group == SOAK:
        return "as with what comes"
    if fault.outage:
        return "may fail"
    return "may be refused where they ask" if fault.refuses else "none fails"


def alone() -> str:
    """Name the rows that have the machine for themselves."""
    return "\n".join(f"- `{each.name}`" for each in FAULTS if each.alone)


def runs() -> str:
    """Make the table of the runs of all rows whose figures are kept."""
    kept = records.read_all()
    if not kept:
        return "None yet on the product as it is."
    asked = ("seed", "begun", "product")
    counted = ("rows run", "failed", "pods", "of them delayed", "VMs restarted")
    found = ("early", "stuck", "astray", "latest release")
    rows = [
        (
            str(each.seed),
            f"{datetime.fromisoformat(each.began):%Y-%m-%d %H:%M}",
            f"`{each.product}`",
            f"{each.rows} of {len(FAULTS)}",
            ", ".join(f"`{name}`" for name in each.failed) or "none",
            f"{each.pods:,}",
            f"{each.delayed:,}",
            f"{each.restarts:,}",
            str(each.early),
            str(each.stuck),
            str(each.astray),
            f"{each.latest:.1f} s",
        )
        for each in kept
    ]
    return table((*asked, *counted, *found), rows)


def near() -> str:
    """Make the table of what came near to a bound in whole runs, of the last one's product."""
    whole = [each for each in records.read_all() if each.rows == len(FAULTS)]
    whole = [each for each in whole if each.product == whole[-1].product]
    rows = [
        (f"`{fault}`", check, f"{_most(found):.4g}", *map(_found, found))
        for (fault, check), found in records.nearest(whole, NEAR)
    ]
    return table(("fault", "check", "allowed", *(str(each.seed) for each in whole)), rows)


def _most(found: Iterable[records.Found]) -> float:
    return max(each.most for each in found if each)


def _found(found: records.Found) -> str:
    return f"{found.found:.3g}" if found else "-"


def breaks() -> str:
    """Make the table of how each row was made to fail."""
    rows = [(f"`{each.name}`", _first_line(BREAKS[each.broken]), each.caught_by) for each in FAULTS]
    return table(("fault", "broken on purpose", "the check that fails then"), rows)


def _first_line(described: Callable[..., object]) -> str:
    return (inspect.getdoc(described) or "").partition("\n")[0]
