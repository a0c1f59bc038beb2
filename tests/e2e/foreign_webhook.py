"""Admission webhooks of other components, served by the test process."""

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

from controlplane.launcher import ControlPlane

Object = dict[str, Any]
Decide = Callable[[Object], "Sequence[Object] | str"]
"""Returns a JSON Patch for the reviewed object, or the reason why it is rejected."""
PODS = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}


@contextmanager
def other_webhook(
    plane: ControlPlane,
    name: str,
    decide: Decide,
    *,
    operations: Sequence[str] = ("CREATE",),
    changes: bool = False,
    namespaces: Sequence[str] = (),
    failure_policy: str = "Fail",
    seconds: int = 10,
) -> Iterator[None]:
    """Have the API server call `decide` for pods; webhooks are called in the order of their names.

    A webhook for CREATE only is mutating, and is reinvoked if others change the pod. A webhook for
    other operations is validating, unless it `changes` pods. `namespaces` limits it to these.
    """
    with _serving(plane, name, decide) as url:
        changes = changes or tuple(operations) == ("CREATE",)
        kind = "Mutating" if changes else "Validating"
        manifest = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}WebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": f"{name}.example.com",
                    "clientConfig": {
                        "url": url,
                        "caBundle": base64.b64encode(plane.ca.read_bytes()).decode(),
                    },
                    "rules": [{**PODS, "operations": list(operations)}],
                    **(_only_in(namespaces) if namespaces else {}),
                    "sideEffects": "None",
                    "failurePolicy": failure_policy,
                    "timeoutSeconds": seconds,
                    "admissionReviewVersions": ["v1"],
                    **({"reinvocationPolicy": "IfNeeded"} if changes else {}),
                }
            ],
        }
        plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
        try:
            yield
        finally:
            plane.kubectl("delete", f"{kind.lower()}webhookconfiguration", name)


def _only_in(namespaces: Sequence[str]) -> Object:
    key = "kubernetes.io/metadata.name"
    expression = {"key": key, "operator": "In", "values": list(namespaces)}
    return {"namespaceSelector": {"matchExpressions": [expression]}}


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    """Backlog of connections: an API server opens one for each concurrent call."""


@contextmanager
def _serving(plane: ControlPlane, name: str, decide: Decide) -> Iterator[str]:
    server = _Server(("127.0.0.1", 0), _handler(decide))
    pair = plane.certificate(name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    # a stalled handshake must block its own thread, not the one that accepts
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(decide: Decide) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            request = json.loads(self.rfile.read(length))["request"]
            body = json.dumps(
                {
                    "apiVersion": "admission.k8s.io/v1",
                    "kind": "AdmissionReview",
                    "response": {"uid": request["uid"], **_answer(decide(request["object"]))},
                }
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            with suppress(OSError):  # the client may have given up
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Log nothing."""

    return Handler


def _answer(decision: Sequence[Object] | str) -> Object:
    if isinstance(decision, str):
        return {"allowed": False, "status": {"message": decision, "code": 403}}
    patch = base64.b64encode(json.dumps(list(decision)).encode()).decode()
    return {"allowed": True, **({"patchType": "JSONPatch", "patch": patch} if decision else {})}
