"""`make faults`: the list of faults, on the real control plane, under a steady load."""

import argparse
import random
import signal
import sys
import time

from rich.console import Console

from tests.faults import report, summary
from tests.faults.lanes import results
from tests.faults.product import product
from tests.faults.report import Run
from tests.faults.scenario import Result
from tests.faults.table import FAULTS

LANES = 2
"""A cluster under its load takes about one processor."""
_STOPPED = 128 + signal.SIGINT


def main() -> int:
    """Run what the command line names; 0 when all went as it should."""
    given = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 160)
    seed = given.seed if given.seed is not None else random.randrange(10**6)
    whole = Run(seed, short=given.short, broken=given.broken, product=product())
    console.print(f"seed {seed}, product {whole.product}")
    chosen = [fault for fault in FAULTS if not given.only or fault.name in given.only]
    places = {fault.name: place for place, fault in enumerate(FAULTS)}
    found = report.read(whole, chosen, whole.path) if given.resume else []
    done = {result.fault.name for result in found}
    began = time.monotonic()
    left = [one for one in chosen if one.name not in done]
    try:
        for result in results(left, whole, given.lanes):
            found = sorted([*found, result], key=lambda one: places[one.fault.name])
            report.write(found, whole, whole.path)
            _print_result(result, whole, console)
    except KeyboardInterrupt:
        console.print(f"stopped after {len(found)} rows; --resume --seed {seed} runs the others")
        return _STOPPED
    report.show(found, seed=seed, console=console)
    console.print(f"results: {whole.path}", markup=False)
    if len(found) == len(FAULTS) and not (whole.short or whole.broken):
        summary.write(whole.path)
        console.print("commit the summary: python -m docs.generate writes it to its page")
    failed = [one.fault.name for one in found if not (one.caught if whole.broken else one.passed)]
    minutes = (time.monotonic() - began) / 60
    wrong = f"{len(failed)} of {len(found)} rows failed: {', '.join(failed)}"
    verdict = wrong if failed else f"all {len(found)} rows went as they should"
    console.print(f"{minutes:.0f} minutes, rows at a time: {given.lanes}; {verdict}", markup=False)
    return int(bool(failed))


def _print_result(result: Result, whole: Run, console: Console) -> None:
    verdict = "passed" if result.passed else "failed"
    if whole.broken:
        caught = "caught" if result.caught else "not caught"
        verdict += f" (broken by {result.fault.broken}: {caught})"
    parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in result.took.items())
    text = f"{result.fault.name}: {verdict} in {result.seconds:.0f} s ({parts}) {result.said}"
    console.print(text, markup=False)
    for name, check in result.checks.items():
        if not check.passed:
            console.print(f"    {name}: {check.found:g}, at most {check.most:g}", markup=False)
    for text in () if result.passed else result.failures:
        console.print(f"    said: {text}", markup=False)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        choices=[fault.name for fault in FAULTS],
        default=[],
        metavar="NAME",
        help="rows to run; else all",
    )
    parser.add_argument("--seed", type=int, help="what is random follows from it; else a new one")
    parser.add_argument("--short", action="store_true", help="each row in its short form")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="leave out rows that a run of the same seed and form has done before",
    )
    parser.add_argument(
        "--lanes",
        type=int,
        help=f"clusters that take rows at the same time; {LANES} in the long form, else one",
    )
    parser.add_argument(
        "--broken",
        action="store_true",
        help="run each row on a Holdfast that is broken on purpose: all have to catch it",
    )
    given = parser.parse_args()
    if given.resume and given.seed is None:
        parser.error("--resume goes on with a run: name its --seed, which it printed first")
    if given.lanes is None:
        given.lanes = 1 if given.short or given.broken else LANES
    return given


if __name__ == "__main__":
    sys.exit(main())
