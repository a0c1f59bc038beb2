"""A clock that cannot be trusted yet, and bundles that API servers trust."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast.certs import authority, rotation
from holdfast.certs.rotation import Action, Authority, Observation, Plan
from tests.unit.certs.certificates import (
    DAY,
    NOW,
    PLAN,
    action,
    another,
    fingerprint,
    first,
    run_next_step,
    steady,
)

SET = timedelta(minutes=10) - timedelta(seconds=1)
"""Time since the clock was set: just too short for the clock to be trusted."""


def aged_next() -> Observation:
    """Return an observation whose next CA expired before it signed, and whose signing CA is old."""
    ca, _ = first()
    old_ca = run_next_step(Observation(NOW - 360 * DAY, None, None))
    now = NOW + 244 * DAY
    data = {**ca, "next.crt": old_ca["tls.crt"], "next.key": old_ca["tls.key"]}
    return steady(now, authority=data, leaf=run_next_step(steady(now, leaf=None)))


def retired_long_ago() -> Observation:
    data = {**first()[0], "retired.crt": another()[0]["tls.crt"]}
    return steady(authority={**data, "retired-until": NOW.isoformat().encode()})


AGED: list[Any] = [
    pytest.param(lambda: steady(NOW + 366 * DAY), Action.NEW_AUTHORITY, id="ca-expired"),
    pytest.param(lambda: steady(NOW - DAY), Action.NEW_AUTHORITY, id="ca-not-yet-valid"),
    pytest.param(lambda: steady(NOW + 20 * DAY), Action.ISSUE, id="leaf-old"),
    pytest.param(
        lambda: steady(NOW + 244 * DAY, leaf=run_next_step(steady(NOW + 244 * DAY, leaf=None))),
        Action.INTRODUCE,
        id="ca-old",
    ),
    pytest.param(aged_next, Action.INTRODUCE, id="next-expired"),
    pytest.param(retired_long_ago, Action.FORGET, id="retired-long-ago"),
]


@pytest.mark.parametrize(("observed", "expected"), AGED)
def test_age_triggers_no_action_while_the_clock_is_untrusted(
    observed: Any, expected: Action
) -> None:
    assert action(replace(observed(), known_for=SET)) is None
    assert action(replace(observed(), known_for=SET + timedelta(seconds=1))) is expected


def test_ca_that_is_not_yet_valid_issues_no_leaf() -> None:
    assert action(steady(NOW - DAY, leaf=None, known_for=timedelta())) is None


def test_replaced_ca_that_is_not_yet_valid_stays_trusted() -> None:
    ca, leaf = first()
    updated = Authority.read(run_next_step(steady(NOW - 400 * DAY)))
    assert updated is not None
    assert [certificate.pem for certificate in updated.retired] == [ca["tls.crt"]]
    assert rotation.serves(authority.read(leaf["tls.crt"]), updated.bundle, NOW, PLAN.names)


def test_served_leaf_counts_as_valid_while_the_clock_is_untrusted() -> None:
    """A wrong clock can make a valid served leaf look expired, so that nothing seems to break."""
    other_ca, other_leaf = another()
    data = {**first()[0], "retired.crt": other_ca["tls.crt"]}
    served = [authority.read(other_leaf["tls.crt"])]
    now = NOW + 40 * DAY
    observed = steady(now, authority=data, leaf=None, served=served, trusted={})
    assert action(observed) is Action.ISSUE
    assert action(replace(observed, known_for=SET)) is None


def test_settling_time_is_a_fraction_of_a_short_lifetime() -> None:
    assert Plan(PLAN.names, leaf_lifetime=timedelta(minutes=1)).settling == timedelta(seconds=0.6)


def test_common_returns_the_cas_in_every_bundle() -> None:
    ca, other_ca = first()[0]["tls.crt"], another()[0]["tls.crt"]
    assert rotation.common([]) == frozenset()
    assert rotation.common([ca, b""]) == frozenset()
    assert rotation.common([ca + other_ca, other_ca]) == {fingerprint(other_ca)}
    assert rotation.common([b"no PEM" + ca, ca]) == {fingerprint(ca)}


def test_serves() -> None:
    ca, leaf = first()
    certificate = authority.read(leaf["tls.crt"])
    assert rotation.serves(certificate, ca["tls.crt"], NOW, PLAN.names)
    assert not rotation.serves(certificate, another()[0]["tls.crt"], NOW, PLAN.names)
    assert not rotation.serves(certificate, b"", NOW, PLAN.names)
    assert not rotation.serves(certificate, ca["tls.crt"], NOW, ["other"])
    assert not rotation.serves(certificate, ca["tls.crt"], NOW + 31 * DAY, PLAN.names)
