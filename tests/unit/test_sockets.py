"""Listeners bind both IPv4 and IPv6, or IPv4 alone without IPv6."""

import errno
import os
import socket
from typing import Any

import pytest

from holdfast.webhook import sockets


@pytest.mark.parametrize("caller", ["127.0.0.1", "::1"])
def test_any_address_listens_on_ipv4_and_ipv6(caller: str) -> None:
    with sockets.bound(sockets.ANY, 0, 5) as listener:
        port = listener.getsockname()[1]
        socket.create_connection((caller, port), timeout=5).close()


@pytest.mark.parametrize(("host", "other"), [("127.0.0.1", "::1"), ("::1", "127.0.0.1")])
def test_single_address_listens_on_that_address_only(host: str, other: str) -> None:
    listener, reserved = listen_with_reserved_port(host, other)
    with listener, reserved:
        port = listener.getsockname()[1]
        socket.create_connection((host, port), timeout=5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, port), timeout=5)


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_ipv4_is_used_without_ipv6(code: int) -> None:
    with sockets.bound(sockets.ANY, 0, 5, create=failing_ipv6(code)) as listener:
        assert listener.family == socket.AF_INET
        socket.create_connection(listener.getsockname(), timeout=5).close()


def test_port_in_use_on_ipv6_does_not_fall_back_to_ipv4() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
        sockets.bound(sockets.ANY, 0, 5, create=failing_ipv6(errno.EADDRINUSE))


def listen_with_reserved_port(host: str, other: str) -> tuple[socket.socket, socket.socket]:
    """Return a listener at `host`, and a socket that reserves its port at `other`."""
    for _ in range(20):
        reserved = socket.socket(socket.AF_INET6 if ":" in other else socket.AF_INET)
        try:
            reserved.bind((other, 0))
            return sockets.bound(host, reserved.getsockname()[1], 5), reserved
        except OSError as error:
            reserved.close()
            if error.errno != errno.EADDRINUSE:
                raise
    pytest.fail(f"{host} could not be bound to any of 20 ports that were free at {other}")


def failing_ipv6(code: int) -> sockets.Create:
    """Return a factory for sockets that fails with `code` for IPv6."""

    def create(address: tuple[str, int], *, family: int, **options: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(code, os.strerror(code))
        return socket.create_server(address, family=family, **options)

    return create


def test_address_is_written_as_in_a_url() -> None:
    assert sockets.written("::1", 80) == "[::1]:80"
    assert sockets.written("10.0.0.1", 80) == "10.0.0.1:80"
