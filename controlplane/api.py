"""The few calls that the launcher itself makes, over HTTPS, mostly with a client certificate."""

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
_TIMEOUT = 60.0  # seconds; a busy machine takes ten to create a definition of 300 KB
_JSON = "application/json"
_CONTENT = {
    "GET": _JSON,
    "POST": _JSON,
    "DELETE": _JSON,
    "PATCH": "application/merge-patch+json",
}


class Api:
    """One server on loopback. Each call has its own connection: they are few."""

    def __init__(self, port: int, ca: Path, client: Files | None = None) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=str(ca))
        if client is not None:
            self._context.load_cert_chain(client.certificate, client.key)

    def ok(self, path: str) -> bool:
        """Return whether the server answers 200 there; False also while it does not answer."""
        try:
            return self._call("GET", path, timeout=_PROBE_TIMEOUT)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def get(self, path: str) -> dict[str, Any] | None:
        """Read an object; None if there is none. Raises ControlPlaneError on any other answer."""
        return self._object("GET", path, None)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Create an object; None if it is there already, and left unchanged.

        Raises ControlPlaneError if it is refused.
        """
        return self._object("POST", path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> None:
        """Merge into an object, if it is there. Raises ControlPlaneError if it is refused."""
        self._object("PATCH", path, body)

    def delete(self, path: str) -> None:
        """Delete an object, if it is there. Raises ControlPlaneError if that is refused."""
        self._object("DELETE", path, None)

    def _object(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        try:
            status, content = self._call(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            raise ControlPlaneError(
                f"the API server does not answer {method} {path}: {error}"
            ) from error
        if status in {404, 409}:
            return None
        if status >= 300:
            said = _message(content)
            raise ControlPlaneError(f"the API server refuses {method} {path}: {status} {said}")
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
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def _message(content: bytes) -> str:
    """Give the message of a Status, or the start of anything else that a server answers."""
    try:
        return str(json.loads(content)["message"])
    except (ValueError, TypeError, LookupError):
        return content.decode(errors="replace")[:500]
