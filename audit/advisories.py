"""The PyPA's advisory database from a folder: for networks that reach no service.

Its files are OSV documents, `vulns/PACKAGE/ID.yaml` (https://github.com/pypa/advisory-database).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

from audit.pins import Pin, normal
from webhook import values, yaml_text


@dataclass(frozen=True)
class Finding:
    """A pin that an advisory is about.

    `names` are the advisory's names, `fixed` the versions that mend it.
    """

    pin: Pin
    names: tuple[str, ...]
    fixed: tuple[str, ...]

    def __str__(self) -> str:
        cure = f"; fixed in {', '.join(self.fixed)}" if self.fixed else "; no fix is known"
        return f"{self.pin[0]} {self.pin[1]}: {' '.join(self.names)}{cure}"


@dataclass(frozen=True)
class Database:
    """All advisories by package, and when the newest of them was written."""

    by_package: Mapping[str, list[Any]]
    newest: str

    def findings(self, pins: Iterable[Pin]) -> Iterator[Finding]:
        """Find the pins that something is known about."""
        for pin in pins:
            for advisory in self.by_package.get(pin[0], ()):
                if not advisory.get("withdrawn"):
                    yield from _findings(pin, advisory)


def load(folder: Path) -> Database:
    """Read a clone of the database. Raises ValueError where the folder is none, or a file."""
    files = sorted((folder / "vulns").glob("*/*.yaml"))
    if not files:
        raise ValueError(f"{folder}: holds no advisories; name a clone of pypa/advisory-database")
    by_package: dict[str, list[Any]] = {}
    newest = ""
    for file in files:
        advisory = _advisory(file)
        by_package.setdefault(normal(file.parent.name), []).append(advisory)
        newest = max(newest, str(advisory.get("modified", ""))[:10])
    return Database(by_package, newest)


def _advisory(file: Path) -> Any:
    text = file.read_bytes()
    try:
        yaml_text.refuse_aliases(text)
        return yaml.load(text, yaml.CSafeLoader)
    except yaml_text.MISTAKES as exc:
        raise ValueError(f"{file}: is no advisory: {values.one_line(exc)}; fetch it anew") from None


def _findings(pin: Pin, advisory: Any) -> Iterator[Finding]:
    name, version = pin
    for affected in advisory["affected"]:
        if normal(affected["package"]["name"]) != name:
            continue
        spans = [
            span["events"] for span in affected.get("ranges", ()) if span["type"] == "ECOSYSTEM"
        ]
        listed = version in map(str, affected.get("versions", ()))
        if listed or any(_within(version, events) for events in spans):
            fixed = tuple(str(one["fixed"]) for events in spans for one in events if "fixed" in one)
            yield Finding(pin, (advisory["id"], *advisory.get("aliases", ())), fixed)


def _within(version: str, events: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether a version lies in a range, as OSV evaluates its events: by version."""
    mine = Version(version)
    inside = False
    for kind, at in sorted(_read(events), key=lambda event: event[1]):
        if kind == "introduced" and mine >= at:
            inside = True
        elif (kind == "fixed" and mine >= at) or (kind == "last_affected" and mine > at):
            inside = False
    return inside


def _read(events: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Version]]:
    for event in events:
        for kind, at in event.items():
            try:
                yield kind, Version(str(at))
            except InvalidVersion:
                continue  # no version that could be pinned
