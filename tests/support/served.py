"""Commands against a fake API server that is served over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml
from click.testing import CliRunner, Result

from holdfast.webhook.cli.main import cli, with_advice
from holdfast.webhook.errors import ApiStatusError, HoldfastError
from tests.support.fakes import FakeApi

CONTEXTS = {"here": "default", "there": "shop"}
"""Each context and its namespace."""
_USER = {"status": {"allowed": True, "userInfo": {"username": "jane"}}}


@dataclass
class ServedApi:
    """A fake API server with two contexts, and the requests it has received.

    Requests for the paths in `forbidden` get a 403.
    """

    api: FakeApi
    kubeconfig: Path
    headers: list[list[tuple[str, str]]] = field(default_factory=list)
    forbidden: set[str] = field(default_factory=set)
    unreviewed: set[str] = field(default_factory=set)
    """The resources of which reviews of rights are denied."""
    warnings: list[str] = field(default_factory=list)
    """The values of the header `Warning` of each response."""

    def __post_init__(self) -> None:
        for kind in ("mutating", "validating"):
            path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
            self.api.answers[path] = b'{"metadata": {}, "items": []}'

    def run(self, *arguments: str, code: int = 0) -> Result:
        """Run a command, and check its exit status."""
        result = CliRunner().invoke(cli, arguments, env={"KUBECONFIG": str(self.kubeconfig)})
        if isinstance(result.exception, HoldfastError):
            result.stderr_bytes = (result.stderr_bytes or b"") + with_advice(
                result.exception
            ).encode()
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def answer(self, method: str, url: str, body: bytes, kind: str) -> tuple[int, bytes]:
        """Respond as the fake API server does, and allow all reviews of rights."""
        parts = urlsplit(url)
        if parts.path in self.forbidden:
            return 403, b'{"reason": "Forbidden", "message": "closed"}'
        if parts.path.endswith("reviews"):
            attributes = json.loads(body).get("spec", {}).get("resourceAttributes", {})
            denied = {"status": {"allowed": False}}
            is_denied = attributes.get("resource") in self.unreviewed
            return 201, json.dumps(denied if is_denied else _USER).encode()
        query = dict(parse_qsl(parts.query))
        objects = dict(self.api.objects)
        try:
            content = self.api.request(
                method, parts.path, query=query, body=body or None, content_type=kind
            )
        except ApiStatusError as exc:
            status = {"reason": exc.reason, "message": str(exc)}
            return exc.status, json.dumps(status).encode()
        if "dryRun" in query:
            self.api.objects = objects
        return 200, content


def _handler(served: ServedApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            served.headers.append(self.headers.items())
            length = int(self.headers.get("Content-Length", 0))
            kind = self.headers.get("Content-Type", "application/json")
            status, body = served.answer(self.command, self.path, self.rfile.read(length), kind)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for warning in served.warnings:
                self.send_header("Warning", warning)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's
            del format, args

    for method in ("GET", "POST", "PATCH", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.answer)
    return Handler


def kubeconfig(server: str) -> dict[str, Any]:
    """Make a kubeconfig with two contexts of the user `jane`."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": name, "context": {"cluster": "c", "user": "jane", "namespace": namespace}}
            for name, namespace in CONTEXTS.items()
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": server}},
            {"name": "gone", "cluster": {"server": "http://127.0.0.1:1"}},
        ],
        "users": [
            {"name": "jane", "user": {"token": "jane"}},
            {"name": "joe", "user": {"token": "joe", "as": "ops"}},
        ],
    }


@contextmanager
def served(api: FakeApi, folder: Path) -> Iterator[ServedApi]:
    """Serve a fake API server."""
    served_api = ServedApi(api, folder / "kubeconfig")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(served_api))
    address = f"http://127.0.0.1:{server.server_address[1]}"
    served_api.kubeconfig.write_text(yaml.safe_dump(kubeconfig(address)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield served_api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
