"""`make faults`: run all faults on the real control plane, under a steady load."""

import argparse
import random
import signal
import sys
import time
from functools import partial

from tests.faults import report, summary
from tests.faults.lanes import results
from tests.faults.product import product
from tests.faults.report import Run
from tests.faults.scenario import Result
from tests.faults.table import FAULTS

LANES = 2
"""Clusters that run rows in parallel in the long form: each uses about one processor."""
_STOPPED = 128 + signal.SIGINT
show = partial(print, flush=True)


def main() -> int:
    """Run the rows that the command line selects; return 0 if all passed."""
    options = _parse_arguments()
    seed = options.seed if options.seed is not None else random.randrange(10**6)
    run = Run(seed, short=options.short, broken=options.broken, product=product())
    show(f"seed {seed}, product {run.product}")
    faults = [fault for fault in FAULTS if not options.only or fault.name in options.only]
    positions = {fault.name: position for position, fault in enumerate(FAULTS)}
    outcomes = report.read(run, faults, run.path) if options.resume else []
    done_names = {result.fault.name for result in outcomes}
    began, lanes = time.monotonic(), 1 if run.short or run.broken else LANES
    waiting_faults = [fault for fault in faults if fault.name not in done_names]
    try:
        for result in results(waiting_faults, run, lanes):
            outcomes = sorted(
                [*outcomes, result], key=lambda outcome: positions[outcome.fault.name]
            )
            report.write(outcomes, run, run.path)
            _show_result(result, run)
    except KeyboardInterrupt:
        show(f"stopped after {len(outcomes)} rows; run the others with --resume --seed {seed}")
        return _STOPPED
    show(f"results: {run.path}")
    if len(outcomes) == len(FAULTS) and not (run.short or run.broken):
        summary.write(run.path)
        show("run python -m docs.generate, and commit the summary and its page")
    failed_names = [
        outcome.fault.name
        for outcome in outcomes
        if not (outcome.caught if run.broken else outcome.passed)
    ]
    minutes = (time.monotonic() - began) / 60
    failures = f"{len(failed_names)} of {len(outcomes)} rows failed: {', '.join(failed_names)}"
    verdict = failures if failed_names else f"all {len(outcomes)} rows passed"
    show(f"{minutes:.0f} minutes, lanes: {lanes}; {verdict}")
    return int(bool(failed_names))


def _show_result(result: Result, run: Run) -> None:
    verdict = "passed" if result.passed else "failed"
    if run.broken:
        caught = "caught" if result.caught else "not caught"
        verdict += f" (broken by {result.fault.broken}: {caught})"
    show(f"{result.fault.name}: {verdict} in {result.seconds:.0f} s {result.error}")
    for name, check in result.checks.items():
        if not check.passed:
            show(f"    {name}: {check.value:g}, limit {check.limit:g}")
    for text in () if result.passed else result.failures:
        show(f"    message: {text}")


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
        "--broken",
        action="store_true",
        help="run each row on a Holdfast that is broken on purpose, which the row has to detect",
    )
    options = parser.parse_args()
    if options.resume and options.seed is None:
        parser.error("--resume needs the --seed that the earlier run printed")
    return options


if __name__ == "__main__":
    sys.exit(main())
