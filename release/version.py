"""The version, which pyproject.toml states and everything else follows."""

from __future__ import annotations

import tomllib
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"

VERSION = str(tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"])
