"""The ports at which a process listens."""

from __future__ import annotations

import errno
import os
import socket
from typing import Protocol

ANY = "::"
"""All addresses of this machine, of both families; where it has no IPv6, those of IPv4."""
_ANY_OF_IPV4 = "0.0.0.0"  # noqa: S104
_NO_IPV6 = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}


class Create(Protocol):
    """`socket.create_server`, as far as it is used here."""

    def __call__(
        self,
        address: tuple[str, int],
        /,
        *,
        family: int,
        backlog: int,
        dualstack_ipv6: bool,
    ) -> socket.socket:
        """Bind a socket, and listen. Raises OSError."""
        ...


def bound(
    host: str, port: int, backlog: int, create: Create = socket.create_server
) -> socket.socket:
    """Take a port, and listen at it. Raises OSError, or OverflowError where there is no such port.

    A kubelet probes a pod at its first address, which in a cluster of IPv6 is none of IPv4.
    """
    try:
        return _any(port, backlog, create) if host == ANY else _one(host, port, backlog, create)
    except socket.gaierror:
        raise
    except OSError as error:  # without the address, which Python adds: whoever asked names it
        raise OSError(error.errno, os.strerror(error.errno or 0)) from error


def _any(port: int, backlog: int, create: Create) -> socket.socket:
    try:
        return create((ANY, port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
        return _one(_ANY_OF_IPV4, port, backlog, create)


def _one(host: str, port: int, backlog: int, create: Create) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return create((str(address[0]), port), family=family, backlog=backlog, dualstack_ipv6=False)


def written(host: str, port: int) -> str:
    """Write an address as a URL has it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
