"""PID 1 of the sandbox: prepares it for a node, runs one command, and exits with it.

Runs as a separate script, with only the standard library. When it exits for any reason, the kernel
kills all other processes of the sandbox, and then removes its network and mounts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

_HIDDEN = ("/run", "/var/lib", "/var/log")  # programs write there regardless of their flags


def prepare() -> None:
    """Mount tmpfs over host folders that must not change, and bring up loopback."""
    for folder in _HIDDEN:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def reap(child: int) -> int:
    """Reap processes until `child` exits; return its exit code, negative for a signal."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Run the command in the arguments, and exit with its code."""
    prepare()
    child = subprocess.Popen(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: os.kill(child.pid, received))
    code = reap(child.pid)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
