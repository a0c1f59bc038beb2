"""`make fuzz`: fuzz reviews on one core, and the other targets in turn on another.

It runs for FUZZ_SECONDS (an hour by default). Inputs that made a target fail are saved in
`build/fuzz/found`, and the smallest inputs with the most coverage in `tests/fuzz/corpus`. After an
interruption, the next run continues with the inputs in `build/fuzz/corpus`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fuzz import corpus
from tests.fuzz.seeds import seeds

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "fuzz"
LANES: tuple[dict[str, float], ...] = (
    {"reviews": 1.0},
    {
        "requests": 0.3,
        "configuration": 0.2,
        "kubeconfig": 0.1,
        "delays": 0.06,
        "instants": 0.05,
        "hints": 0.05,
        "windows": 0.08,
        "paces": 0.05,
        "waits": 0.06,
        "freezes": 0.03,
        "objects": 0.02,
    },
)
"""The lanes, with one core each; targets with more to find get a larger share of the time."""
LONGEST = {"reviews": 1 << 18, "configuration": 1 << 14, "kubeconfig": 1 << 14, "requests": 1 << 14}
"""Maximum input size of a target, in bytes. An object's annotations have at most 256 KiB;
tests/unit/test_hostile_reviews.py sends larger bodies, up to the limit."""
LONGEST_VALUE = 1 << 13
"""Maximum input size of the other targets, in bytes."""
LIMITS = ("-timeout=10", "-rss_limit_mb=1024", "-len_control=0", "-print_final_stats=1")
"""Limits of time (s) and memory (MiB) for each input; inputs need not start short."""
MOST_FAILURES = 10
"""Failures after which a target is not restarted; further ones are often the same."""
_stopping = threading.Event()
_running: set[subprocess.Popen[bytes]] = set()
_RUNS = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
_COVERED = re.compile(r"cov: (\d+)")


@dataclass
class Outcome:
    """The result of fuzzing one target."""

    target: str
    seconds: float = 0.0
    executions: int = 0
    edges: int = 0
    kept: int = 0
    failures: int = 0


def main() -> int:
    seconds = float(os.environ.get("FUZZ_SECONDS") or 3_600)
    with ThreadPoolExecutor(len(LANES)) as pool:
        lanes = [pool.submit(fuzz_in_turn, lane, seconds) for lane in LANES]
        try:
            outcomes = [outcome for lane in lanes for outcome in lane.result()]
        except BaseException:  # including Ctrl-C
            stop()
            raise
    report = json.dumps([asdict(outcome) for outcome in outcomes], indent=2)
    (WORK / "report.json").write_text(report + "\n")
    print(f"{'target':15}{'seconds':>9}{'executions':>12}{'edges':>7}{'corpus':>8}{'failures':>10}")
    for result in outcomes:
        print(
            f"{result.target:15}{result.seconds:9.0f}{result.executions:12,}{result.edges:7}"
            f"{result.kept:8}{result.failures:10}"
        )
    failed = any(result.failures for result in outcomes)
    print(f"failing inputs are in {WORK / 'found'}" if failed else "no failures")
    return int(failed)


def fuzz_in_turn(shares: Mapping[str, float], seconds: float) -> list[Outcome]:
    return [fuzz(target, share * seconds) for target, share in shares.items()]


def fuzz(target: str, seconds: float) -> Outcome:
    """Fuzz a target for `seconds`, then write its minimised corpus.

    It also starts from the inputs of an interrupted run. Raises SystemExit if it is stopped, or if
    no coverage is measured.
    """
    folder, failure_folder = WORK / "corpus" / target, WORK / "found"
    folder.mkdir(parents=True, exist_ok=True)
    failure_folder.mkdir(exist_ok=True)
    options = (*LIMITS, f"-max_len={LONGEST.get(target, LONGEST_VALUE)}")
    corpus.unpack([*seeds(target), *corpus.read(target)], folder)
    outcome = Outcome(target)
    began = time.monotonic()
    while (budget := seconds - (time.monotonic() - began)) > 1 and outcome.failures < MOST_FAILURES:
        limits = [
            *options,
            f"-max_total_time={budget:.0f}",
            f"-artifact_prefix={failure_folder}/{target}-",
        ]
        status, output = drive(target, *limits, str(folder))
        outcome.executions += sum(int(number) for number in _RUNS.findall(output))
        outcome.edges = max([outcome.edges, *map(int, _COVERED.findall(output))])
        outcome.failures += status != 0
        if _stopping.is_set():
            raise SystemExit(f"{target}: stopped; the next run continues with its inputs")
    outcome.seconds = time.monotonic() - began
    if not outcome.edges:
        raise SystemExit(f"{target}: no coverage was measured; check INSTRUMENTED in drive.py")
    minimal_folder = WORK / "least" / target
    shutil.rmtree(minimal_folder, ignore_errors=True)
    minimal_folder.mkdir(parents=True)
    status, output = drive(
        target, *options, "-merge=1", "-use_counters=0", str(minimal_folder), str(folder)
    )
    if status:
        raise SystemExit(f"the corpus of {target} could not be minimised:\n{output[-2_000:]}")
    outcome.kept = corpus.write(target, minimal_folder)
    shutil.rmtree(folder)
    return outcome


def drive(target: str, *arguments: str) -> tuple[int, str]:
    """Run a fuzzer process; return its exit status and its output, which is also in its log."""
    command = [sys.executable, "-m", "tests.fuzz.drive", target, *arguments]
    log = WORK / f"{target}.log"
    with log.open("wb") as file:
        # in a new session: Ctrl-C would count as a failure of the current input
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=file, start_new_session=True
        )
        _running.add(process)
        if _stopping.is_set():
            process.terminate()
        process.wait()
        _running.discard(process)
    return process.returncode, log.read_text(errors="replace")


def stop() -> None:
    """Terminate all fuzzer processes, and prevent new ones."""
    _stopping.set()
    for process in list(_running):
        process.terminate()


if __name__ == "__main__":
    sys.exit(main())
