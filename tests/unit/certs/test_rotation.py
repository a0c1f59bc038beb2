from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast.certs import authority, rotation
from holdfast.certs.authority import KeyPair
from holdfast.certs.rotation import Action, Observation, Plan, carry_out, next_step
from tests.unit.certs.certificates import (
    DAY,
    NOW,
    PLAN,
    action,
    another,
    first,
    run_next_step,
    steady,
    trusted,
)


def test_ca_is_created_before_its_leaf() -> None:
    assert action(Observation(NOW, None, None)) is Action.NEW_AUTHORITY
    ca, leaf = first()
    assert action(Observation(NOW, ca, None)) is Action.ISSUE
    assert action(Observation(NOW, ca, leaf)) is None
    certificate = authority.read(leaf["tls.crt"])
    assert certificate.dns_names == set(PLAN.names)
    assert certificate.not_after == NOW + authority.LEAF_LIFETIME
    assert authority.read(ca["tls.crt"]).not_after == NOW + authority.CA_LIFETIME
    assert leaf["ca.crt"] == ca["tls.crt"]
    assert authority.pair_matches(KeyPair(leaf["tls.crt"], leaf["tls.key"]))


def test_leaf_serves_names_too_long_for_a_common_name() -> None:
    plan = Plan((f"{'h' * 63}.{'n' * 63}.svc",))
    ca = run_next_step(Observation(NOW, None, None), plan=plan)
    leaf = run_next_step(Observation(NOW, ca, None), plan=plan)
    assert rotation.serves(authority.read(leaf["tls.crt"]), ca["tls.crt"], NOW, plan.names)


def damaged_leaf(**data: bytes) -> dict[str, bytes]:
    return {**first()[1], **{name.replace("_", "."): value for name, value in data.items()}}


LEAVES: list[Any] = [
    pytest.param(lambda: None, "there is none", id="deleted"),
    pytest.param(lambda: damaged_leaf(tls_crt=b"no PEM"), "do not match", id="corrupted"),
    pytest.param(lambda: damaged_leaf(tls_key=b"\xff"), "do not match", id="key-corrupted"),
    pytest.param(
        lambda: damaged_leaf(tls_key=another()[1]["tls.key"]), "do not match", id="mismatched"
    ),
    pytest.param(lambda: another()[1], "another CA signed it", id="other-ca"),
    pytest.param(lambda: damaged_leaf(ca_crt=b""), "another CA", id="no-ca"),
]


@pytest.mark.parametrize(("leaf", "reason"), LEAVES)
def test_unusable_leaf_is_reissued_once(leaf: Any, reason: str) -> None:
    observed = steady(leaf=leaf())
    step = next_step(observed, PLAN)
    assert step is not None
    assert step.action is Action.ISSUE
    assert reason in step.reason
    assert next_step(steady(leaf=carry_out(step, observed, PLAN)), PLAN) is None
    assert next_step(replace(observed, known_for=timedelta()), PLAN) == step


def test_leaf_missing_a_service_name_is_reissued() -> None:
    plan = Plan((*PLAN.names, "more"))
    step = next_step(steady(), plan)
    assert step == (Action.ISSUE, "it lacks a name of the Service")


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        pytest.param(19.9, None, id="before-two-thirds"),
        pytest.param(20.0, Action.ISSUE, id="after-two-thirds"),
        pytest.param(31.0, Action.ISSUE, id="expired"),
        pytest.param(-0.1, Action.NEW_AUTHORITY, id="clock-set-back"),
    ],
)
def test_leaf_is_renewed_after_two_thirds_of_its_lifetime(
    days: float, expected: Action | None
) -> None:
    assert action(steady(NOW + days * DAY)) is expected


def test_leaf_is_not_issued_before_api_servers_trust_its_ca() -> None:
    other_ca, other_leaf = another()
    ca, _ = first()
    retired = {**ca, "retired.crt": other_ca["tls.crt"]}
    served = [authority.read(other_leaf["tls.crt"])]
    observed = steady(
        authority=retired, leaf=other_leaf, served=served, trusted=trusted(ca, seconds=59.9)
    )
    assert action(observed) is None
    assert action(steady(authority=retired, leaf=None, served=served, trusted={})) is None
    assert action(steady(authority=retired, leaf=other_leaf, served=served)) is Action.ISSUE


def test_leaf_is_issued_at_once_if_it_breaks_no_served_leaf() -> None:
    ca, _ = first()
    assert action(Observation(NOW, ca, None, unknown=True)) is Action.ISSUE  # the first leaf
    assert action(steady(leaf=None, trusted={})) is Action.ISSUE  # its CA is already served
    assert action(steady(leaf=None, served=[], trusted={})) is Action.ISSUE
    other_leaf = authority.read(another()[1]["tls.crt"])
    assert action(steady(leaf=None, served=[other_leaf], trusted={})) is Action.ISSUE
    assert action(steady(leaf=None, served=[], trusted={}, unknown=True)) is None


def test_leaf_never_outlives_its_ca() -> None:
    ca, leaf = first()
    now = NOW + 350 * DAY
    observed = steady(now, served=[])
    renewed = carry_out(rotation.RotationStep(Action.ISSUE, ""), observed, PLAN)
    assert authority.not_after(renewed["tls.crt"]) == authority.not_after(ca["tls.crt"])
    assert renewed["tls.key"] != leaf["tls.key"]
