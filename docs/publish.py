"""The site's hook: files outside docs/ that pages link to become part of it.

Pages are written to be read in the repository too, so their links are those of the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

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
    "examples/plugin/holdfast_signoff.py",
    "examples/plugin/test_signoff.py",
)
_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files from outside docs/."""
    for name in FILES:
        content = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, str(OUTSIDE / name), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of the repository into those of the site."""
    del config, files
    return relinked(markdown, PurePosixPath(page.file.src_uri))


def relinked(markdown: str, here: PurePosixPath) -> str:
    """Rewrite the relative links of the page that the site has at `here`."""
    source = repository_path(here)

    def rewritten(found: re.Match[str]) -> str:
        before, target, anchor, after = found.groups()
        wanted = site_path(PurePosixPath(posixpath.normpath(source.parent / target)))
        return f"{before}{posixpath.relpath(wanted, here.parent)}{anchor or ''}{after}"

    return _LINK.sub(rewritten, markdown)


def repository_path(site: PurePosixPath) -> PurePosixPath:
    """Say where the repository has what the site has at a path."""
    return site.relative_to(OUTSIDE) if site.is_relative_to(OUTSIDE) else DOCS / site


def site_path(repository: PurePosixPath) -> PurePosixPath:
    """Say where the site has what the repository has at a path."""
    if repository.is_relative_to(DOCS):
        return repository.relative_to(DOCS)
    return OUTSIDE / repository
