"""The verdict on a row excludes the effects of outages."""

import pytest

from tests.faults.assertions import duration_outside, during, missing, outside
from tests.faults.scenario import Span


@pytest.mark.parametrize(
    ("due", "until", "halted", "seconds"),
    [
        pytest.param(10, 13, [], 3, id="no outage"),
        pytest.param(10, 33, [(5, 30)], 3, id="due during the outage"),
        pytest.param(10, 33, [(12, 30)], 5, id="late before and after the outage"),
        pytest.param(10, 33, [(5, 20), (15, 30)], 3, id="overlapping outages"),
        pytest.param(10, 90, [(12, 30), (33, 80)], 15, id="late between two outages"),
        pytest.param(10, 33, [(40, 50)], 23, id="later outage excuses nothing"),
        pytest.param(10, 20, [(5, 30)], 0, id="released during the outage"),
    ],
)
def test_lateness_excludes_outages(
    due: float, until: float, halted: list[Span], seconds: float
) -> None:
    assert duration_outside(due, until, halted) == seconds


@pytest.mark.parametrize(
    ("begun", "outages", "share"),
    [
        pytest.param(range(20), [], 0.0, id="all"),
        pytest.param(range(0, 20, 2), [], 0.5, id="half"),
        pytest.param([], [], 1.0, id="none"),
        pytest.param(range(20), [(9.5, 20)], 0.0, id="requests during the outage do not count"),
        pytest.param(range(15, 20), [(9.5, 20)], 1.0, id="only during the outage"),
        pytest.param([], [(0, 20)], 0.0, id="outage throughout"),
        pytest.param(range(20, 60), [], 0.0, id="more than expected"),
    ],
)
def test_unsteady_load_is_detected(begun: list[float], outages: list[Span], share: float) -> None:
    assert missing(begun, 1.0, (0.0, 20.0), outages) == pytest.approx(share)


def test_requests_within_a_span_are_excluded() -> None:
    assert outside([1, 2, 3, 4, 5], [(2, 3), (2.5, 4)]) == [1, 5]
    assert outside([1, 2], []) == [1, 2]


@pytest.mark.parametrize(
    ("began", "ended", "meets"),
    [
        pytest.param(8, 9, False, id="before"),
        pytest.param(8, 11, True, id="in flight at the start"),
        pytest.param(19, 25, True, id="ended after the end"),
        pytest.param(5, 30, True, id="throughout"),
        pytest.param(21, 22, False, id="after"),
    ],
)
def test_requests_in_flight_during_a_span_are_excused(
    began: float, ended: float, *, meets: bool
) -> None:
    assert during(began, ended, [(1, 2), (10, 20)]) is meets
