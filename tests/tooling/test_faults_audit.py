"""The audit log of the fault rows: no line is lost when the log is rotated."""

import json
from pathlib import Path

import pytest

from tests.faults.assertions import find_unreleased
from tests.faults.audit import CONTROLLER, Audit

NAMES = ("before", "written-last", "after")


def line(name: str) -> str:
    event = {
        "verb": "patch",
        "objectRef": {"resource": "pods", "namespace": "rows", "name": name},
        "responseStatus": {"code": 200},
        "requestReceivedTimestamp": "2026-01-02T03:04:05.678901Z",
        "stageTimestamp": "2026-01-02T03:04:06.678901Z",
        "user": {"username": f"{CONTROLLER}holdfast-controller"},
    }
    return json.dumps(event, separators=(",", ":")) + "\n"


def test_lines_written_before_log_rotation_are_read(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(path)
    with audit.followed():
        path.write_text(line("before"))
        audit.read()
        with path.open("a") as file:
            file.write(line("written-last"))
        path.rename(tmp_path / "audit-old.log")
        audit.read()
        path.write_text(line("after"))
        audit.read()
        assert [len(audit.releases["rows", name]) for name in NAMES] == [1, 1, 1]


def test_partial_line_is_buffered(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(path)
    with audit.followed():
        audit.read()
        path.write_text(line("whole")[:40])
        audit.read()
        with path.open("a") as file:
            file.write(line("whole")[40:])
        audit.read()
        (write,) = audit.releases["rows", "whole"]
        assert write.succeeded
        assert write.ended - write.at == pytest.approx(1)


def test_release_counts_once_it_is_in_the_audit_log(tmp_path: Path) -> None:
    path, due = tmp_path / "audit.log", {"on-time": 1.0, "late": 2.0, "missing": 9.0}
    path.write_text(line("on-time"))
    audit = Audit(path)
    with audit.followed():
        assert find_unreleased(audit, "rows", due) == ["late", "missing"]
        with path.open("a") as file:
            file.write(line("late"))
        assert find_unreleased(audit, "rows", due, [(8.0, 10.0)]) == []
        assert find_unreleased(audit, "elsewhere", {"on-time": 1.0}) == ["on-time"]
