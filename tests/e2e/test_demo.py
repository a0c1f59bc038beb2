from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_make_run_tells_the_story_and_leaves_its_figures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo", "run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    told = re.fullmatch(
        r"holdfast: asked 15 s, released after ([0-9.]+) s, running on (node-[123])", last
    )
    assert told is not None, last
    figures = json.loads((ROOT / "build" / "run.json").read_text())
    assert figures.keys() == {"asked_s", "released_s", "scheduled_s", "running_s", "node"}
    assert figures["asked_s"] == 15
    assert 15 <= figures["released_s"] <= figures["scheduled_s"] <= figures["running_s"]
    assert figures["node"] == told[2]
    assert "SchedulingGated" in done.stdout
    assert "holdfast.dev/held: delay=15s" in done.stdout
