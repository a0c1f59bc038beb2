"""Audit of pins by a folder of advisories.

Seen to fail: with the versions that a range fixes taken for vulnerable, and with withdrawn
advisories counted. On the PyPA's own database it finds urllib3 2.0.6 and not 2.0.7.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from audit import __main__ as audit
from audit import advisories, pins

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
