"""Each row of the privilege table names existing tests."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.generate import PRIVILEGES

ROOT = Path(__file__).resolve().parents[2]
ROWS = yaml.safe_load(PRIVILEGES.read_text(encoding="utf-8"))
ATTACKERS = {
    "a pod on the network",
    "a compromised node",
    "a user who may create pods",
    "a user who may edit VMs",
    "the admin of a namespace",
    "the holder of the webhook's token",
    "the holder of the controller's token",
}


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['attacker']}: {row['can']}"[:60])
def test_each_row_names_existing_tests(row: dict[str, Any]) -> None:
    references = [reference.split("::") for reference in row["tests"]]

    assert row.keys() == {"attacker", "can", "cannot", "tests"}
    assert all(row.values())
    assert [test for file, test in references if test not in functions(file)] == []


def test_each_attacker_is_in_the_table() -> None:
    attackers = {row["attacker"] for row in ROWS}

    assert all(any(attacker.startswith(prefix) for attacker in attackers) for prefix in ATTACKERS)
