"""A lower bound, not a peer: a webhook with a fixed response that does not parse the request.

A creation with it costs the API server's own work for a webhook and a round trip over TLS. No
webhook that adds a gate in its response can cost less.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import ssl
from typing import Any

_PATCH = [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "holdfast.dev/delay"}]}]
_RESPONSE = {
    "uid": "{uid}",
    "allowed": True,
    "patchType": "JSONPatch",
    "patch": base64.b64encode(json.dumps(_PATCH).encode()).decode(),
}
_ANSWER = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": _RESPONSE}
_BEFORE, _AFTER = json.dumps(_ANSWER, separators=(",", ":")).encode().split(b"{uid}")
_LENGTH = re.compile(rb"(?i)content-length: ([0-9]+)").search
_UID = re.compile(rb'"uid":"([^"]*)"').search
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class FixedAnswer(asyncio.Protocol):
    """A connection whose requests all get the same patch."""

    def connection_made(self, transport: Any) -> None:
        """Start with an empty buffer."""
        self._transport, self._come = transport, b""

    def data_received(self, data: bytes) -> None:
        """Respond once the request is complete. Clients never pipeline requests here."""
        self._come += data
        end = self._come.find(b"\r\n\r\n")
        length = _LENGTH(self._come) if end >= 0 else None
        if length is None or len(self._come) < end + 4 + int(length[1]):
            return
        uid = _UID(self._come, end)
        response = _BEFORE + (uid[1] if uid else b"") + _AFTER
        self._transport.write(_HEAD % len(response) + response)
        self._come = b""


async def _main() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.environ["PEER_CERT"], os.environ["PEER_KEY"])
    loop = asyncio.get_running_loop()
    port = int(os.environ["PEER_PORT"])
    server = await loop.create_server(FixedAnswer, "127.0.0.1", port, ssl=context)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
