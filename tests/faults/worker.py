"""The process of one lane: a cluster, and the rows to run on it, one by one.

`python -m tests.faults.worker` is started by `tests.faults.lane`. It reads the name of a row a
line, and writes what came of it as a line of JSON; END has it leave. Where its starter has gone, it
breaks off, and leaves nothing running.
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

from tests.faults.report import written
from tests.faults.runner import run
from tests.faults.table import FAULTS
from tests.faults.testbed import running_testbed

READY = "ready"
"""The first line written, when the cluster is up."""
END = "end"
"""The last line read."""


def main() -> None:
    given = _arguments()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # other output must not mix with results
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a process started by nohup has no handler
    orders: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    by_name = {fault.name: fault for fault in FAULTS}
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-faults-") as folder,
        running_testbed(Path(folder), broken=given.broken) as place,
    ):
        print(READY, file=answers)
        for name in iter(orders.get, END):
            result = run(by_name[name], place, seed=given.seed, short=given.short)
            print(json.dumps(written(result)), file=answers)


def _listen(orders: SimpleQueue[str]) -> None:
    name = ""
    for line in sys.stdin:
        orders.put(name := line.strip())
    if name != END:
        os.kill(os.getpid(), signal.SIGINT)  # to the main thread, which may sleep


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.worker", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--broken", default="")
    return parser.parse_args()


if __name__ == "__main__":
    main()
