"""The few calls that the launcher itself makes, over HTTPS with a client certificate."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

from controlplane.errors import ControlPlaneError
from controlplane.pki import Files

_TIMEOUT = 10.0  # seconds


class Api:
    """One server on loopback. Each call has a connection of its own: they are few."""

    def __init__(self, port: int, ca: Path, client: Files) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=str(ca))
        self._context.load_cert_chain(client.certificate, client.key)

    def ok(self, path: str) -> bool:
        """Tell whether the server answers 200 there; False also while it does not answer."""
        try:
            return self._call("GET", path)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def get(self, path: str) -> dict[str, Any] | None:
        """Read an object; None if there is none. Raises ControlPlaneError on any other answer."""
        return self._object("GET", path, None)

    def create(self, path: str, body: dict[str, Any]) -> None:
        """Create an object, or leave it as it is. Raises ControlPlaneError if it is refused."""
        self._object("POST", path, body)

    def delete(self, path: str) -> None:
        """Delete an object, if it is there. Raises ControlPlaneError if that is refused."""
        self._object("DELETE", path, None)

    def _object(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any] | None:
        try:
            status, content = self._call(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            raise ControlPlaneError(
                f"the API server does not answer {method} {path}: {error}"
            ) from error
        if status in {404, 409}:
            return None
        if status >= 300:
            said = content.decode(errors="replace")[:500]
            raise ControlPlaneError(f"the API server refuses {method} {path}: {status} {said}")
        parsed: dict[str, Any] = json.loads(content)
        return parsed

    def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self._port, context=self._context, timeout=_TIMEOUT
        )
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {"Content-Type": "application/json", "Accept": "application/json"},
            )
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
