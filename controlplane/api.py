"""A small HTTPS client for the launcher's calls, usually with a client certificate."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controlplane.errors import ControlPlaneError
from controlplane.pki import Files

_PROBE_TIMEOUT = 10.0  # seconds
_TIMEOUT = 60.0  # seconds; on a busy machine, creating a 300 KB CRD takes ten
_JSON = "application/json"
_CONTENT = {
    "GET": _JSON,
    "POST": _JSON,
    "DELETE": _JSON,
    "PATCH": "application/merge-patch+json",
}


class Api:
    """A client of one server on loopback. Each call opens a connection, since calls are few."""

    def __init__(self, port: int, ca: Path, client: Files | None = None) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=str(ca))
        if client is not None:
            self._context.load_cert_chain(client.certificate, client.key)

    def ok(self, path: str) -> bool:
        """Return whether GET `path` returns 200; False also if the server does not respond."""
        try:
            return self._call("GET", path, timeout=_PROBE_TIMEOUT)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def get(self, path: str) -> dict[str, Any] | None:
        """Return an object; None if it does not exist. Raises ControlPlaneError on other errors."""
        return self._object("GET", path, None)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Create and return an object; return None if it already exists, and leave it unchanged.

        Raises ControlPlaneError if the request fails.
        """
        return self._object("POST", path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> None:
        """Merge-patch an object if it exists. Raises ControlPlaneError if the request fails."""
        self._object("PATCH", path, body)

    def delete(self, path: str) -> None:
        """Delete an object if it exists. Raises ControlPlaneError if the request fails."""
        self._object("DELETE", path, None)

    def _object(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        try:
            status, content = self._call(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            raise ControlPlaneError(
                f"the API server does not respond to {method} {path}: {error}"
            ) from error
        if status in {404, 409}:
            return None
        if status >= 300:
            message = _message(content)
            raise ControlPlaneError(f"the API server rejects {method} {path}: {status} {message}")
        parsed: dict[str, Any] = json.loads(content)
        return parsed

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout: float = _TIMEOUT,
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self._port, context=self._context, timeout=timeout
        )
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {"Content-Type": _CONTENT[method], "Accept": _JSON},
            )
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def _message(content: bytes) -> str:
    """Return the message of a Status, or the start of any other response body."""
    try:
        return str(json.loads(content)["message"])
    except (ValueError, TypeError, LookupError):
        return content.decode(errors="replace")[:500]
