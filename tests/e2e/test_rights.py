"""Each right that the manifests grant is needed.

Holdfast runs with its own accounts in a complete installation. The test removes one right at a time
from its role and does something that needs it: the audit log of the API server has a request that
was rejected because that right is missing, and the action fails until the right is restored.
"""

from collections.abc import Iterator

import pytest

from docs.rights import Right, rights
from tests.e2e.needs import NEEDS
from tests.e2e.revoked_rights import RightsFixture, staged

pytestmark = pytest.mark.xdist_group("rights")

GRANTED = {str(right): right for right in rights()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RightsFixture]:
    with staged(tmp_path_factory.mktemp("rights")) as stage:
        yield stage


@pytest.fixture
def stage(installed: RightsFixture) -> Iterator[RightsFixture]:
    with installed.afterwards:
        yield installed


@pytest.mark.parametrize("right", [GRANTED[name] for name in NEEDS], ids=NEEDS)
def test_every_granted_right_is_needed(stage: RightsFixture, right: Right) -> None:
    need = NEEDS[str(right)]
    with stage.without(right):
        refused = stage.refused(right)
        done = need.show(stage, right)
        stage.ns.eventually(refused)
        assert not done(), f"expected: {need.without}"
        answered = stage.answered(right)
    stage.ns.eventually(done)
    stage.ns.eventually(answered)


def test_only_requests_that_lacked_a_right_were_forbidden(stage: RightsFixture) -> None:
    assert stage.log.requests()
    assert stage.unexplained() == []
