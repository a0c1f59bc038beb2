"""Each row of the table of privileges names tests, and there are such tests."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "security.md"
ATTACKERS = {
    "a pod on the network",
    "a user who may create pods",
    "a user who may edit VMs",
    "the admin of a namespace",
    "the holder of the webhook's token",
    "the holder of the controller's token",
}
_NAMED = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")


def rows() -> list[list[str]]:
    """Give the cells of each row, below the head."""
    text = PAGE.read_text()
    table = text.partition("<!-- privileges:begin -->")[2].partition("<!-- privileges:end -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}: {row[1]}"[:60])
def test_each_row_names_tests_that_there_are(row: list[str]) -> None:
    who, can, cannot, shown_by = row
    named = _NAMED.findall(shown_by)

    assert who
    assert can
    assert cannot
    assert named
    assert len(named) == len(shown_by.split(", "))
    assert [test for file, test in named if test not in functions(file)] == []


def test_each_attacker_is_in_the_table() -> None:
    seen = {row[0] for row in rows()}

    assert all(any(one.startswith(who) for one in seen) for who in ATTACKERS)
