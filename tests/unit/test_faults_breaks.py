"""What is broken on purpose is there to be broken: else a break would break nothing, unseen."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults.breaks.replacing import put
from tests.faults.broken import BREAKS
from tests.faults.table import FAULTS


def test_all_breaks_find_what_they_replace() -> None:
    code = "from tests.faults.broken import BREAKS\nfor one in BREAKS.values(): one()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_is_not_there_is_not_replaced() -> None:
    class Owner:
        pass

    def missing() -> None:
        pass

    with pytest.raises(AttributeError):
        put(Owner, missing)


def test_each_row_has_a_break() -> None:
    assert {fault.broken for fault in FAULTS} <= BREAKS.keys()
