"""Links between files of the repository work on the docs site."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from docs import publish, versions

ROOT = publish.ROOT


@pytest.mark.parametrize(
    ("here", "link", "there"),
    [
        pytest.param("index.md", "../README.md", "project/README.md", id="out of docs"),
        pytest.param("index.md", "how-to/delay.md#x", "how-to/delay.md#x", id="within docs"),
        pytest.param("how-to/a.md", "../reference/b.md", "../reference/b.md", id="across"),
        pytest.param("how-to/a.md", "#here", "#here", id="on the page"),
        pytest.param(
            "how-to/a.md", "https://kubernetes.io/", "https://kubernetes.io/", id="external"
        ),
        pytest.param("project/README.md", "docs/index.md", "../index.md", id="into docs"),
        pytest.param("project/README.md", "SECURITY.md", "SECURITY.md", id="outside docs"),
        pytest.param(
            "how-to/a.md", "../../examples/x.py", "../project/examples/x.py", id="an example"
        ),
    ],
)
def test_repository_links_are_rewritten_for_the_site(here: str, link: str, there: str) -> None:
    text = publish.relinked(f"see [this]({link}).", PurePosixPath(here))
    assert text == f"see [this]({there})."


def build(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "docs.publish", str(root)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site of a copy of the repository."""
    root = tmp_path_factory.mktemp("site")
    for name in ("docs", "examples"):
        shutil.copytree(ROOT / name, root / name)
    for path in (ROOT / "mkdocs.yml", *ROOT.glob("*.md")):
        shutil.copy(path, root)
    process = build(root)
    assert process.returncode == 0, process.stdout + process.stderr
    return root


@pytest.mark.parametrize("dead", ["[x](reference/none.md)", "[x](reference/cli.md#none)"])
def test_broken_link_fails_the_build(site_copy: Path, dead: str) -> None:
    index = site_copy / "docs" / "index.md"
    text = index.read_text()
    index.write_text(f"{text}\n{dead}\n")
    process = build(site_copy)
    index.write_text(text)
    assert process.returncode != 0
    assert "does not exist" in process.stdout + process.stderr


def test_site_loads_no_external_resources(site_copy: Path) -> None:
    pages = list((site_copy / "build" / "site").rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text()
        for tag in re.findall(r"<(?:script|link|img|iframe)[^>]*https?://[^>]*>", text):
            assert 'rel="canonical"' in tag or "rel=canonical" in tag, (page, tag)


def test_every_page_is_within_two_clicks_of_the_start_page(site_copy: Path) -> None:
    site = site_copy / "build" / "site"
    site_pages = {page for page in site.rglob("*.html") if page.name != "404.html"}
    reached, border = {site / "index.html"}, {site / "index.html"}
    for _ in range(2):
        border = {target for page in border for target in _links(page)} & site_pages - reached
        reached |= border
    assert site_pages - reached == set()


def _links(page: Path) -> set[Path]:
    """Return the pages that the text of a page links to, without the menu."""
    (text,) = re.findall(r"<article.*?</article>", page.read_text(), re.DOTALL)
    targets = re.findall(r'href="?([^"#>\s]+\.html)', text)
    return {(page.parent / target).resolve() for target in targets}


def test_versions_are_listed_with_the_newest_release_first(tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "all"
    site.mkdir()
    (site / "index.html").write_text("one")
    for version in ("0.9.0", "main", "0.10.0", "0.9.0"):
        versions.add(site, folder, version)
    entries = json.loads((folder / "versions.json").read_text())
    assert [entry["version"] for entry in entries] == ["0.10.0", "0.9.0", "main"]
    assert "url=0.10.0/index.html" in (folder / "index.html").read_text()
