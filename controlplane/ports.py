"""Choose free ports on loopback."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

from controlplane.errors import ControlPlaneError

_LOWEST = 15_000
_HIGHEST = 32_000
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 200


def free_ports(count: int) -> list[int]:
    """Return distinct ports that are free now.

    They are below the ephemeral range: otherwise, a client that dials a component while it is down
    could get that same port as its source port, and keep it. If no such port is free, the system
    chooses.
    """
    highest = min(_HIGHEST, _first_ephemeral() - 1)
    ports: list[int] = []
    with ExitStack() as stack:
        for _ in range(_TRIES):
            if len(ports) == count or highest <= _LOWEST:
                break
            port = random.randint(_LOWEST, highest)  # noqa: S311 - no secret
            if port not in ports and (listener := _bind(port)) is not None:
                stack.enter_context(listener)
                ports.append(port)
        while len(ports) < count:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            ports.append(server.getsockname()[1])
    return ports


def require_free(port: int) -> None:
    """Raise ControlPlaneError if a port that the user chose cannot be bound."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except PermissionError as error:
        raise ControlPlaneError(
            f"this user cannot listen on port {port}; choose a port from 1024 up"
        ) from error
    except (OSError, OverflowError) as error:
        raise port_taken(port) from error


def answers(port: int) -> bool:
    """Return whether a process listens on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def port_taken(port: int) -> ControlPlaneError:
    """Return the error for a port that the user chose and that is in use."""
    return ControlPlaneError(
        f"port {port} on 127.0.0.1 is already in use; choose another port, leave it out to get a "
        "free one, or stop the process that uses it"
    )


def _bind(port: int) -> socket.socket | None:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return None


def _first_ephemeral() -> int:
    try:
        return int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _HIGHEST + 1
