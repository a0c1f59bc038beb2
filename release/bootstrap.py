"""Entry point of holdfast.pyz: unpack it once, as Python cannot import compiled modules from a zip.

It runs before anything is unpacked, on any Python, so it may import only the standard library.
"""

import os
import platform
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path


def main() -> None:
    """Unpack the modules for this Python unless they are cached, and run the command."""
    if sys.version_info < (3, 11):  # noqa: UP036 - nothing has checked the version yet
        sys.exit("holdfast: Python 3.11 or newer is required; run: python3.12 holdfast.pyz")
    archive = Path(sys.argv[0]).resolve()
    with zipfile.ZipFile(archive) as files:
        digest = files.read("DIGEST").decode()
        modules = native()
        machine, python = modules.split("/")[1:3]
        if not any(name.startswith(modules) for name in files.namelist()):
            sys.exit(
                f"holdfast: this file has no modules for {python} on {machine}; install the wheel"
                " with pip, or use the image"
            )
        folder = _cache() / f"{digest}-{python}"
        if not folder.exists():
            _unpack(files, ("site/", f"native/{machine}/abi3/", modules), folder)
    sys.path.insert(0, str(folder))
    from holdfast.webhook.__main__ import main as command  # noqa: PLC0415 - unpacked just now

    command()


def native() -> str:
    """Return the folder in the archive with the modules compiled for this Python."""
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    return f"native/{sys.platform}-{platform.machine()}/{python}/"


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "holdfast" / "pyz"


def _unpack(files: zipfile.ZipFile, prefixes: tuple[str, ...], folder: Path) -> None:
    """Unpack to a temporary folder, then rename it: `folder` is never incomplete."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
    for name in files.namelist():
        for prefix in prefixes:
            if name.startswith(prefix):
                target = unfinished / name[len(prefix) :]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(files.read(name))
    try:
        unfinished.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(unfinished)


if __name__ == "__main__":
    main()
