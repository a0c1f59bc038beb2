"""Creations and releases of pods in the API server's audit log."""

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

Key = tuple[str, str]
"""A pod's namespace and name."""
CONTROLLER = f"system:serviceaccount:{NAMESPACE}:"
"""How the names of Holdfast's own accounts begin."""
READ_SECONDS = 5.0
"""How often the log is read: sooner than the API server fills a file, and throws the last away."""
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
"""The audit policy: requests that are read here, and which webhooks mutated a pod."""
KWOK_USER = "kwok"
_OK = 200


class Write(NamedTuple):
    """One write of a pod, as the API server took it in."""

    at: float
    """Seconds since 1970, by the API server's clock: when the request came."""
    ended: float
    """Likewise, when it was answered: it may have waited for its turn, or for a webhook."""
    status: int

    @property
    def may_have_worked(self) -> bool:
        """Whether it may have been stored: a 5xx leaves that open."""
        return self.status < 300 or self.status >= 500

    @property
    def worked(self) -> bool:
        return self.status == _OK


@dataclass
class Audit:
    """The log as far as it was read; `read` goes on where the last one ended.

    What `followed` adds meanwhile must not meet an iteration: iterate over a copy.
    """

    path: Path
    releases: dict[Key, list[Write]] = field(default_factory=lambda: defaultdict(list))
    """Each pod's patches by Holdfast, those that failed too."""
    bindings: dict[Key, float] = field(default_factory=dict)
    """When kube-scheduler bound each pod first."""
    ready: dict[Key, float] = field(default_factory=dict)
    """When kwok wrote each pod's status first, which makes it ready."""
    _file: io.BufferedReader | None = None
    _rest: bytes = b""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Read all along while the block lasts: of the files before the present one, one is kept.

        `read` has then what was written up to now.
        """
        stop = threading.Event()

        def follow() -> None:
            while not stop.wait(READ_SECONDS):
                self.read()

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self._close()

    def read(self) -> None:
        """Take in what is new; the API server starts another file when one has 100 MB."""
        with self._lock:
            self._read()

    def _read(self) -> None:
        done = False
        while not done:
            try:
                if self._file is None:
                    self._file = self.path.open("rb")
                done = self.path.stat().st_ino == self._inode()
            except FileNotFoundError:
                done = True  # between two files: the next one is for the next time
            if self._file is None:
                return
            *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
            for line in lines:
                self._take(line)
            if not done:  # rotated, and now read to its end
                self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""

    def _inode(self) -> int:
        assert self._file is not None
        return os.fstat(self._file.fileno()).st_ino

    def _take(self, line: bytes) -> None:
        patch, binding = b'"verb":"patch"' in line, b'"subresource":"binding"' in line
        if b'"resource":"pods"' not in line or not (patch or binding):
            return
        event = json.loads(line)
        about = event["objectRef"]
        key = about["namespace"], about.get("name", "")
        status = event.get("responseStatus", {}).get("code", 500)
        came, ended = (seconds(event[f"{one}Timestamp"]) for one in ("requestReceived", "stage"))
        write = Write(came, ended, status)
        user = event.get("user", {}).get("username", "")
        if patch and user.startswith(CONTROLLER) and "subresource" not in about:
            self.releases[key].append(write)
        elif binding and status < 300:
            self.bindings.setdefault(key, write.at)
        elif user == KWOK_USER and status < 300:
            self.ready.setdefault(key, write.at)
