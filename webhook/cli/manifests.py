"""Manifest files of -f, -R and -k, read as kubectl does."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.webhook.cli import configured
from holdfast.webhook.errors import CommandError
from holdfast.webhook.model import messages

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
"""Suffixes of the files to read in a folder."""


def files(names: Iterable[str], *, recursive: bool) -> Iterator[str]:
    """Yield file names, with each folder expanded to its manifests. Raises CommandError."""
    for name in names:
        if name.startswith(("http://", "https://")):
            raise CommandError(
                f"{name}: URLs are not read; use curl -fsSL {name} | holdfast preview -f -"
            )
        folder = Path(name)
        if name == "-" or not folder.is_dir():
            yield name
            continue
        paths = folder.rglob("*") if recursive else folder.iterdir()
        manifests = sorted(
            str(path) for path in paths if path.suffix in SUFFIXES and path.is_file()
        )
        if not manifests:
            hint = "" if recursive else "; add -R to read the folders in it"
            raise CommandError(f"{name}: no file ends in .yaml, .yml or .json{hint}")
        if (folder / "kustomization.yaml").is_file():
            configured.note(
                f"{name} has a kustomization.yaml: to preview what it builds, use -k {name}"
            )
        yield from manifests


def kustomized(folder: str) -> bytes:
    """Return a kustomization, built with kubectl or kustomize. Raises CommandError."""
    if shutil.which("kubectl"):
        command = ["kubectl", "kustomize", folder]
    elif shutil.which("kustomize"):
        command = ["kustomize", "build", folder]
    else:
        raise CommandError(f"-k {folder}: neither kubectl nor kustomize is on the PATH")
    result = subprocess.run(command, capture_output=True, check=False)
    if result.returncode:
        problem = messages.shorten(" ".join(result.stderr.decode(errors="replace").split()))
        raise CommandError(f"{' '.join(command)}: {messages.escape(problem)}")
    return result.stdout
