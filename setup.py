"""Keep the symlinks of holdfast/ in the source distribution; setuptools would copy the files."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

LINKS = ("webhook", "certs")


class LinkedSdist(sdist):
    """Packs symlinks instead of second copies of the sources."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Create the folder to be archived, with the symlinks in `LINKS`."""
        copies = tuple(f"holdfast/{name}/" for name in LINKS)
        super().make_release_tree(base_dir, [one for one in files if not one.startswith(copies)])
        for name in LINKS:
            (Path(base_dir) / "holdfast" / name).symlink_to(f"../{name}")


setup(cmdclass={"sdist": LinkedSdist})
