"""Each right that the manifests give is needed: taken away alone, it is missed.

Holdfast runs under its own accounts in a whole installation. One right after the other is taken
from its role, and something is done that needs it: the API server's audit log has a request that
was refused for want of that very right, and what the right is for does not happen. It happens as
soon as the right is back.

Each test was seen to fail once, with nothing taken away; and so does that of a right which nothing
asks for, as `patch` of Events was.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from docs.rights import Right, rights
from tests.e2e.deprived import Stage, staged
from tests.e2e.needs import NEEDS

pytestmark = pytest.mark.xdist_group("rights")

GIVEN = {str(right): right for right in rights()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("rights")) as stage:
        yield stage


@pytest.fixture
def stage(installed: Stage) -> Iterator[Stage]:
    with installed.afterwards:
        yield installed


@pytest.mark.parametrize("right", [GIVEN[name] for name in NEEDS], ids=NEEDS)
def test_a_right_that_is_taken_away_is_missed(stage: Stage, right: Right) -> None:
    with stage.without(right):
        refused = stage.refused(right)
        done = NEEDS[str(right)].show(stage, right)
        stage.world.eventually(refused)
        assert not done()
        answered = stage.answered(right)
    stage.world.eventually(done)
    stage.world.eventually(answered)


def test_nothing_was_refused_but_for_want_of_what_was_missing(stage: Stage) -> None:
    assert stage.log.requests()
    assert stage.unexplained() == []
