"""Add the built site to a folder with one site per version: `python -m docs.versions`.

The theme offers the versions listed in the folder's versions.json.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

_NUMBER = re.compile(r"\d+")
_REDIRECT = '<!doctype html><meta http-equiv="refresh" content="0; url={0}/index.html">\n'


def add(site: Path, folder: Path, version: str) -> None:
    """Replace the site of a version, and list all versions, with the newest release first."""
    shutil.rmtree(folder / version, ignore_errors=True)
    shutil.copytree(site, folder / version)
    names = [path.name for path in folder.iterdir() if (path / "index.html").is_file()]
    names.sort(key=lambda name: (name[0].isdigit(), list(map(int, _NUMBER.findall(name)))))
    names.reverse()
    entries = [{"version": name, "title": name, "aliases": []} for name in names]
    (folder / "versions.json").write_text(json.dumps(entries, indent=2) + "\n")
    (folder / "index.html").write_text(_REDIRECT.format(names[0]))


if __name__ == "__main__":
    add(Path("build/site"), Path(sys.argv[1]), sys.argv[2])
