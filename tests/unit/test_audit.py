"""Audit of pins by a folder of advisories, and by a service.

Seen to fail: with the versions that a range fixes taken for vulnerable, and with withdrawn
advisories counted. On the PyPA's own database it finds urllib3 2.0.6 and not 2.0.7. Of the service:
with what is for another machine passed over and counted as clean; with an answer that is no report
ending in a traceback, whose status means that something is known; with findings kept to itself
where nothing could be learnt about another pin.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from audit import __main__ as audit
from audit import advisories, pins, service
from audit.pins import Pin

ADVISORY = """
id: PYSEC-1-1
modified: 2026-05-01T10:00:00Z
aliases: [CVE-1-1]
affected:
- package: {ecosystem: PyPI, name: Some.Package}
  ranges:
  - {type: GIT, events: [{introduced: "0"}, {fixed: abc}]}
  - type: ECOSYSTEM
    events: [{introduced: 2.0.0}, {fixed: 2.0.7}, {introduced: "0"}, {fixed: 1.9}]
  versions: [0-odd]
"""
LAST = ADVISORY.replace("{fixed: 2.0.7}", "{last_affected: 2.0.7}")


def findings(folder: Path, version: str, advisory: str = ADVISORY) -> list[str]:
    file = folder / "vulns" / "some-package" / "PYSEC-1-1.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(advisory)
    return [str(one) for one in advisories.load(folder).findings([("some-package", version)])]


@pytest.mark.parametrize(
    ("version", "advisory", "known"),
    [
        pytest.param("2.0.6", ADVISORY, True, id="in a range"),
        pytest.param("2.0.0", ADVISORY, True, id="its first"),
        pytest.param("2.0.7", ADVISORY, False, id="fixed"),
        pytest.param("2.1rc1", ADVISORY, False, id="later"),
        pytest.param("1.8", ADVISORY, True, id="in the other range"),
        pytest.param("1.9", ADVISORY, False, id="between the ranges"),
        pytest.param("2.0.7", LAST, True, id="the last that is affected"),
        pytest.param("2.0.8", LAST, False, id="after the last"),
        pytest.param("2.0.6", ADVISORY + "withdrawn: 2026-06-01T10:00:00Z", False, id="withdrawn"),
    ],
)
def test_findings(tmp_path: Path, version: str, advisory: str, known: bool) -> None:
    assert bool(findings(tmp_path, version, advisory)) == known


def test_finding_names_the_cure(tmp_path: Path) -> None:
    (said,) = findings(tmp_path, "2.0.6")

    assert said == "some-package 2.0.6: PYSEC-1-1 CVE-1-1; fixed in 2.0.7, 1.9"


def test_folder_without_advisories_is_no_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADVISORIES", str(tmp_path))

    assert audit.main() == audit.NOT_AUDITED
    assert capsys.readouterr().err == (
        f"not audited: {tmp_path}: holds no advisories; name a clone of pypa/advisory-database\n"
    )


@pytest.mark.parametrize(("version", "status"), [("2.0.0", 1), ("99", 0)], ids=["known", "clean"])
def test_pins_of_this_project_are_audited(
    tmp_path: Path,
    version: str,
    status: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "vulns" / "flask" / "x.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(
        ADVISORY.replace("Some.Package", "Flask").replace("2.0.0", version).replace("2.0.7", "999")
    )
    monkeypatch.setenv("ADVISORIES", str(tmp_path))

    assert audit.main() == status
    out = capsys.readouterr().out
    assert "advisories as of 2026-05-01" in out
    assert ("requirements.txt, requirements-dev.txt" in out) == bool(status)


def test_every_requirements_file_is_audited_and_every_line_of_it_is_read() -> None:
    found = {str(one.relative_to(pins.ROOT)) for one in _files()}

    assert found == set(pins.FILES)
    for file in pins.FILES:
        text = (pins.ROOT / file).read_text()
        assert len(pins.read(text)) == sum(line[:1].isalnum() for line in text.splitlines())


def _files() -> list[Path]:
    here = pins.ROOT.glob("requirements*.txt")
    rooms = ("audit", "bench", "controlplane", "tests")
    return [
        *here,
        *(file for room in rooms for file in pins.ROOT.glob(f"{room}/**/requirements*.txt")),
    ]


class Service:
    """Answers about pins as pip-audit does; of some, otherwise."""

    def __init__(self, **others: Any) -> None:
        self.asked: list[Pin] = []
        self._others = others

    def __call__(self, some: Sequence[Pin]) -> bytes:
        assert len({name for name, _ in some}) == len(some), "pip-audit refuses that"
        self.asked += some
        told = [
            {"name": name} | self._others.get(name, {"version": version, "vulns": []})
            for name, version in some
        ]
        return json.dumps({"dependencies": told, "fixes": []}).encode()


VULNERABLE = {
    "version": "3",
    "vulns": [{"id": "PYSEC-1-1", "fix_versions": ["99.1"], "aliases": ["CVE-1-1"]}],
}
UNFIXED = {"version": "3", "vulns": [{"id": "PYSEC-1-2", "fix_versions": []}]}
SKIPPED = {"skip_reason": "Dependency not found and could not be audited"}


def test_service_that_knows_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    asking = Service()

    assert audit.by_service(asking) == audit.CLEAN
    assert sorted(asking.asked) == sorted(pins.pinned()), "each pin is asked about, and once"
    assert capsys.readouterr() == (f"{len(asking.asked)} pins, by osv.dev: 0 findings\n", "")


@pytest.mark.parametrize(
    ("told", "cure"),
    [(VULNERABLE, "PYSEC-1-1 CVE-1-1; fixed in 99.1"), (UNFIXED, "PYSEC-1-2; no fix is known")],
    ids=["fixed", "not fixed"],
)
def test_service_that_knows_of_something(
    capsys: pytest.CaptureFixture[str], told: dict[str, Any], cure: str
) -> None:
    asking = Service(flask=told)

    assert audit.by_service(asking) == audit.VULNERABLE
    (pin,) = (pin for pin in asking.asked if pin[0] == "flask")
    assert capsys.readouterr().out == (
        f"flask {pin[1]}: {cure} ({', '.join(pins.pinned()[pin])})\n"
        f"{len(asking.asked)} pins, by osv.dev: 1 findings\n"
    )


def test_skipped_pin_is_no_audit(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.by_service(Service(click=SKIPPED, flask=VULNERABLE)) == audit.NOT_AUDITED
    told = capsys.readouterr()
    assert told.err.startswith("not audited: nothing could be learnt about click ")
    assert "PYSEC-1-1" in told.out, "what is known is told all the same"
    assert "findings" not in told.out


def test_pin_that_the_report_leaves_out_is_no_audit(capsys: pytest.CaptureFixture[str]) -> None:
    asked = Service(click={"name": "other", "vulns": []})

    assert audit.by_service(asked) == audit.NOT_AUDITED
    assert "learnt about click " in capsys.readouterr().err


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"Traceback (most recent call last):", id="no JSON"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"{}", id="no dependencies"),
        pytest.param(b'{"dependencies": [{}]}', id="no name"),
        pytest.param(b'{"dependencies": [{"name": "x", "vulns": [{}]}]}', id="no vulnerability"),
    ],
)
def test_service_that_is_not_reached_is_no_audit(
    capsys: pytest.CaptureFixture[str], report: bytes
) -> None:
    assert audit.by_service(lambda _: report) == audit.NOT_AUDITED
    assert capsys.readouterr() == (
        "",
        "not audited: pip-audit reached no service; see ADVISORIES in SECURITY.md\n",
    )


def test_service_that_is_lost_on_the_way_is_no_audit(capsys: pytest.CaptureFixture[str]) -> None:
    asking, reports = Service(flask=VULNERABLE), 0

    def once(some: Sequence[Pin]) -> bytes:
        nonlocal reports
        reports += 1
        return asking(some) if reports == 1 else b""

    assert audit.by_service(once) == audit.NOT_AUDITED
    assert "PYSEC-1-1" in capsys.readouterr().out


ECHO = """
import json, sys
*options, file = sys.argv[1:]
pins = [line.strip().split("==") for line in open(file)]
told = [{"name": name, "version": version, "vulns": []} for name, version in pins]
print(json.dumps({"dependencies": told, "options": options}))
print("No known vulnerabilities found", file=sys.stderr)
"""


def test_program_is_asked_about_bare_pins() -> None:
    asked = [("flask", "3.1.0"), ("colorama", "0.4.6")]
    report = service.ask(asked, program=(sys.executable, "-c", ECHO))

    assert service.read(report, asked) == ([], [])
    assert "--vulnerability-service=osv" in json.loads(report)["options"]
    assert [one["version"] for one in json.loads(report)["dependencies"]] == ["3.1.0", "0.4.6"]


@pytest.mark.parametrize(
    "script", ["import time; time.sleep(60)", "raise SystemExit('no module named pip_audit')"]
)
def test_program_that_cannot_ask_gives_no_report(script: str) -> None:
    began = time.monotonic()

    assert service.ask([], program=(sys.executable, "-c", script), patience=2.0) == b""
    assert time.monotonic() - began < 30
