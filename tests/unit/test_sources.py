import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_two_classes_share_a_name() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for folder in ("webhook", "certs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    modules[node.name].append(str(path.relative_to(ROOT)))
    assert len(modules) > 100
    assert {name: paths for name, paths in modules.items() if len(paths) > 1} == {}


def test_only_fips_approved_hashes_are_used() -> None:
    names = set()
    for folder in ("webhook", "certs"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "hashlib":
                    names.add(node.attr)
    assert names == {"sha256"}
