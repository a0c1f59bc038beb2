"""The corpus of `make fuzz`: every property holds for each input."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import subprocess, sys
from tests.fuzz.targets import no_deeds

run = lambda: subprocess.run([sys.executable, "-V"], check=True, capture_output=True)
with no_deeds():
    try:
        run()
    except PermissionError as exc:
        print("refused:", exc)
run()
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a separate process; `tests.fuzz.again` explains why."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", TARGETS)
def test_corpus_and_seeds_pass(target: str) -> None:
    assert len(corpus.read(target)) >= 5, "the corpus is gone"

    process = python("-m", "tests.fuzz.again", target)

    assert process.returncode == 0, process.stderr[-3_000:]


def test_fuzz_targets_cannot_start_programs() -> None:
    process = python("-c", SCRIPT)

    assert (process.stdout, process.stderr) == ("refused: subprocess.Popen is forbidden here\n", "")
