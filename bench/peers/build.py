"""Build the peers: Go programs in the user's cache, the Python ones in a venv there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from controlplane import cache, ensure
from controlplane.modules import ModuleSet
from controlplane.progress import Report, Step

HERE = Path(__file__).resolve().parent
PYTHON = HERE / "python"
"""The Python peers. Their venv is separate, because Holdfast does not need their dependencies."""

CONTROLLER_RUNTIME, CLIENT_GO, SCHEDULER = "controller-runtime", "client-go", "delay-scheduler"
GO_PEERS = (CONTROLLER_RUNTIME, CLIENT_GO, SCHEDULER)
_FOLDERS: Mapping[str, str] = MappingProxyType(
    {
        CONTROLLER_RUNTIME: "controller_runtime",
        CLIENT_GO: "client_go",
        SCHEDULER: "delay_scheduler",
    }
)
_LANDMARKS: Mapping[str, str] = MappingProxyType(
    {
        CONTROLLER_RUNTIME: "sigs.k8s.io/controller-runtime",
        CLIENT_GO: "k8s.io/client-go",
        SCHEDULER: "k8s.io/kubernetes",
    }
)


@dataclass(frozen=True, slots=True)
class OwnModule(ModuleSet):
    """A Go program of the benchmark, whose source is part of the cache key."""

    def key(self) -> str:
        """Return the name of the cache folder."""
        sources = [path.read_bytes() for path in sorted(self.folder.glob("*.go"))]
        return f"{ModuleSet.key(self)}-{cache.digest(sources)}"


def binary(name: str) -> Path:
    """Return the path of a Go peer, building it if missing. Raises ControlPlaneError."""
    modules = OwnModule(
        name=f"peer-{name}",
        folder=HERE / _FOLDERS[name],
        packages={name: f"bench/{name}"},
        landmark=_LANDMARKS[name],
        tags=("selinux", "notest") if name == SCHEDULER else (),
        ldflags=("-s", "-w"),
    )
    return ensure(modules=modules) / name


def interpreter(report: Report) -> Path:
    """Return the Python interpreter of the peers' venv, creating the venv if missing."""
    requirements = HERE.parent / "requirements.txt"
    folder = cache.root() / f"bench-python-{cache.digest([requirements.read_bytes()])}"
    python = folder / "bin" / "python"
    with cache.locked(folder.with_suffix(".lock")):
        if not (folder / "ready").exists():
            report(Step("installing the Python peers"))
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            pip: list[str | Path] = [
                python,
                "-m",
                "pip",
                "--quiet",
                "--disable-pip-version-check",
                "install",
            ]
            subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", requirements], check=True)
            (folder / "ready").touch()
    return python


def peers(names: Sequence[str], report: Report) -> None:
    """Build the named Go peers, and the venv of the Python peers."""
    for name in names:
        binary(name)
    interpreter(report)


if __name__ == "__main__":  # the peers that CI's short run needs
    peers((CONTROLLER_RUNTIME, CLIENT_GO), lambda step: print(step.what))
