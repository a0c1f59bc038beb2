"""What is pinned, and in which files."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = (
    "requirements.txt",
    "requirements-dev.txt",
    "requirements-build.txt",
    "audit/requirements.txt",
    "bench/requirements.txt",
    "controlplane/requirements-go.txt",
    "tests/fuzz/requirements.txt",
)
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^\s;\\]+)", re.MULTILINE)

Pin = tuple[str, str]
"""A package's name and version."""


def read(text: str) -> list[Pin]:
    """Give the pins of a requirements file, names in their normal form."""
    return [(normal(name), version) for name, version in _PIN.findall(text)]


def pinned() -> dict[Pin, list[str]]:
    """Give all pins, each with the files that it stands in."""
    found: dict[Pin, list[str]] = {}
    for file in FILES:
        for pin in read((ROOT / file).read_text()):
            found.setdefault(pin, []).append(file)
    return found


def normal(name: str) -> str:
    """Write a package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
