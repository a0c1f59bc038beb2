"""Errors of a control plane: one line each, with the problem, the place and the fix.

ControlPlaneError
└── PortTakenError    another process took a component's port; a start with new ports may succeed
"""

from __future__ import annotations

import errno
from pathlib import Path

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


class ControlPlaneError(Exception):
    """A control plane could not be built, started, called or stopped."""


class PortTakenError(ControlPlaneError):
    """A component found its port in use."""


def disk_full(where: Path) -> ControlPlaneError:
    """Return the error for a full file system at `where`."""
    return ControlPlaneError(
        f"the disk of {where} is full; free about 5 GB there, or set XDG_CACHE_HOME, GOCACHE and "
        "GOMODCACHE to folders on a larger one, and start again"
    )


def from_os_error(error: OSError, where: Path) -> ControlPlaneError:
    """Return the error, with its fix, for a failed write to `where`."""
    if error.errno in _FULL:
        return disk_full(where)
    if error.errno in _FORBIDDEN:
        return ControlPlaneError(
            f"cannot write {error.filename or where} ({error.strerror}); make {where} writable, or "
            "set XDG_CACHE_HOME to a folder that is"
        )
    return ControlPlaneError(f"cannot use {where}: {error}; check that path and start again")
