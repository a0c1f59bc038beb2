"""Fault runs of the same product version can be identified."""

import subprocess
from pathlib import Path

import pytest

from tests.faults import product


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in product.FOLDERS:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text(folder)
    (tmp_path / "tests").write_text("one")
    monkeypatch.setattr(product, "ROOT", tmp_path)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    options = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com")
    subprocess.run(["git", "-C", str(folder), *options, *arguments], check=True)


def commit(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "Change files")


def test_version_changes_only_with_the_product(checkout: Path) -> None:
    version = product.product()
    (checkout / "tests").write_text("another")
    assert product.product() == version
    commit(checkout)
    assert product.product() == version
    (checkout / "certs" / "file").write_text("another")
    assert product.product() == f"{version}+changed"
    commit(checkout)
    assert product.product() not in {version, f"{version}+changed"}


def test_product_version_is_unknown_without_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "ROOT", tmp_path)
    assert product.product() == product.UNKNOWN
