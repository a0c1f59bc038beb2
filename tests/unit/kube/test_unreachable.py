"""Why a server did not answer, in plain words."""

from __future__ import annotations

import socket
import ssl
from http.client import RemoteDisconnected

import pytest
from urllib3.connection import HTTPConnection
from urllib3.exceptions import MaxRetryError, NewConnectionError, ProtocolError

from holdfast.webhook.kube import unreachable

GONE = RemoteDisconnected("Remote end closed connection without response")
REFUSED = ConnectionRefusedError(111, "Connection refused")


def caused(exc: Exception, cause: Exception) -> Exception:
    exc.__cause__ = cause
    return exc


@pytest.mark.parametrize(
    ("exc", "reason"),
    [
        pytest.param(REFUSED, "connection refused", id="refused"),
        pytest.param(
            MaxRetryError(
                None,  # type: ignore[arg-type]
                "/",
                caused(NewConnectionError(HTTPConnection("a"), "Failed"), REFUSED),
            ),
            "connection refused",
            id="refused, by urllib3",
        ),
        pytest.param(ProtocolError("Connection aborted.", GONE), "connection closed", id="closed"),
        pytest.param(
            TimeoutError("_ssl.c:989: The handshake operation timed out"),
            "TLS handshake timed out",
            id="handshake",
        ),
        pytest.param(
            socket.gaierror(-2, "Name or service not known"), "name or service not known", id="name"
        ),
        pytest.param(TimeoutError("timed out"), "timed out", id="timeout"),
        pytest.param(TimeoutError(), "TimeoutError", id="no text"),
        pytest.param(ssl.SSLError(1, "[SSL] wrong version"), "[SSL] wrong version", id="TLS"),
    ],
)
def test_reasons(exc: Exception, reason: str) -> None:
    assert unreachable.reason(exc).removeprefix("[Errno 1] ") == reason
