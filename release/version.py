"""The version from pyproject.toml, which all other files use."""

from __future__ import annotations

import tomllib
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"

VERSION = str(tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"])
