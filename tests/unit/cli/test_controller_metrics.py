"""Metrics of a controller at startup."""

import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from tests.support.kubeconfigs import write_kubeconfig

PERMITS = "holdfast_plugin_execution_duration_seconds_count"


def test_new_controller_without_certificates_exports_initial_metrics(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready"
    file = write_kubeconfig(tmp_path / "config", "http://127.0.0.1:1")  # nothing listens
    options = ["--health-port=0", f"--ready-file={ready_file}", "--exit-with-stdin"]
    command = [sys.executable, "-m", "holdfast.webhook", "controller", f"--kubeconfig={file}"]
    with subprocess.Popen(
        [*command, *options, "--certificates=none"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while not ready_file.exists() and process.poll() is None:
            time.sleep(0.05)
        address = ready_file.read_text().strip()
        with urlopen(f"http://{address}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        process.communicate(timeout=10)

    assert "holdfast_webhooks_registered NaN" in lines  # 0 would fire an alert
    labels = 'extension_point="permit",plugin="delay",profile="*",status="Error"'
    assert f"{PERMITS}{{{labels}}} 0.0" in lines  # increase() misses a new series
