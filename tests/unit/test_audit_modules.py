"""Audit of Go modules by a folder of advisories.

Seen to fail: with `0` taken for the version 0.0.0, which found whatever had been fixed in a
pre-release of that; with replacements not followed; with withdrawn advisories counted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from audit import __main__ as audit
from audit import modules
from audit.pins import ROOT

GO_MOD = """module example.com/mine

go 1.26.0

tool example.com/a/cmd

require example.com/single v1.0.0

require (
\texample.com/a v1.2.3
\texample.com/b v0.0.0-20250101000000-abcdef123456 // indirect
\texample.com/c v2.0.0+incompatible // indirect
\texample.com/local v0.0.0
\texample.com/only v1.1.0
)

replace example.com/local => ../local

replace (
\texample.com/a => example.com/fork v1.9.0
\texample.com/only v1.0.0 => example.com/only v1.0.1
)
"""


def test_modules_are_read_as_they_are_replaced() -> None:
    assert modules.modules(GO_MOD) == [
        ("example.com/single", "1.0.0"),
        ("example.com/fork", "1.9.0"),
        ("example.com/b", "0.0.0-20250101000000-abcdef123456"),
        ("example.com/c", "2.0.0+incompatible"),
        ("example.com/only", "1.1.0"),
    ]


def written(folder: Path, *events: dict[str, str], module: str = "a", **more: Any) -> Path:
    file = folder / "data" / "osv" / "GO-2026-1.json"
    file.parent.mkdir(parents=True)
    ranges = [{"type": "SEMVER", "events": list(events)}]
    affected = [{"package": {"name": module, "ecosystem": "Go"}, "ranges": ranges}]
    file.write_text(json.dumps({"id": "GO-2026-1", "affected": affected, **more}))
    return folder


@pytest.mark.parametrize(
    ("version", "events", "known"),
    [
        pytest.param("1.9.9", [("introduced", "0"), ("fixed", "1.10.0")], True, id="before"),
        pytest.param("1.10.0", [("introduced", "0"), ("fixed", "1.10.0")], False, id="fixed"),
        pytest.param("1.10.0-rc.2", [("introduced", "0"), ("fixed", "1.10.0")], True, id="nearly"),
        pytest.param(
            "1.10.0-rc.10",
            [("introduced", "0"), ("fixed", "1.10.0-rc.9")],
            False,
            id="fixed in a pre-release",
        ),
        pytest.param(
            "0.57.0",
            [("introduced", "0"), ("fixed", "0.0.0-20190125091013-d26f9f9a57f3")],
            False,
            id="fixed long ago",
        ),
        pytest.param(
            "0.0.0-20180101000000-aaaaaaaaaaaa",
            [("introduced", "0"), ("fixed", "0.0.0-20190125091013-d26f9f9a57f3")],
            True,
            id="not fixed so early",
        ),
        pytest.param("2.0.0+incompatible", [("introduced", "0")], True, id="never fixed"),
        pytest.param("1.0.0", [("introduced", "1.1.0")], False, id="not introduced"),
        pytest.param(
            "1.5.0",
            [("introduced", "0"), ("fixed", "1.2.0"), ("introduced", "1.4.0"), ("fixed", "1.6.0")],
            True,
            id="introduced again",
        ),
        pytest.param(
            "1.3.0",
            [("introduced", "0"), ("fixed", "1.2.0"), ("introduced", "1.4.0"), ("fixed", "1.6.0")],
            False,
            id="between",
        ),
    ],
)
def test_findings(tmp_path: Path, version: str, events: list[tuple[str, str]], known: bool) -> None:
    folder = written(tmp_path, *({kind: at} for kind, at in events))
    found = list(modules.Database(folder).findings([("a", version), ("other", version)]))

    assert bool(found) == known


def test_withdrawn_advisories_do_not_count(tmp_path: Path) -> None:
    folder = written(tmp_path, {"introduced": "0"}, withdrawn="2026-06-01T10:00:00Z")

    assert list(modules.Database(folder).findings([("a", "1.0.0")])) == []


def test_finding_names_the_cure(tmp_path: Path) -> None:
    folder = written(tmp_path, {"introduced": "0"}, {"fixed": "1.0.1"}, aliases=["CVE-1-1"])
    (found,) = modules.Database(folder).findings([("a", "1.0.0")])

    assert str(found) == "a 1.0.0: GO-2026-1 CVE-1-1; fixed in 1.0.1"


@pytest.mark.parametrize(
    ("fixed", "status"), [("999.0.0", audit.VULNERABLE), ("1.0.0", audit.CLEAN)]
)
def test_modules_of_this_project_are_audited(
    tmp_path: Path,
    fixed: str,
    status: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = ({"introduced": "0"}, {"fixed": fixed})
    monkeypatch.setenv("GO_ADVISORIES", str(written(tmp_path, *events, module="stdlib")))

    assert audit.main() == status
    out = capsys.readouterr().out
    assert f"{len(modules.pinned())} Go modules, advisories up to GO-2026-1" in out
    assert ("controlplane/requirements-go.txt" in out) == bool(status)


def test_folder_without_advisories_is_no_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GO_ADVISORIES", str(tmp_path))

    assert audit.main() == audit.NOT_AUDITED
    assert capsys.readouterr().err == (
        f"not audited: {tmp_path}: holds no advisories; name a clone of golang/vulndb\n"
    )


def test_every_go_mod_is_audited_and_every_line_of_it_is_read() -> None:
    rooms = [one for one in ROOT.iterdir() if one.is_dir() and one.name[0] != "."]
    there = {file for room in rooms if room.name != "build" for file in room.rglob("go.mod")}

    assert set(modules.files()) == there
    for file in modules.files():
        text = file.read_text()
        required = [line for line in text.splitlines() if " v" in line and "=>" not in line]
        assert len(modules.modules(text)) == len(required)
