"""The build cache: entries are built under a lock, then renamed into place."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.errors import ControlPlaneError, from_os_error

_DIGEST_LENGTH = 16  # hex digits, 64 bits: a handful of builds will not collide


def root() -> Path:
    """Return the cache folder. A relative XDG_CACHE_HOME is ignored, as the XDG spec requires."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path.home() / ".cache"
    return base / "holdfast" / "controlplane"


def digest(parts: Iterable[bytes]) -> str:
    """Return a short hexadecimal checksum of the parts and their boundaries."""
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(hashlib.sha256(part).digest())
    return checksum.hexdigest()[:_DIGEST_LENGTH]


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock file `path`; call `waiting` once if another process has it.

    Raises ControlPlaneError if its folder cannot be created or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("a")
    except OSError as error:
        raise from_os_error(error, path.parent) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def lock_now(path: Path, reason: str) -> Iterator[None]:
    """Hold the lock file `path`, or raise ControlPlaneError(`reason`) if another process has it."""

    def refuse() -> None:
        raise ControlPlaneError(reason)

    with locked(path, refuse):
        yield


@contextmanager
def publishing(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `target` at the end, or is removed on any error.

    The caller must hold the lock of `target`: leftovers of killed builds are removed, too.
    """
    for leftover in target.parent.glob(f"{target.name}.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))
        try:
            yield folder
            if target.exists():
                shutil.rmtree(target)
            folder.rename(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise from_os_error(error, target.parent) from error
