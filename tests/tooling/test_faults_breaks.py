"""Every break replaces an existing function; a break without effect would go unnoticed."""

import subprocess
import sys

import pytest

from tests.faults.breaks.replacing import put
from tests.faults.broken import BREAKS
from tests.faults.table import FAULTS


def test_breaks_replace_existing_functions() -> None:
    code = "from tests.faults.broken import BREAKS\nfor one in BREAKS.values(): one()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_missing_function_is_not_replaced() -> None:
    class Owner:
        pass

    def missing() -> None:
        pass

    with pytest.raises(AttributeError):
        put(Owner, missing)


def test_each_row_has_a_break() -> None:
    assert {fault.broken for fault in FAULTS} <= BREAKS.keys()
