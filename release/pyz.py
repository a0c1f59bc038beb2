"""Build holdfast.pyz: the command line in one file, for all supported Pythons and platforms."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from controlplane import cache
from controlplane.errors import ControlPlaneError
from release import archives

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "linux-x86_64": ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64"),
    "linux-aarch64": ("manylinux_2_34_aarch64", "manylinux_2_28_aarch64", "manylinux2014_aarch64"),
    "darwin-arm64": ("macosx_11_0_arm64", "macosx_12_0_arm64", "macosx_13_0_arm64"),
}
"""The platforms, as bootstrap.py names them, with pip's tags; Linux requires glibc 2.34."""
UNUSED = frozenset(
    [
        *("aiohappyeyeballs", "aiohttp", "aiohttp_retry", "aiosignal", "attrs", "frozenlist"),
        *("markdown_it_py", "mdurl", "multidict", "propcache", "pycparser", "pygments", "yarl"),
    ]
)
"""Dependencies of other packages that nothing imports."""
GENERATED = re.compile(r"kubernetes/(aio/|client/(api|models)/(?!__init__\.py))")
"""Parts of the Kubernetes client that nothing imports; it loads without them."""
_SHEBANG = b"#!/usr/bin/env python3\n"


def build(wheel: Path) -> bytes:
    """Return holdfast.pyz, built from Holdfast's wheel and the pinned packages.

    Raises ControlPlaneError if a download fails, or if two packages contain different versions of a
    file.
    """
    files: dict[str, bytes] = {}
    for path in (wheel, *_downloaded()):
        with zipfile.ZipFile(path) as archive:
            for name, place in _placed(path, archive):
                content = archive.read(name)
                if files.setdefault(place, content) != content:
                    raise ControlPlaneError(f"two packages contain different versions of {place}")
    files["__main__.py"] = (ROOT / "release" / "bootstrap.py").read_bytes()
    parts = (f"{name} {hashlib.sha256(files[name]).hexdigest()}" for name in sorted(files))
    files["DIGEST"] = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16].encode()
    return _SHEBANG + archives.zipped(files)


def _placed(path: Path, archive: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    """Yield each file of a wheel and its path in the pyz; compiled wheels have one per Python."""
    names = [name for name in archive.namelist() if not name.endswith("/")]
    if path.name.endswith("-none-any.whl"):
        modules = (name for name in names if not GENERATED.match(name))
        yield from ((name, f"site/{name}") for name in modules)
        return
    place = path.parent.name  # PLATFORM-PYTHON, the folder of this download
    platform, _, python = place.rpartition("-")
    python = "abi3" if "-abi3-" in path.name else f"cp{python.replace('.', '')}"
    for name in names:
        yield name, f"native/{platform}/{python}/{name}"


def _downloaded() -> Iterator[Path]:
    """Yield the wheels: pure ones once, compiled ones for each Python on each platform."""
    pins = ROOT / "requirements.txt"
    parts = [pins.read_bytes(), repr((PYTHONS, PLATFORMS)).encode()]
    target = cache.root() / f"pyz-{cache.digest(parts)}"
    with cache.locked(target.with_suffix(".lock")):
        if not target.exists():
            with cache.publishing(target) as folder:
                for name, tags in PLATFORMS.items():
                    for python in PYTHONS:
                        _download(pins, folder / f"{name}-{python}", python, tags)
    wheels = {path.name: path for path in sorted(target.glob("*/*.whl"))}
    for name, path in wheels.items():  # the same wheel serves several Pythons
        if name.partition("-")[0].lower() not in UNUSED:
            yield path


def _download(pins: Path, folder: Path, python: str, tags: tuple[str, ...]) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    platforms = [f"--platform={tag}" for tag in tags]
    arguments = [f"--python-version={python}", f"--dest={folder}", f"--requirement={pins}"]
    result = subprocess.run(
        [*pip, *options, *platforms, *arguments], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        message = re.sub(r"\s+", " ", result.stderr.strip())[-300:]
        raise ControlPlaneError(f"pip cannot download the wheels for {folder.name}: {message}")
