"""Ports are taken on both families, and on the one that is there."""

import errno
import os
import socket

import pytest

from holdfast.webhook import sockets


@pytest.mark.parametrize("caller", ["127.0.0.1", "::1"])
def test_all_addresses_are_those_of_both_families(caller: str) -> None:
    with sockets.bound(sockets.ANY, 0, 5) as listener:
        port = listener.getsockname()[1]
        socket.create_connection((caller, port), timeout=5).close()


@pytest.mark.parametrize(("host", "other"), [("127.0.0.1", "::1"), ("::1", "127.0.0.1")])
def test_one_address_is_that_one_alone(host: str, other: str) -> None:
    listener, silent = beside_a_silent_port(host, other)
    with listener, silent:
        port = listener.getsockname()[1]
        socket.create_connection((host, port), timeout=5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, port), timeout=5)


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_without_ipv6_it_is_ipv4(code: int) -> None:
    with sockets.bound(sockets.ANY, 0, 5, create=lacking(code)) as listener:
        assert listener.family == socket.AF_INET
        socket.create_connection(listener.getsockname(), timeout=5).close()


def test_a_port_that_is_taken_is_not_taken_on_ipv4_alone() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
        sockets.bound(sockets.ANY, 0, 5, create=lacking(errno.EADDRINUSE))


def beside_a_silent_port(host: str, other: str) -> tuple[socket.socket, socket.socket]:
    """A listener at `host`, and its port at `other`, so that no other process uses it."""
    for _ in range(20):
        silent = socket.socket(socket.AF_INET6 if ":" in other else socket.AF_INET)
        try:
            silent.bind((other, 0))
            return sockets.bound(host, silent.getsockname()[1], 5), silent
        except OSError as error:
            silent.close()
            if error.errno != errno.EADDRINUSE:
                raise
    pytest.fail(f"{host} could not be bound to any of 20 ports that were free at {other}")


def lacking(code: int) -> sockets.Create:
    """Make sockets as a machine does that fails so for IPv6."""

    def create(
        address: tuple[str, int], *, family: int, backlog: int, dualstack_ipv6: bool
    ) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(code, os.strerror(code))
        return socket.create_server(
            address, family=family, backlog=backlog, dualstack_ipv6=dualstack_ipv6
        )

    return create


def test_an_address_is_written_as_in_a_url() -> None:
    assert sockets.written("::1", 80) == "[::1]:80"
    assert sockets.written("10.0.0.1", 80) == "10.0.0.1:80"
