"""Tell whether what is pinned is known to be vulnerable: `make audit`.

By pip-audit, which asks osv.dev; or, with ADVISORIES=FOLDER, by a clone of the PyPA's advisory
database. With GO_ADVISORIES=FOLDER, the Go modules of tests and benches by a clone of Go's. The
exit status is 0 where nothing is known, 1 where something is, and 2 where nobody could be asked
about all of it: that nothing more was found then means nothing, and it is said so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from audit import advisories, modules, service
from audit.pins import Pin, pinned

CLEAN, VULNERABLE, NOT_AUDITED = 0, 1, 2


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


def by_service(ask: Callable[[Sequence[Pin]], bytes] = service.ask) -> int:
    """Audit by a service; `ask` gives its report about pins, no two of which are of a package."""
    pins = pinned()
    found, open_pins = 0, list[Pin]()
    for some in service.apart(pins):
        try:
            findings, unknown = service.read(ask(some), some)
        except ValueError as exc:
            return _not_audited(str(exc))
        found += _told(findings, pins)
        open_pins += unknown
    if open_pins:
        names = ", ".join(f"{name} {version}" for name, version in open_pins)
        return _not_audited(f"nothing could be learnt about {names}")
    print(f"{len(pins)} pins, by osv.dev: {found} findings")
    return VULNERABLE if found else CLEAN


def _not_audited(why: str) -> int:
    print(f"not audited: {why}", file=sys.stderr)
    return NOT_AUDITED


if __name__ == "__main__":
    sys.exit(main())
