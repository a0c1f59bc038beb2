"""A fake lane process: every row passes at once, except the one at which the process exits."""

import json
import os
import sys

from tests.faults.report import to_dict
from tests.faults.scenario import Result
from tests.faults.table import FAULTS
from tests.faults.worker import END, READY

ENDS_AT = "LANE_WORKER_ENDS_AT"
"""Environment variable with the row at which it exits, or READY to exit before it is ready."""

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
