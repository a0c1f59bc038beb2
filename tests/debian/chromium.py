"""A headless Chromium, controlled with the DevTools protocol over two pipes.

It has a temporary profile, and always ends with the `with` block.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 120.0
"""Seconds to wait for a response; the first one includes Chromium's startup."""

Message = dict[str, Any]


class ChromiumError(Exception):
    """Chromium failed or did not respond; the text has its message."""


@contextmanager
def chromium() -> Iterator[Tab]:
    program = shutil.which("chromium")
    if program is None:
        raise ChromiumError("chromium not found; run: make test-debian")
    with tempfile.TemporaryDirectory(
        prefix="holdfast-chromium-", ignore_cleanup_errors=True
    ) as folder:
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options += ["--no-first-run", "--disable-background-networking", "--hide-scrollbars"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        log = Path(folder) / "log"
        # Chromium reads the protocol from descriptor 3 and writes to 4
        redirect = ["bash", "-c", f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}', program, *options]
        with log.open("wb") as output:
            process = subprocess.Popen(
                redirect,
                pass_fds=(to_read, from_write),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "HOME": folder},
            )
        os.close(to_read)
        os.close(from_write)
        try:
            yield Tab(to_write, from_read, log)
        finally:
            os.close(to_write)
            os.close(from_read)
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait until it exits, as its pipes are closed; otherwise kill its process group."""
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Tab:
    """A browser tab, which opens and inspects pages."""

    def __init__(self, write: int, read: int, log: Path) -> None:
        self._write, self._read, self._log = write, read, log
        self._number = 0
        self._rest = b""
        self.events: list[Message] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        response = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = str(response["sessionId"])
        for domain in ("Page", "Network", "Runtime", "Accessibility", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Message:
        return self._call(method, session=self._session, **parameters)

    def open(self, url: str) -> None:
        self.events.clear()
        error = self.call("Page.navigate", url=url).get("errorText")
        if error:
            raise ChromiumError(f"{url}: {error}")
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._take(time.monotonic() + PATIENCE)

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression; the debugger runs it, as scripts are disabled."""
        response = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in response:
            raise ChromiumError(str(response["exceptionDetails"]))
        return response["result"].get("value")

    def window(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the window's size in pixels, and the user's preferred colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self) -> bytes:
        shot = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)
        return base64.b64decode(shot["data"])

    def _call(self, method: str, session: str = "", **parameters: Any) -> Message:
        self._number += 1
        message: Message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            response = self._take(deadline)
            if response.get("id") == self._number:
                if "error" in response:
                    raise ChromiumError(f"{method}: {response['error']}")
                return dict(response["result"])

    def _take(self, deadline: float) -> Message:
        """Return the next message; add it to `events` if it is one."""
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise ChromiumError(
                    f"no response within {PATIENCE:.0f} s\n{self._log.read_text()[-2000:]}"
                )
            chunk = os.read(self._read, 1 << 20)
            if not chunk:
                raise ChromiumError(f"Chromium has exited\n{self._log.read_text()[-2000:]}")
            self._rest += chunk
        text, _, self._rest = self._rest.partition(b"\0")
        message = dict(json.loads(text))
        if "method" in message:
            self.events.append(message)
        return message
