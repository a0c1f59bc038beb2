"""How long a pod was kept waiting: what a fault kept from being released does not count."""

from __future__ import annotations

import pytest

from tests.faults.scene import Span, waited


@pytest.mark.parametrize(
    ("due", "until", "halted", "seconds"),
    [
        pytest.param(10, 13, [], 3, id="nothing in the way"),
        pytest.param(10, 13, [(0, 9)], 3, id="over before it was due"),
        pytest.param(10, 33, [(5, 30)], 3, id="due meanwhile"),
        pytest.param(10, 33, [(12, 30)], 5, id="before and after"),
        pytest.param(10, 33, [(5, 20), (15, 30)], 3, id="one into the other"),
        pytest.param(10, 90, [(12, 30), (33, 80)], 15, id="time between two counts"),
        pytest.param(10, 33, [(40, 50)], 23, id="what came later is no excuse"),
        pytest.param(10, 20, [(5, 30)], 0, id="released all the same"),
    ],
)
def test_only_seconds_in_which_it_could_be_released_count(
    due: float, until: float, halted: list[Span], seconds: float
) -> None:
    assert waited(due, until, halted) == seconds
