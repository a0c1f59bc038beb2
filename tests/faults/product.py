"""The version of the product under test, which identifies comparable runs."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("webhook", "certs", "manifests")
"""The folders that are installed, without the tests."""
UNKNOWN = "unknown"
SHORT = 10
"""Characters of each object's name in git."""


def product() -> str:
    """Return the git object names of the product's folders, with a suffix if files have changed.

    `git rev-parse COMMIT:webhook COMMIT:certs COMMIT:manifests` prints those of a commit.
    """
    try:
        names = _git("rev-parse", *(f"HEAD:{folder}" for folder in FOLDERS)).split()
        changes = _git("status", "--porcelain", "--", *FOLDERS)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return "-".join(name[:SHORT] for name in names) + ("+changed" if changes else "")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()
