"""`make faults`: run all faults on the real control plane, under a steady load."""

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
"""A cluster with its load uses about one processor."""
_STOPPED = 128 + signal.SIGINT


def main() -> int:
    """Run the rows that the command line selects; return 0 if all passed."""
    options = _parse_arguments()
    console = Console(width=None if sys.stdout.isatty() else 160)
    seed = options.seed if options.seed is not None else random.randrange(10**6)
    run = Run(seed, short=options.short, broken=options.broken, product=product())
    console.print(f"seed {seed}, product {run.product}")
    faults = [fault for fault in FAULTS if not options.only or fault.name in options.only]
    positions = {fault.name: position for position, fault in enumerate(FAULTS)}
    outcomes = report.read(run, faults, run.path) if options.resume else []
    done_names = {result.fault.name for result in outcomes}
    began = time.monotonic()
    waiting_faults = [fault for fault in faults if fault.name not in done_names]
    try:
        for result in results(waiting_faults, run, options.lanes):
            outcomes = sorted(
                [*outcomes, result], key=lambda outcome: positions[outcome.fault.name]
            )
            report.write(outcomes, run, run.path)
            _print_result(result, run, console)
    except KeyboardInterrupt:
        console.print(
            f"stopped after {len(outcomes)} rows; run the others with --resume --seed {seed}"
        )
        return _STOPPED
    report.show(outcomes, seed=seed, console=console)
    console.print(f"results: {run.path}", markup=False)
    if len(outcomes) == len(FAULTS) and not (run.short or run.broken):
        summary.write(run.path)
        console.print("run python -m docs.generate, and commit the summary and its page")
    failed_names = [
        outcome.fault.name
        for outcome in outcomes
        if not (outcome.caught if run.broken else outcome.passed)
    ]
    minutes = (time.monotonic() - began) / 60
    failures = f"{len(failed_names)} of {len(outcomes)} rows failed: {', '.join(failed_names)}"
    verdict = failures if failed_names else f"all {len(outcomes)} rows passed"
    console.print(f"{minutes:.0f} minutes, lanes: {options.lanes}; {verdict}", markup=False)
    return int(bool(failed_names))


def _print_result(result: Result, run: Run, console: Console) -> None:
    verdict = "passed" if result.passed else "failed"
    if run.broken:
        caught = "caught" if result.caught else "not caught"
        verdict += f" (broken by {result.fault.broken}: {caught})"
    durations = ", ".join(f"{name} {seconds:.0f}" for name, seconds in result.durations.items())
    text = f"{result.fault.name}: {verdict} in {result.seconds:.0f} s ({durations}) {result.error}"
    console.print(text, markup=False)
    for name, check in result.checks.items():
        if not check.passed:
            console.print(f"    {name}: {check.value:g}, limit {check.limit:g}", markup=False)
    for text in () if result.passed else result.failures:
        console.print(f"    message: {text}", markup=False)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        choices=[fault.name for fault in FAULTS],
        default=[],
        metavar="NAME",
        help="rows to run; default: all",
    )
    parser.add_argument("--seed", type=int, help="seed of all random choices; default: a new one")
    parser.add_argument("--short", action="store_true", help="each row in its short form")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="skip rows that an earlier run with the same seed and form has completed",
    )
    parser.add_argument(
        "--lanes",
        type=int,
        help=f"clusters that run rows in parallel; default: {LANES} in the long form, else 1",
    )
    parser.add_argument(
        "--broken",
        action="store_true",
        help="run each row on a Holdfast that is broken on purpose, which the row has to detect",
    )
    options = parser.parse_args()
    if options.resume and options.seed is None:
        parser.error("--resume needs the --seed that the earlier run printed")
    if options.lanes is None:
        options.lanes = 1 if options.short or options.broken else LANES
    return options


if __name__ == "__main__":
    sys.exit(main())
