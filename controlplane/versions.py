"""Other Kubernetes versions: list the pinned ones, and pin another.

Only the API server, the controller manager and the scheduler are built for each version. etcd, kwok
and kubectl are those of the newest version.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from controlplane.errors import ControlPlaneError
from controlplane.golang import Go
from controlplane.modules import KUBERNETES, ModuleSet, version_flags

VARIABLE = "HOLDFAST_KUBERNETES"
"""The environment variable that names the version to run instead of the newest."""
NEWEST = "1.36.3"
_FOLDER = Path(__file__).resolve().parent / "versions"
_MODULE = "k8s.io/kubernetes"
_COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_VERSION = re.compile(r"1\.\d{1,3}\.\d{1,3}")
_STAGING = re.compile(r"(k8s\.io/\S+) => \./staging/")
_GO = "1.26.0"
_TIMEOUT = 600.0  # seconds to download the modules of one version over a slow connection


def available() -> list[str]:
    """Return the older versions that are pinned here, oldest first."""
    names = (folder.name for folder in _FOLDER.iterdir() if (folder / "go.sum").is_file())
    return sorted(names, key=lambda version: [int(part) for part in version.split(".")])


def pinned(version: str) -> ModuleSet | None:
    """Return the module set of an older version; None for the newest, which needs none.

    Raises ControlPlaneError for a version that is not pinned here.
    """
    if version == NEWEST:
        return None
    if version not in available():
        raise ControlPlaneError(
            f"Kubernetes {version!r:.40} is not pinned here (pinned: {NEWEST}, "
            f"{', '.join(available())}); to pin it, run: python -m controlplane pin {version:.40}"
        )
    return ModuleSet(
        name=f"kubernetes-{version}",
        folder=_FOLDER / version,
        packages={name: f"{_MODULE}/cmd/{name}" for name in _COMPONENTS},
        landmark=KUBERNETES.landmark,
        tags=("selinux", "notest", "providerless"),
        ldflags=version_flags(version),
    )


def pin(version: str, go: Go) -> Path:
    """Write go.mod and go.sum for a version, based on Kubernetes' go.mod; return their folder.

    Raises ControlPlaneError if the version does not exist, or if its modules cannot be downloaded.
    """
    if _VERSION.fullmatch(version) is None:
        raise ControlPlaneError(
            f"{version!r:.40} is not a version of Kubernetes; write it as 1.30.14"
        )
    output = _go(go, ["mod", "download", "-json", f"{_MODULE}@v{version}"], _FOLDER)
    source = Path(json.loads(output)["GoMod"]).read_text(encoding="utf-8")
    folder = _FOLDER / version
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text(go_mod(version, source), encoding="utf-8")
    _go(go, ["mod", "tidy"], folder)
    return folder


def go_mod(version: str, source: str) -> str:
    """Return a go.mod that builds a version's components.

    `source` is Kubernetes' go.mod. It replaces staging modules with folders; this one replaces them
    with their published versions.
    """
    published = f"v0.{version.partition('.')[2]}"
    replacements = [f"\t{name} => {name} {published}" for name in _STAGING.findall(source)]
    tools = [f"\t{_MODULE}/cmd/{name}" for name in _COMPONENTS]
    parts = [
        f"module kubernetes-{version}",
        f"go {_GO}",
        f"require {_MODULE} v{version}",
        "\n".join(["replace (", *replacements, ")"]),
        "\n".join(["tool (", *tools, ")"]),
    ]
    return "\n\n".join(parts) + "\n"


def _go(go: Go, arguments: Sequence[str], folder: Path) -> str:
    result = subprocess.run(
        [go.binary, *arguments],
        cwd=folder,
        env=go.environment(),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if result.returncode != 0:
        message = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()[-1]
        raise ControlPlaneError(
            f"go {' '.join(arguments)}: {message}; check the version, the network and GOPROXY"
        )
    return result.stdout
