"""Some of the faults in their short form; `make faults` runs all of them in the long form."""

from collections.abc import Iterator

import pytest

from tests.faults import testbed
from tests.faults.runner import run
from tests.faults.scenario import Fault
from tests.faults.table import FAULTS

pytestmark = pytest.mark.xdist_group("faults")

SEED = 9
SHORT = [pytest.param(fault, id=fault.name) for fault in FAULTS if fault.tested]


@pytest.fixture(scope="module")
def shared_testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[testbed.Testbed]:
    with testbed.running_testbed(tmp_path_factory.mktemp("faults")) as running:
        yield running


@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", SHORT)
def test_fault(shared_testbed: testbed.Testbed, fault: Fault) -> None:
    result = run(fault, shared_testbed, seed=SEED, short=True)
    failed_checks = {name: check for name, check in result.checks.items() if not check.passed}
    assert (result.error, failed_checks) == ("", {}), "\n".join(result.failures)
