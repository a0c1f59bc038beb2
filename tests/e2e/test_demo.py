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
    result = subprocess.run(
        [sys.executable, "-m", "demo", "run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    last_line = result.stdout.splitlines()[-1]
    match = re.fullmatch(
        r"holdfast: delay 15 s, released after ([0-9.]+) s, running on (node-[123])", last_line
    )
    assert match is not None, last_line
    figures = json.loads((ROOT / "build" / "run.json").read_text())
    assert figures.keys() == {"delay_s", "released_s", "scheduled_s", "running_s", "node"}
    assert figures["delay_s"] == 15
    assert 15 <= figures["released_s"] <= figures["scheduled_s"] <= figures["running_s"]
    assert figures["node"] == match[2]
    assert "SchedulingGated" in result.stdout
    assert "holdfast.dev/held: delay=15s" in result.stdout


def test_make_up_prints_exports_for_a_second_terminal() -> None:
    command = [sys.executable, "-m", "demo", "up"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        printed = "".join(iter(process.stdout.readline, LAST))
        exports = re.findall(r"^  (export .*)$", printed, re.MULTILINE)
        assert len(exports) == 2
        script = "; ".join([*exports, "kubectl get nodes -o name", "holdfast list"])
        result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert result.stdout.splitlines() == ["node/node-1", "node/node-2", "node/node-3"]
    assert result.stderr == "No resources found in default namespace.\n"
