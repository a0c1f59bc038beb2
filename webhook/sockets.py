"""Listening sockets."""

import errno
import os
import socket
from collections.abc import Callable

Create = Callable[..., socket.socket]
"""`socket.create_server`, or a fake of it."""
ANY = "::"
"""All addresses, IPv6 and IPv4; only IPv4 on a machine without IPv6."""
_ANY_OF_IPV4 = "0.0.0.0"  # noqa: S104
_NO_IPV6 = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}


def bound(
    host: str, port: int, backlog: int, create: Create = socket.create_server
) -> socket.socket:
    """Return a socket that listens on a port. Raises OSError, or OverflowError if it is invalid.

    The kubelet probes a pod at its first address, which in an IPv6 cluster is an IPv6 address.
    """
    try:
        if host != ANY:
            return _one(host, port, backlog, create)
        try:
            return create((ANY, port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
            return _one(_ANY_OF_IPV4, port, backlog, create)
    except socket.gaierror:
        raise
    except OSError as error:  # without the address that Python adds, because the caller adds it
        raise OSError(error.errno, os.strerror(error.errno or 0)) from error


def _one(host: str, port: int, backlog: int, create: Create) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return create((str(address[0]), port), family=family, backlog=backlog, dualstack_ipv6=False)


def written(host: str, port: int) -> str:
    """Format an address for a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
