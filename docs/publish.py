"""Build the documentation site: `make docs` writes it to build/site.

Links on pages are relative to the repository. Before the build, the pages and some files from
outside docs/ are copied to build/pages, with links rewritten for the site.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
DOCS = PurePosixPath("docs")
OUTSIDE = PurePosixPath("project")
"""The site's folder for files from outside docs/."""
FILES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "GOVERNANCE.md",
    "CODE_OF_CONDUCT.md",
    "examples/argocd/argocd-cm.yaml",
    "examples/plugin/holdfast_signoff.py",
    "examples/plugin/test_signoff.py",
)
_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")


def stage(root: Path) -> None:
    """Write the sources of the site to the repository's build folder."""
    pages = root / "build" / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    (root / "build").mkdir(exist_ok=True)
    shutil.copyfile(root / "mkdocs.yml", root / "build" / "mkdocs.yml")
    shutil.copytree(root / DOCS, pages, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name in FILES:
        (pages / OUTSIDE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, pages / OUTSIDE / name)
    for path in pages.rglob("*.md"):
        page = PurePosixPath(path.relative_to(pages).as_posix())
        path.write_text(relinked(path.read_text(encoding="utf-8"), page), encoding="utf-8")


def relinked(markdown: str, page: PurePosixPath) -> str:
    """Return a page with its relative links rewritten; `page` is its path on the site."""
    source = repository_path(page)

    def rewritten(match: re.Match[str]) -> str:
        before, target, anchor, after = match.groups()
        destination = site_path(PurePosixPath(posixpath.normpath(source.parent / target)))
        return f"{before}{posixpath.relpath(destination, page.parent)}{anchor or ''}{after}"

    return _LINK.sub(rewritten, markdown)


def repository_path(site: PurePosixPath) -> PurePosixPath:
    """Return the path in the repository of a file on the site."""
    return site.relative_to(OUTSIDE) if site.is_relative_to(OUTSIDE) else DOCS / site


def site_path(repository: PurePosixPath) -> PurePosixPath:
    """Return the path on the site of a file in the repository."""
    if repository.is_relative_to(DOCS):
        return repository.relative_to(DOCS)
    return OUTSIDE / repository


def main(root: Path) -> int:
    """Build the site, and return the exit status; a broken link or anchor fails the build."""
    stage(root)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(
        command, cwd=root / "build", check=False
    ).returncode  # the build leaves a cache in cwd


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else ROOT))
