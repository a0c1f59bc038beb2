"""`make faults`: the list of faults, on the real control plane, under a steady load."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from tests.faults import report
from tests.faults.arena import arena
from tests.faults.play import run
from tests.faults.report import Run
from tests.faults.scene import Fault, Result
from tests.faults.table import FAULTS


def main() -> int:
    """Run what the command line names; 0 when all went as it should."""
    given = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 160)
    seed = given.seed if given.seed is not None else random.randrange(10**6)
    whole = Run(seed, short=given.short, broken=given.broken)
    console.print(f"seed {seed}")
    chosen = [fault for fault in FAULTS if not given.only or fault.name in given.only]
    results = report.read(whole, chosen, whole.path) if given.resume else []
    done = {result.fault.name for result in results}
    left = [fault for fault in chosen if fault.name not in done]
    clusters = [[fault] for fault in left] if given.broken else [left]
    for faults in filter(None, clusters):
        try:
            for result in _rows(faults, whole=whole, console=console):
                results.append(result)
                report.write(results, whole, whole.path)
        except Exception as exc:
            if not given.broken:
                raise
            said = f"{type(exc).__name__}: {exc}"  # too broken to come up: nothing was shown by it
            console.print(f"{faults[0].name} {faults[0].broken}: no cluster: {said}", markup=False)
            results.append(Result(faults[0], {}, {}, said))
    report.show(results, seed=seed, console=console)
    if given.broken:
        return int(not all(result.caught for result in results))
    return int(not all(result.passed for result in results))


def _rows(faults: Sequence[Fault], *, whole: Run, console: Console) -> Iterator[Result]:
    """Run rows on one cluster, and tell of each."""
    broken = faults[0].broken if whole.broken else ""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-faults-") as folder,
        arena(Path(folder), broken=broken) as place,
    ):
        for fault in faults:
            began = time.monotonic()
            result = run(fault, place, seed=whole.seed, short=whole.short)
            verdict = "passed" if result.passed else "failed"
            if broken:
                verdict += f" (broken by {broken}: {'caught' if result.caught else 'not caught'})"
            took = time.monotonic() - began
            console.print(f"{fault.name}: {verdict} in {took:.0f} s {result.said}")
            for name, check in result.checks.items():
                if not check.passed:
                    console.print(f"    {name}: {check.found:g}, at most {check.most:g}")
            for text in () if result.passed else result.failures:
                console.print(f"    said: {text}", markup=False)
            yield result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[fault.name for fault in FAULTS], default=[])
    parser.add_argument("--seed", type=int, help="what is random follows from it; else a new one")
    parser.add_argument("--short", action="store_true", help="each row in its short form")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="leave out rows that a run of the same seed and form has done before",
    )
    parser.add_argument(
        "--broken",
        action="store_true",
        help="run each row on a Holdfast that is broken on purpose: all have to catch it",
    )
    given = parser.parse_args()
    if given.resume and given.seed is None:
        parser.error("--resume goes on with a run: name its --seed, which it printed first")
    return given


if __name__ == "__main__":
    sys.exit(main())
