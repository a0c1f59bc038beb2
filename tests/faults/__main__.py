"""`make faults`: the list of faults, on the real control plane, under a steady load."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console

from tests.faults import report
from tests.faults.arena import arena
from tests.faults.scene import Fault, Result, run
from tests.faults.table import FAULTS


def main() -> int:
    """Run what the command line names; 0 when all went as it should."""
    given = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 160)
    seed = given.seed if given.seed is not None else random.randrange(10**6)
    console.print(f"seed {seed}")
    chosen = [fault for fault in FAULTS if not given.only or fault.name in given.only]
    if given.broken:
        chosen.sort(key=lambda fault: fault.broken)
    results: list[Result] = []
    breaks = groupby(chosen, key=lambda fault: fault.broken if given.broken else "")
    for broken, faults in breaks:
        results += _rows(list(faults), broken=broken, seed=seed, short=given.short, console=console)
    report.show(results, seed=seed, console=console)
    if given.broken:
        return int(any(result.passed for result in results))
    report.write(results, seed=seed)
    return int(not all(result.passed for result in results))


def _rows(
    faults: Sequence[Fault], *, broken: str, seed: int, short: bool, console: Console
) -> list[Result]:
    results = []
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-faults-") as folder,
        arena(Path(folder), broken=broken) as place,
    ):
        for fault in faults:
            began = time.monotonic()
            result = run(fault, place, seed=seed, short=short)
            verdict = "passed" if result.passed else "failed"
            took = time.monotonic() - began
            console.print(f"{fault.name} {broken}: {verdict} in {took:.0f} s {result.said}")
            for name, check in result.checks.items():
                if not check.passed:
                    console.print(f"    {name}: {check.found:g}, at most {check.most:g}")
            for text in () if result.passed else result.failures:
                console.print(f"    said: {text}", markup=False)
            results.append(result)
    return results


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[fault.name for fault in FAULTS], default=[])
    parser.add_argument("--seed", type=int, help="what is random follows from it; else a new one")
    parser.add_argument("--short", action="store_true", help="each row in its short form")
    parser.add_argument(
        "--broken",
        action="store_true",
        help="run each row on a Holdfast that is broken on purpose: all have to fail",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
