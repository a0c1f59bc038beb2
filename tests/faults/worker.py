"""The process of one lane: starts a cluster, and runs rows on it, one after another.

`tests.faults.lane` starts `python -m tests.faults.worker`. It reads one name of a row per line, and
writes the result as a line of JSON. END makes it exit. If its parent process ends, it aborts, and
leaves nothing running.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from queue import SimpleQueue

from tests.faults.report import to_dict
from tests.faults.runner import run
from tests.faults.table import FAULTS
from tests.faults.testbed import running_testbed

READY = "ready"
"""The first line written, when the cluster is up."""
END = "end"
"""The last line read."""


def main() -> None:
    options = _parse_arguments()
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # other output must not mix with results
    # a process started by nohup has no handler
    signal.signal(signal.SIGINT, signal.default_int_handler)
    names: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(names,), daemon=True).start()
    faults_by_name = {fault.name: fault for fault in FAULTS}
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-faults-") as folder,
        running_testbed(Path(folder), broken=options.broken) as testbed,
    ):
        print(READY, file=results)
        for name in iter(names.get, END):
            result = run(faults_by_name[name], testbed, seed=options.seed, short=options.short)
            print(json.dumps(to_dict(result)), file=results)


def _listen(names: SimpleQueue[str]) -> None:
    name = ""
    for line in sys.stdin:
        names.put(name := line.strip())
    if name != END:
        os.kill(os.getpid(), signal.SIGINT)  # interrupts the main thread, which may sleep


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.worker", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--broken", default="")
    return parser.parse_args()


if __name__ == "__main__":
    main()
