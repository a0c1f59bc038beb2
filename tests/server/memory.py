"""The memory limits in the manifests, and the peak memory of a process."""

from pathlib import Path

import psutil
import yaml

BASE = Path(__file__).resolve().parents[2] / "manifests" / "base"


def allowed(component: str = "webhook") -> int:
    """Return the memory limit of a component in the manifests, in bytes."""
    (deployment,) = [
        document
        for document in yaml.safe_load_all((BASE / f"{component}.yaml").read_text())
        if document["kind"] == "Deployment"
    ]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    limit = container["resources"]["limits"]["memory"]
    assert limit.endswith("Mi")
    return int(limit[:-2]) << 20


def peak(process: psutil.Process) -> int:
    """Return the peak memory in bytes, or the current memory if no peak is recorded."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        return int(process.memory_info().rss)
    (line,) = [entry for entry in status.read_text().splitlines() if entry.startswith("VmHWM:")]
    return int(line.split()[1]) << 10
