import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAST = "Press Ctrl-C to stop it and remove everything.\n"
"""The last line that `make up` prints when it is ready."""


@pytest.mark.slow
def test_make_run_releases_the_pod_and_writes_run_json() -> None:
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
    result = re.fullmatch(
        r"holdfast: delay 15 s, released after ([0-9.]+) s, running on (node-[123])", last
    )
    assert result is not None, last
    figures = json.loads((ROOT / "build" / "run.json").read_text())
    assert figures.keys() == {"delay_s", "released_s", "scheduled_s", "running_s", "node"}
    assert figures["delay_s"] == 15
    assert 15 <= figures["released_s"] <= figures["scheduled_s"] <= figures["running_s"]
    assert figures["node"] == result[2]
    assert "SchedulingGated" in done.stdout
    assert "holdfast.dev/held: delay=15s" in done.stdout


def test_make_up_prints_exports_for_a_second_terminal() -> None:
    command = [sys.executable, "-m", "demo", "up"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout is not None
        printed = "".join(iter(running.stdout.readline, LAST))
        exports = re.findall(r"^  (export .*)$", printed, re.MULTILINE)
        assert len(exports) == 2
        script = "; ".join([*exports, "kubectl get nodes -o name", "holdfast list"])
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    assert done.stdout.splitlines() == ["node/node-1", "node/node-2", "node/node-3"]
    assert done.stderr == "No resources found in default namespace.\n"
