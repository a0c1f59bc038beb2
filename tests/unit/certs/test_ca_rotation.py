"""CAs that are replaced, lost, restored, planted or stolen."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.certs import authority, rotation
from holdfast.certs.rotation import Action, Authority, Data, Observation, carry_out, next_step
from tests.support.rsa_certificates import rsa_ca
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

RSA_PAIR = rsa_ca(NOW)
RSA = {"tls.crt": RSA_PAIR.certificate, "tls.key": RSA_PAIR.key}


def test_ca_rotation_step_by_step() -> None:
    ca, leaf = first()
    now = NOW + 244 * DAY
    served = [authority.read(leaf["tls.crt"])]

    def observed(ca: Data, leaf: Data, **others: Any) -> Observation:
        return steady(now, authority=ca, leaf=leaf, **others)

    leaf = run_next_step(observed(ca, leaf, served=served))
    assert action(observed(ca, leaf)) is Action.INTRODUCE
    introduced = run_next_step(observed(ca, leaf))
    both_cas = Authority.read(introduced)
    assert both_cas is not None
    assert both_cas.bundle == introduced["tls.crt"] + introduced["next.crt"]
    assert introduced["tls.crt"] == ca["tls.crt"]

    assert action(observed(introduced, leaf)) is None
    trusted_cas = trusted(introduced, 59.9, "next.crt")
    assert action(observed(introduced, leaf, trusted=trusted_cas)) is None
    trusted_cas = {**trusted(introduced), **trusted(introduced, 60, "next.crt")}
    assert action(observed(introduced, leaf, trusted=trusted_cas)) is Action.PROMOTE
    promoted = run_next_step(observed(introduced, leaf, trusted=trusted_cas))
    assert promoted["tls.crt"] == introduced["next.crt"]
    assert promoted["retired.crt"] == ca["tls.crt"]
    assert datetime.fromisoformat(promoted["retired-until"].decode()) == now + 30 * DAY

    assert action(observed(promoted, leaf, trusted=trusted_cas)) is Action.ISSUE
    renewed = run_next_step(observed(promoted, leaf, trusted=trusted_cas))
    assert action(observed(promoted, renewed, trusted=trusted_cas)) is None
    now += 10 * DAY
    assert action(observed(promoted, renewed, trusted=trusted_cas)) is None
    now += 20 * DAY
    renewed = run_next_step(observed(promoted, renewed, trusted=trusted_cas))
    assert action(observed(promoted, renewed, trusted=trusted_cas)) is Action.FORGET
    forgotten = run_next_step(observed(promoted, renewed, trusted=trusted_cas))
    assert forgotten == {"tls.crt": promoted["tls.crt"], "tls.key": promoted["tls.key"]}
    assert action(observed(forgotten, renewed, trusted=trusted_cas)) is None


LOST: list[Any] = [
    pytest.param(None, id="deleted"),
    pytest.param({}, id="empty"),
    pytest.param({"tls.crt": b"no PEM", "tls.key": b""}, id="corrupted"),
]


@pytest.mark.parametrize("lost", LOST)
def test_lost_ca_stays_trusted(lost: Data | None) -> None:
    ca, leaf = first()
    observed = steady(authority=lost, trusted={})
    assert action(observed) is Action.NEW_AUTHORITY
    assert action(replace(observed, known_for=timedelta())) is Action.NEW_AUTHORITY
    updated = Authority.read(run_next_step(observed))
    assert updated is not None
    assert [certificate.pem for certificate in updated.retired] == [ca["tls.crt"]]
    assert updated.retired_until == NOW + authority.LEAF_LIFETIME
    # nothing is issued until API servers trust the CA
    assert action(steady(authority=updated.data(), trusted={})) is None
    assert rotation.serves(authority.read(leaf["tls.crt"]), updated.bundle, NOW, PLAN.names)


@pytest.mark.parametrize(
    ("changes", "retired"),
    [
        pytest.param(
            {"authority": None, "bundles": [b""]}, [first()[0]], id="only in the leaf's Secret"
        ),
        pytest.param(
            {"authority": {**first()[0], "tls.key": another()[0]["tls.key"]}},
            [first()[0]],
            id="key of another CA",
        ),
        pytest.param({"authority": RSA}, [RSA, first()[0]], id="RSA key"),
    ],
)
def test_unusable_ca_is_retired(changes: dict[str, Any], retired: list[Data]) -> None:
    updated = Authority.read(run_next_step(steady(**changes)))
    assert updated is not None
    assert [certificate.pem for certificate in updated.retired] == [ca["tls.crt"] for ca in retired]


def restored(**others: Any) -> Observation:
    """Return an observation of a replaced CA that was restored from a backup."""
    ca, leaf = another()
    defaults: dict[str, Any] = {
        "leaf": leaf,
        "bundles": [ca["tls.crt"]],
        "trusted": trusted(ca),
        "served": [authority.read(leaf["tls.crt"])],
    }
    return steady(**{**defaults, **others})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({}, id="the CA alone"),
        pytest.param({"leaf": first()[1]}, id="both Secrets"),
        pytest.param({"known_for": timedelta()}, id="the clock was just set"),
        pytest.param({"served": [], "unknown": True}, id="a replica does not answer"),
        pytest.param({"now": NOW + 3 * DAY}, id="later"),
    ],
)
def test_served_ca_missing_from_a_restored_secret_stays_trusted(
    change: dict[str, Any],
) -> None:
    ca, (other_ca, other_leaf) = first()[0], another()
    observed = restored(**change)
    assert action(observed) is Action.RETAIN
    data = run_next_step(observed)
    assert data["tls.crt"] == ca["tls.crt"]
    assert data["retired.crt"] == other_ca["tls.crt"]
    until = observed.now + authority.LEAF_LIFETIME
    assert datetime.fromisoformat(data["retired-until"].decode()) == until
    updated = Authority.read(data)
    assert updated is not None
    certificate = authority.read(other_leaf["tls.crt"])
    assert rotation.serves(certificate, updated.bundle, observed.now, PLAN.names)
    # nothing is issued until API servers trust the CA
    assert action(replace(observed, authority=data)) is None


def test_bundled_ca_without_a_valid_served_leaf_is_not_retained() -> None:
    ca, _ = first()
    planted_bundle = [ca["tls.crt"] + another()[0]["tls.crt"]]
    assert action(steady(bundles=planted_bundle)) is None
    now = NOW + 31 * DAY
    leaf = run_next_step(steady(now, leaf=None))
    other_leaf = authority.read(another()[1]["tls.crt"])
    served = [authority.read(leaf["tls.crt"]), other_leaf]
    assert action(steady(now, leaf=leaf, served=served, bundles=planted_bundle)) is None


def test_retained_cas_do_not_exceed_the_limit_of_retired_cas() -> None:
    cas = [authority.new_ca(str(number), now=NOW).certificate for number in range(20)]
    full = {**first()[0], "retired.crt": b"".join(cas[: rotation.MOST_RETIRED])}
    assert action(restored(authority=full, unknown=True)) is None
    nearly_full = {**first()[0], "retired.crt": b"".join(cas[: rotation.MOST_RETIRED - 1])}
    data = run_next_step(restored(authority=nearly_full, unknown=True, bundles=cas))
    assert data["retired.crt"] == b"".join(cas[: rotation.MOST_RETIRED])


CONTENT = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(["tls.crt", "tls.key"]).flatmap(
        lambda name: st.integers(0, 700).map(lambda at: first()[0][name][:at] + b"!" + b"A" * 9)
    ),
    st.sampled_from(["tls.crt", "tls.key"]).map(lambda name: first()[1][name]),
    st.sampled_from(["tls.crt", "tls.key"]).map(lambda name: RSA[name]),
)
NAMES = st.sampled_from(["tls.crt", "tls.key", "ca.crt", "next.crt", "next.key", "retired.crt"])
SECRETS = st.none() | st.dictionaries(NAMES, CONTENT)


@settings(max_examples=30, deadline=None)
@given(SECRETS, SECRETS, st.lists(CONTENT, max_size=2))
def test_rotation_recovers_from_arbitrary_secrets_and_bundles(
    ca: Data | None, leaf: Data | None, bundles: list[bytes]
) -> None:
    for _ in range(6):
        observed = Observation(NOW, ca, leaf, bundles)
        step = next_step(observed, PLAN)
        if step is None:
            break
        if step.action is Action.ISSUE:
            leaf = carry_out(step, observed, PLAN)
        else:
            ca = carry_out(step, observed, PLAN)
    assert next_step(Observation(NOW, ca, leaf, bundles), PLAN) is None
    assert Authority.read(ca) is not None


def test_expired_ca_is_replaced() -> None:
    step = next_step(steady(NOW + 366 * DAY), PLAN)
    assert step == (Action.NEW_AUTHORITY, "it is not valid at this time")


def test_corrupt_next_ca_is_replaced() -> None:
    now = NOW + 244 * DAY
    leaf = run_next_step(steady(now, leaf=None))
    corrupt_next = {**first()[0], "next.crt": b"no PEM", "next.key": b""}
    assert action(steady(now, authority=corrupt_next, leaf=leaf)) is Action.INTRODUCE


def test_leaf_is_not_accepted_as_a_ca() -> None:
    _, leaf = first()
    assert Authority.read({"tls.crt": leaf["tls.crt"], "tls.key": leaf["tls.key"]}) is None


def planted(until: bytes = b"9999-01-01T00:00:00+00:00") -> Data:
    return {**first()[0], "retired.crt": another()[0]["tls.crt"], "retired-until": until}


@pytest.mark.parametrize("until", [b"9999-01-01T00:00:00+00:00", b"soon", b""])
def test_unserved_retired_ca_is_removed_after_settling(until: bytes) -> None:
    data, settled = planted(until), NOW + PLAN.settling

    assert action(steady(settled - timedelta(seconds=1), authority=data)) is None
    assert action(steady(settled, authority=data)) is Action.FORGET
    assert run_next_step(steady(settled, authority=data)) == first()[0]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"unknown": True}, id="a replica does not answer"),
        pytest.param({"served": []}, id="nothing is served"),
        pytest.param({"known_for": timedelta()}, id="the clock was just set"),
        pytest.param(
            {"served": [authority.read(leaf["tls.crt"]) for _, leaf in (first(), another())]},
            id="a replica serves its leaf",
        ),
    ],
)
def test_retired_ca_is_kept_while_it_may_be_needed(change: dict[str, Any]) -> None:
    assert action(steady(NOW + DAY, authority=planted(), **change)) is None


def test_deleting_both_secrets_removes_a_stolen_ca() -> None:
    ca, leaf = first()
    now = NOW + DAY
    new_ca = run_next_step(steady(now, authority=None, leaf=None))
    assert new_ca["retired.crt"] == ca["tls.crt"]
    renewed = run_next_step(steady(now, authority=new_ca, leaf=None, trusted=trusted(new_ca)))
    served = [authority.read(renewed["tls.crt"])]
    new_state = {"authority": new_ca, "leaf": renewed, "trusted": trusted(new_ca)}
    mixed = [*served, authority.read(leaf["tls.crt"])]
    assert action(steady(now + DAY, **new_state, served=mixed)) is None
    updated = run_next_step(steady(now + PLAN.settling, **new_state, served=served))
    assert ca["tls.crt"] not in updated.values()
    assert updated.keys() == {"tls.crt", "tls.key"}


def test_foreign_server_does_not_keep_a_retired_ca() -> None:
    """It has an address of the Service, and a certificate that no CA of ours signed."""
    foreign_ca = authority.new_ca("foreign", now=NOW, lifetime=9_999 * DAY)
    foreign = authority.read(foreign_ca.certificate)
    now = NOW + DAY
    new_ca = run_next_step(steady(now, authority=None, leaf=None, served=[foreign]))
    retired_until = datetime.fromisoformat(new_ca["retired-until"].decode())
    assert retired_until == now + authority.LEAF_LIFETIME
    new_state = {"authority": new_ca, "trusted": trusted(new_ca)}
    renewed = run_next_step(steady(now, **new_state, leaf=None, served=[foreign]))
    served = [authority.read(renewed["tls.crt"]), foreign]
    later = now + PLAN.settling
    updated = run_next_step(steady(later, **new_state, leaf=renewed, served=served))
    assert updated.keys() == {"tls.crt", "tls.key"}
    assert action(steady(later, **new_state, leaf=renewed, served=[foreign])) is None


def test_retired_ca_with_an_unreadable_expiry_is_kept() -> None:
    for text in (b"soon", b"\xff", b"2026-03-01T12:00:00"):
        assert action(steady(authority=planted(text), unknown=True)) is None
