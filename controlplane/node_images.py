"""The pause image, whose container holds a pod's namespaces: one small static program."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from controlplane import cache, nodes
from controlplane.cache import digest
from controlplane.errors import ControlPlaneError
from controlplane.node_plan import PAUSE_IMAGE

_PAUSE_SOURCE = Path(__file__).resolve().parent / "containerd" / "pause.c"


def pause_archive() -> Path:
    """Return the docker archive of the pause image, built if not cached."""
    target = cache.root() / f"pause-{digest([_PAUSE_SOURCE.read_bytes()])}"
    archive = target / "pause.tar"
    with cache.locked(target.with_suffix(".lock")):
        if not archive.exists():
            with cache.publishing(target) as folder:
                program = folder / "pause"
                _compile(program)
                (folder / archive.name).write_bytes(docker_archive(program))
    return archive


def docker_archive(program: Path) -> bytes:
    """Return the docker archive of an image with one file, which is its entry point."""
    layer = _tar({program.name: program.read_bytes()}, mode=0o755)
    config = {
        "architecture": nodes.ARCHITECTURE,
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [PAUSE_IMAGE], "Layers": ["layer.tar"]}]
    return _tar(
        {
            "config.json": json.dumps(config).encode(),
            "layer.tar": layer,
            "manifest.json": json.dumps(manifest).encode(),
        }
    )


def _tar(files: Mapping[str, bytes], mode: int = 0o644) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _compile(target: Path) -> None:
    command = ["gcc", "-static", "-Os", "-s", "-o", str(target), str(_PAUSE_SOURCE)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ControlPlaneError(
            "a real node needs gcc; install it (Debian and Ubuntu: apt install gcc libc6-dev)"
        ) from error
    if result.returncode != 0:
        raise ControlPlaneError(f"gcc cannot compile {_PAUSE_SOURCE}: {result.stderr.strip()}")
