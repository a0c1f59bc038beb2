"""Tell whether what is pinned is known to be vulnerable: `make audit`.

By pip-audit, which asks osv.dev; or, with ADVISORIES=FOLDER, by a clone of the PyPA's advisory
database. With GO_ADVISORIES=FOLDER, the Go modules of tests and benches by a clone of Go's. The
exit status is 0 where nothing is known, 1 where something is, and 2 where nobody could be asked:
that nothing was found then means nothing, and it is said so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from audit import advisories, modules
from audit.pins import FILES, ROOT, Pin, pinned

CLEAN, VULNERABLE, NOT_AUDITED = 0, 1, 2
PATIENCE = 300
"""Seconds for the service to answer about all of a file's pins."""


def main() -> int:
    """Audit, and give the exit status."""
    folder, go_folder = os.environ.get("ADVISORIES"), os.environ.get("GO_ADVISORIES")
    asked = [by_folder(Path(folder))] if folder else []
    if go_folder:
        asked.append(of_modules(Path(go_folder)))
    return max(asked) if asked else by_service()


def by_folder(folder: Path) -> int:
    """Audit by a clone of the advisory database."""
    try:
        database = advisories.load(folder)
    except ValueError as exc:
        return _not_audited(str(exc))
    pins = pinned()
    found = _told(database.findings(pins), pins)
    print(f"{len(pins)} pins, advisories as of {database.newest}: {found} findings")
    return VULNERABLE if found else CLEAN


def of_modules(folder: Path) -> int:
    """Audit the Go modules by a clone of Go's database."""
    try:
        database = modules.Database(folder)
    except ValueError as exc:
        return _not_audited(str(exc))
    pins = modules.pinned()
    found = _told(database.findings(pins), pins)
    print(f"{len(pins)} Go modules, advisories up to {database.newest}: {found} findings")
    return VULNERABLE if found else CLEAN


def _told(findings: Iterable[advisories.Finding], pins: Mapping[Pin, list[str]]) -> int:
    """Print findings, each with the files that its pin stands in, and count them."""
    lines = [f"{finding} ({', '.join(pins[finding.pin])})" for finding in findings]
    print("".join(f"{line}\n" for line in lines), end="")
    return len(lines)


def by_service() -> int:
    """Audit by pip-audit."""
    found = 0
    for file in FILES:
        report = _ask(file)
        if report is None:
            return _not_audited("pip-audit reached no service; see ADVISORIES in SECURITY.md")
        unknown = [one["name"] for one in report if "skip_reason" in one]
        if unknown:
            return _not_audited(f"{file}: nothing could be learnt about {', '.join(unknown)}")
        for one in report:
            for vulnerability in one["vulns"]:
                fixed = ", ".join(vulnerability["fix_versions"]) or "none known"
                print(
                    f"{one['name']} {one['version']}: {vulnerability['id']}; fix: {fixed} ({file})"
                )
                found += 1
    print(f"{len(pinned())} pins, by osv.dev: {found} findings")
    return VULNERABLE if found else CLEAN


def _ask(file: str) -> list[Any] | None:
    command = [sys.executable, "-m", "pip_audit", "--vulnerability-service=osv", "--format=json"]
    command += ["--progress-spinner=off", "--disable-pip", "--require-hashes", "-r", file]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        return list(json.loads(done.stdout)["dependencies"])
    except (subprocess.TimeoutExpired, ValueError, LookupError):
        return None


def _not_audited(why: str) -> int:
    print(f"not audited: {why}", file=sys.stderr)
    return NOT_AUDITED


if __name__ == "__main__":
    sys.exit(main())
