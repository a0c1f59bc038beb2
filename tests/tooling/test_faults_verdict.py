"""The verdict on a row excludes what an outage caused."""

import pytest

from tests.faults.assertions import during, missing, outside, waited
from tests.faults.scenario import Span


@pytest.mark.parametrize(
    ("due", "until", "halted", "seconds"),
    [
        pytest.param(10, 13, [], 3, id="nothing in the way"),
        pytest.param(10, 13, [(0, 9)], 3, id="over before it was due"),
        pytest.param(10, 33, [(5, 30)], 3, id="due meanwhile"),
        pytest.param(10, 33, [(12, 30)], 5, id="before and after"),
        pytest.param(10, 33, [(5, 20), (15, 30)], 3, id="one into the other"),
        pytest.param(10, 90, [(12, 30), (33, 80)], 15, id="time between two counts"),
        pytest.param(10, 33, [(40, 50)], 23, id="a later span excuses nothing"),
        pytest.param(10, 20, [(5, 30)], 0, id="released all the same"),
    ],
)
def test_lateness_excludes_outages(
    due: float, until: float, halted: list[Span], seconds: float
) -> None:
    assert waited(due, until, halted) == seconds


@pytest.mark.parametrize(
    ("begun", "outages", "share"),
    [
        pytest.param(range(20), [], 0.0, id="all"),
        pytest.param(range(0, 20, 2), [], 0.5, id="every second one"),
        pytest.param([], [], 1.0, id="none"),
        pytest.param(range(10), [(10, 20)], 0.0, id="none in an outage"),
        pytest.param(range(20), [(9.5, 20)], 0.0, id="some in an outage make up for nothing"),
        pytest.param(range(15, 20), [(9.5, 20)], 1.0, id="only in an outage"),
        pytest.param([], [(0, 20)], 0.0, id="nothing but an outage"),
        pytest.param(range(20, 60), [], 0.0, id="more than all"),
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
        pytest.param(8, 11, True, id="under way when it began"),
        pytest.param(12, 13, True, id="within"),
        pytest.param(19, 25, True, id="ended afterwards"),
        pytest.param(5, 30, True, id="all the time"),
        pytest.param(21, 22, False, id="afterwards"),
    ],
)
def test_requests_in_flight_during_a_span_are_excused(
    began: float, ended: float, *, meets: bool
) -> None:
    assert during(began, ended, [(1, 2), (10, 20)]) is meets
