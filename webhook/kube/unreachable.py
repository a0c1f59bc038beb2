"""Describe why a server did not respond, in the words of kubectl. Pure."""

import ssl
from http.client import RemoteDisconnected

from holdfast.webhook.model import messages


def reason(exc: Exception) -> str:
    """Return the reason for an error, without the notation of Python and OpenSSL."""
    origin = _origin(exc)
    if isinstance(origin, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {origin.verify_message}"
    if isinstance(origin, TimeoutError) and "handshake" in str(origin):
        return "TLS handshake timed out"
    if isinstance(origin, RemoteDisconnected):
        return "connection closed"
    if isinstance(origin, OSError) and origin.strerror and not isinstance(origin, ssl.SSLError):
        return messages.one_line(Exception(origin.strerror[:1].lower() + origin.strerror[1:]))
    return messages.one_line(origin) or type(origin).__name__


def _origin(exc: Exception) -> Exception:
    """Return the socket or TLS error that a client's error wraps."""
    for cause in (getattr(exc, "reason", None), *exc.args, exc.__cause__):
        if isinstance(cause, Exception):
            return _origin(cause)
    return exc
