"""Plays the process of a lane: each row passes at once, but that of a name has the process end."""

import json
import os
import sys

from tests.faults.report import to_dict
from tests.faults.scenario import Result
from tests.faults.table import FAULTS
from tests.faults.worker import END, READY

ENDS_AT = "LANE_WORKER_ENDS_AT"
"""Names the row at which it ends, or READY: before it is ready."""

if __name__ == "__main__":
    ends_at = os.environ.get(ENDS_AT, "")
    if ends_at == READY:
        sys.exit("nothing works here")
    print(READY, flush=True)
    by_name = {fault.name: fault for fault in FAULTS}
    for line in sys.stdin:
        name = line.strip()
        if name == END:
            break
        if name == ends_at:
            sys.exit("it broke off")
        print(json.dumps(to_dict(Result(by_name[name], {}, {"process": os.getpid()}))), flush=True)
