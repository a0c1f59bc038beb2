"""The site of the docs has the links of the repository."""

import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from docs import publish

ROOT = publish.ROOT


@pytest.mark.parametrize(
    ("here", "link", "there"),
    [
        pytest.param("index.md", "../README.md", "project/README.md", id="out of docs"),
        pytest.param("index.md", "how-to/delay.md#x", "how-to/delay.md#x", id="within docs"),
        pytest.param("how-to/a.md", "../reference/b.md", "../reference/b.md", id="across"),
        pytest.param("how-to/a.md", "#here", "#here", id="on the page"),
        pytest.param("how-to/a.md", "https://kubernetes.io/", "https://kubernetes.io/", id="far"),
        pytest.param("project/README.md", "docs/index.md", "../index.md", id="into docs"),
        pytest.param("project/README.md", "SECURITY.md", "SECURITY.md", id="outside docs"),
        pytest.param(
            "how-to/a.md", "../../examples/x.py", "../project/examples/x.py", id="an example"
        ),
    ],
)
def test_links_of_the_repository_become_those_of_the_site(here: str, link: str, there: str) -> None:
    made = publish.relinked(f"see [this]({link}).", PurePosixPath(here))
    assert made == f"see [this]({there})."


def build(config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(config)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_broken_link_fails_the_build(tmp_path: Path) -> None:
    for name in ("docs", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for path in (ROOT / "mkdocs.yml", *ROOT.glob("*.md")):
        shutil.copy(path, tmp_path)
    index = tmp_path / "docs" / "index.md"
    whole = index.read_text()
    assert build(tmp_path / "mkdocs.yml").returncode == 0
    for dead in ("[x](reference/none.md)", "[x](reference/cli.md#none)"):
        index.write_text(f"{whole}\n{dead}\n")
        done = build(tmp_path / "mkdocs.yml")
        assert done.returncode == 1
        assert "'reference/" in done.stderr


def test_the_site_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text()
        for mark in ('<script src="http', '<script src="//', '<link href="http', '<img src="http'):
            assert mark not in text, page
