"""A fake API server for the controller, with very many pods generated from a few recorded ones.

It does not store the listed pods: a pod's index determines its name, its UID and its content.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import yaml

from bench.world import Object

PODS = "/api/v1/pods"
_NAME, _UID = b"recorded-00000000", b"00000000-0000-0000-0000-000000000000"
_PAGE = 500
_LISTED = 1_000
"""The resourceVersion of all listed pods. Changes count up from it."""


@dataclass
class RecordedApi:
    """Lists `number` pods, cycling through `templates`, and streams changes of added pods."""

    templates: Sequence[Object]
    number: int
    first: Object
    """The pod at the start of every list."""
    _added: dict[str, Object] = field(default_factory=dict)
    _changes: list[bytes] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        pods = [_named(template, _NAME.decode(), _UID.decode()) for template in self.templates]
        self._texts = [msgspec.json.encode(pod) for pod in pods]
        self._labels = [{"", *pod["metadata"].get("labels", ())} for pod in pods]

    def page(self, query: Mapping[str, str]) -> bytes:
        """Return a page of the list, as JSON. A label selector can only be the name of a label."""
        selected = [query.get("labelSelector", "") in labels for labels in self._labels]
        limit, position = int(query.get("limit", _PAGE)), int(query.get("continue", "0"))
        items = [] if position else [msgspec.json.encode(self.first)]
        while position < self.number and len(items) < limit:
            kind = position % len(self._texts)
            if selected[kind]:
                number = b"%08d" % position
                text = self._texts[kind].replace(_NAME, _NAME[:-8] + number)
                items.append(text.replace(_UID, _UID[:-8] + number))
            position += 1
        metadata = {"resourceVersion": str(_LISTED)}
        if position < self.number:
            metadata["continue"] = str(position)
        return b'{"metadata":%s,"items":[%s]}' % (msgspec.json.encode(metadata), b",".join(items))

    def add(self, template: Object, names: Sequence[str]) -> None:
        """Create pods from `template`, and stream them to the watchers."""
        for name in names:
            self._added[name] = _named(template, name, f"uid-of-{name}")
            self._stream("ADDED", name)

    def release(self, name: str) -> bytes:
        """Remove the gates of an added pod, and return the pod as JSON."""
        self._added[name]["spec"].pop("schedulingGates", None)
        return self._stream("MODIFIED", name)

    def _stream(self, kind: str, name: str) -> bytes:
        with self._changed:
            pod = self._added[name]
            pod["metadata"]["resourceVersion"] = str(_LISTED + len(self._changes) + 1)
            body = msgspec.json.encode(pod)
            self._changes.append(b'{"type":"%s","object":%s}\n' % (kind.encode(), body))
            self._changed.notify_all()
            return body

    def watch(self, version: int, seconds: int) -> Iterator[bytes]:
        """Yield the changes after a resourceVersion, for `seconds`."""
        end, position = time.monotonic() + seconds, version - _LISTED
        while (timeout := end - time.monotonic()) > 0:
            with self._changed:
                if position == len(self._changes):
                    self._changed.wait(timeout)
                changes = self._changes[position:]
            yield from changes
            position += len(changes)


def _named(template: Object, name: str, uid: str) -> Object:
    metadata = {key: value for key, value in template["metadata"].items() if key != "generateName"}
    metadata |= {"name": name, "uid": uid, "resourceVersion": str(_LISTED)}
    return {**template, "metadata": metadata, "spec": dict(template["spec"])}


class _Handler(BaseHTTPRequestHandler):
    api: RecordedApi
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        if "watch" in query:
            self._watch(query, is_streamed=parts.path == PODS and "labelSelector" not in query)
        elif parts.path == PODS:
            self._answer(200, self.api.page(query))
        elif "kubevirt" in parts.path:
            self._answer(404, b'{"reason":"NotFound","message":"not installed"}')
        else:
            self._answer(200, b'{"metadata":{"resourceVersion":"1"},"items":[]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._answer(201, msgspec.json.encode({"metadata": {"creationTimestamp": now}}))

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, self.api.release(urlsplit(self.path).path.rpartition("/")[2]))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, query: Mapping[str, str], *, is_streamed: bool) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        seconds = int(query["timeoutSeconds"])
        if not is_streamed:
            time.sleep(seconds)
        for line in self.api.watch(int(query["resourceVersion"]), seconds) if is_streamed else ():
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        del format, args


@contextmanager
def serving(api: RecordedApi, folder: Path) -> Iterator[Path]:
    """Serve `api` until the context exits, and yield the path of a kubeconfig for it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    kubeconfig = folder / "recorded.kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "current-context": "recorded",
                "contexts": [
                    {"name": "recorded", "context": {"cluster": "recorded", "user": "recorded"}}
                ],
                "clusters": [
                    {
                        "name": "recorded",
                        "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"},
                    }
                ],
                "users": [{"name": "recorded", "user": {}}],
            }
        )
    )
    try:
        yield kubeconfig
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
