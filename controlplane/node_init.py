"""Process 1 of the sandbox: makes it a place for a node, runs one command, and ends with it.

Runs as its own script, with the standard library alone. When it ends, however it ends, the
kernel ends every other process of the sandbox, and with the last one go network and mounts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

_HIDDEN = ("/run", "/var/lib", "/var/log")  # programs write there regardless of their flags


def prepare() -> None:
    """Cover what is to stay untouched outside, and bring loopback up."""
    for folder in _HIDDEN:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def reap(child: int) -> int:
    """Take in all processes that end until the child is among them; give its exit status."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Run the command that the arguments are."""
    prepare()
    child = subprocess.Popen(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: os.kill(child.pid, received))
    code = reap(child.pid)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
