"""Releases, bindings and status updates of pods, read from the API server's audit log."""

import io
import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.e2e.accounts import NAMESPACE
from tests.e2e.namespace import seconds
from tests.support.background import in_background

PodKey = tuple[str, str]
"""A pod's namespace and name."""
CONTROLLER = f"system:serviceaccount:{NAMESPACE}:"
"""The prefix of the user names of Holdfast's service accounts."""
READ_SECONDS = 5.0
"""Interval at which the log is read: faster than the API server rotates its files."""
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Metadata",
            "verbs": ["create", "patch"],
            "resources": [{"group": "", "resources": ["pods", "pods/binding", "pods/status"]}],
        },
        {"level": "None"},
    ],
}
"""The audit policy: the requests that are read here, and the webhooks that mutated a pod."""


class Write(NamedTuple):
    """One write of a pod, as the API server recorded it."""

    at: float
    """When the request arrived: seconds since 1970, by the API server's clock."""
    ended: float
    """When the response was sent: the request may have been queued, or waited for a webhook."""
    status: int

    @property
    def may_have_succeeded(self) -> bool:
        """Whether the write may have been stored: after a 5xx that is unknown."""
        return self.status < 300 or self.status >= 500

    @property
    def succeeded(self) -> bool:
        return self.status == 200


@dataclass
class Audit:
    """The part of the log that has been read; `read` continues after the last line.

    The thread of `followed` adds entries: iterate over a copy.
    """

    path: Path
    releases: dict[PodKey, list[Write]] = field(default_factory=lambda: defaultdict(list))
    """Each pod's patches by Holdfast, including failed ones."""
    bindings: dict[PodKey, float] = field(default_factory=dict)
    """When kube-scheduler first bound each pod."""
    ready: dict[PodKey, float] = field(default_factory=dict)
    """When kwok first wrote each pod's status, which makes the pod ready."""
    _file: io.BufferedReader | None = None
    _partial: bytes = b""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Read the log regularly while the block runs: only one rotated file is kept.

        Call `read` for the latest lines.
        """

        def follow(stop: threading.Event) -> None:
            while not stop.wait(READ_SECONDS):
                self.read()

        try:
            with in_background(follow):
                yield
        finally:
            self._close()

    def read(self) -> None:
        """Read new lines; the API server rotates a file that has 100 MB."""
        with self._lock:
            self._read()

    def _read(self) -> None:
        done = False
        while not done:
            try:
                if self._file is None:
                    self._file = self.path.open("rb")
                done = self.path.stat().st_ino == os.fstat(self._file.fileno()).st_ino
            except FileNotFoundError:
                done = True  # during rotation: the next call reads the new file
            if self._file is None:
                return
            *lines, self._partial = (self._partial + self._file.read()).split(b"\n")
            for line in lines:
                self._parse(line)
            if not done:  # rotated, and now read to its end
                self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._partial = None, b""

    def _parse(self, line: bytes) -> None:
        patch, binding = b'"verb":"patch"' in line, b'"subresource":"binding"' in line
        if b'"resource":"pods"' not in line or not (patch or binding):
            return
        event = json.loads(line)
        object_ref = event["objectRef"]
        key = object_ref["namespace"], object_ref.get("name", "")
        status = event.get("responseStatus", {}).get("code", 500)
        arrived, ended = (
            seconds(event[f"{prefix}Timestamp"]) for prefix in ("requestReceived", "stage")
        )
        write = Write(arrived, ended, status)
        user = event.get("user", {}).get("username", "")
        if patch and user.startswith(CONTROLLER) and "subresource" not in object_ref:
            self.releases[key].append(write)
        elif binding and status < 300:
            self.bindings.setdefault(key, write.at)
        elif user == "kwok" and status < 300:
            self.ready.setdefault(key, write.at)
