import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/write-a-plugin.md").read_text()
STANDARD = {"__future__", "holdfast_signoff"}


@pytest.mark.parametrize("name", holdfast.__all__)
def test_each_name_can_be_imported(name: str) -> None:
    assert getattr(holdfast, name) is not None


def test_other_names_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'nothing'"):
        _ = holdfast.nothing


def test_the_page_lists_the_stable_names() -> None:
    table = PAGE.partition("<!-- names -->")[2].partition("<!-- /names -->")[0]
    first_cells = [row.split("|")[1] for row in table.strip().splitlines()[2:]]

    assert sorted(re.findall(r"`(\w+)`", "".join(first_cells))) == sorted(holdfast.__all__)


def test_the_page_lists_the_extension_points() -> None:
    table = PAGE.partition("| member |")[2].partition("\n\n")[0]
    first_cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    listed = set(re.findall(r"`(\w+)", "".join(first_cells)))
    members = {name for name in vars(holdfast.Plugin) if not name.startswith("_")}

    assert listed == members | {"name"}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").rglob("*.py")), ids=lambda path: path.name
)
def test_examples_import_only_the_public_package(path: Path) -> None:
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }

    assert imported - STANDARD == {"holdfast"}


def test_importing_the_package_loads_no_submodules() -> None:
    code = "import sys, holdfast; print([m for m in sys.modules if m.startswith('holdfast.')])"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert process.stdout.strip() == "[]"
