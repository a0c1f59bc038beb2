"""Keep the links of holdfast/ to the sources in the source distribution; setuptools copies them."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

LINKS = ("webhook", "certs")


class LinkedSdist(sdist):
    """Writes links instead of second copies of the sources."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Make the folder that becomes the archive."""
        copies = tuple(f"holdfast/{name}/" for name in LINKS)
        super().make_release_tree(base_dir, [one for one in files if not one.startswith(copies)])
        for name in LINKS:
            (Path(base_dir) / "holdfast" / name).symlink_to(f"../{name}")


setup(cmdclass={"sdist": LinkedSdist})
