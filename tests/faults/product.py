"""Identify the product that rows run on, to compare runs on the same one."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("webhook", "certs", "manifests")
"""The installed product, without the tests."""
UNKNOWN = "unknown"
SHORT = 10
"""Characters of each object's name in git."""


def product() -> str:
    """Name the product by git's names of its folders, with a mark where files differ from those.

    `git rev-parse COMMIT:webhook COMMIT:certs COMMIT:manifests` prints the contents of a commit.
    """
    try:
        names = _git("rev-parse", *(f"HEAD:{folder}" for folder in FOLDERS)).split()
        changed = _git("status", "--porcelain", "--", *FOLDERS)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return "-".join(name[:SHORT] for name in names) + ("+changed" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()
