"""`make fuzz`: each target in turn, with its corpus; what is found is kept, and told.

FUZZ_SECONDS is the time of all together, an hour unless it is set. What made a target fail lies in
`build/fuzz/found`; the corpus is what covers most in fewest bytes, in `tests/fuzz/corpus`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fuzz import corpus
from tests.fuzz.seeds import seeds

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "fuzz"
SHARES = {
    "reviews": 0.45,
    "configuration": 0.25,
    "kubeconfig": 0.15,
    "delays": 0.05,
    "instants": 0.05,
    "hints": 0.05,
}
"""Of the time, by how much there is to find."""
LIMITS = ("-timeout=10", "-rss_limit_mb=1024", "-max_len=4096", "-print_final_stats=1")
"""Seconds and MiB in which each input has to be done, and the bytes of the longest."""
MOST_FAILURES = 10
"""How often a target begins again after a failure; the next is often the same."""
_RUNS = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
_COVERED = re.compile(r"cov: (\d+)")


@dataclass
class Outcome:
    """How it went with one target."""

    target: str
    seconds: float = 0.0
    executions: int = 0
    edges: int = 0
    kept: int = 0
    failures: int = 0


def main() -> int:
    seconds = float(os.environ.get("FUZZ_SECONDS") or 3_600)
    outcomes = [fuzz(target, share * seconds) for target, share in SHARES.items()]
    report = json.dumps([asdict(outcome) for outcome in outcomes], indent=2)
    (WORK / "report.json").write_text(report + "\n")
    print(f"{'target':15}{'seconds':>9}{'executions':>12}{'edges':>7}{'corpus':>8}{'failures':>10}")
    for one in outcomes:
        print(
            f"{one.target:15}{one.seconds:9.0f}{one.executions:12,}{one.edges:7}"
            f"{one.kept:8}{one.failures:10}"
        )
    failed = any(one.failures for one in outcomes)
    print(f"what failed is in {WORK / 'found'}" if failed else "nothing failed")
    return int(failed)


def fuzz(target: str, seconds: float) -> Outcome:
    """Fuzz a target for so long, and write its corpus anew, minimised."""
    folder, found = WORK / "corpus" / target, WORK / "found"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found.mkdir(exist_ok=True)
    corpus.unpack([*seeds(target), *corpus.read(target)], folder)
    outcome = Outcome(target)
    began = time.monotonic()
    while (left := seconds - (time.monotonic() - began)) > 1 and outcome.failures < MOST_FAILURES:
        limits = [*LIMITS, f"-max_total_time={left:.0f}", f"-artifact_prefix={found}/{target}-"]
        ended, said = drive(target, *limits, str(folder))
        outcome.executions += sum(int(number) for number in _RUNS.findall(said))
        outcome.edges = max([outcome.edges, *map(int, _COVERED.findall(said))])
        outcome.failures += ended != 0
    outcome.seconds = time.monotonic() - began
    least = WORK / "least" / target
    shutil.rmtree(least, ignore_errors=True)
    least.mkdir(parents=True)
    ended, said = drive(target, *LIMITS, "-merge=1", "-use_counters=0", str(least), str(folder))
    if ended:
        raise SystemExit(f"the corpus of {target} could not be minimised:\n{said[-2_000:]}")
    outcome.kept = corpus.write(target, least)
    return outcome


def drive(target: str, *arguments: str) -> tuple[int, str]:
    """Run a fuzzer's process; its exit status, and what it said, which is also in its log."""
    command = [sys.executable, "-m", "tests.fuzz.drive", target, *arguments]
    log = WORK / f"{target}.log"
    with log.open("wb") as file:
        ended = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, check=False)
    return ended.returncode, log.read_text(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
