"""What osv.dev knows about pins, as pip-audit learns it (https://github.com/pypa/pip-audit)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence

import msgspec

from audit.advisories import Finding
from audit.pins import Pin, normal

PIP_AUDIT = (sys.executable, "-m", "pip_audit")
PATIENCE = 300.0
"""Seconds for the service to answer about all that it is asked at once."""
_OPTIONS = (
    *("--vulnerability-service=osv", "--format=json", "--progress-spinner=off"),
    *("--disable-pip", "--no-deps", "--requirement"),
)
_NO_REPORT = "pip-audit reached no service; see ADVISORIES in SECURITY.md"


class _Vulnerability(msgspec.Struct):
    id: str
    fix_versions: list[str]
    aliases: list[str] = []


class _Dependency(msgspec.Struct):
    name: str
    vulns: list[_Vulnerability] | None = None
    """None where it was skipped."""


class _Report(msgspec.Struct):
    dependencies: list[_Dependency]


def apart(pins: Iterable[Pin]) -> list[list[Pin]]:
    """Put pins into groups in which no package comes twice: pip-audit refuses that."""
    groups: list[dict[str, str]] = []
    for name, version in pins:
        for group in groups:
            if name not in group:
                group[name] = version
                break
        else:
            groups.append({name: version})
    return [list(group.items()) for group in groups]


def ask(
    pins: Sequence[Pin], *, program: Sequence[str] = PIP_AUDIT, patience: float = PATIENCE
) -> bytes:
    """Have pip-audit ask about pins, and give its report; there is none where it cannot.

    It gets bare pins and not the requirements files: of those it passes over, without a word, what
    is for another machine than this. `patience` is in seconds.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{name}=={version}\n" for name, version in pins)
        file.flush()
        command = [*program, *_OPTIONS, file.name]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=patience)
        except subprocess.TimeoutExpired:
            return b""
    return done.stdout


def read(report: bytes, pins: Sequence[Pin]) -> tuple[list[Finding], list[Pin]]:
    """Read what a report says about pins: what is known, and the pins that it leaves open.

    Raises ValueError where it is no report.
    """
    try:
        found = msgspec.json.decode(report, type=_Report).dependencies
    except msgspec.DecodeError:
        raise ValueError(_NO_REPORT) from None
    known = {normal(one.name): one.vulns for one in found if one.vulns is not None}
    findings = [
        Finding(pin, (one.id, *one.aliases), tuple(one.fix_versions))
        for pin in pins
        for one in known.get(pin[0], ())
    ]
    return findings, [pin for pin in pins if pin[0] not in known]
