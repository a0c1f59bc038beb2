from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.certs import authority, rotation
from holdfast.certs.authority import Certificate, KeyPair
from holdfast.certs.rotation import Action, Authority, Data, Observation, Plan, carry_out, next_step

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PLAN = Plan(("hook", "hook.system", "hook.system.svc"))
DAY = timedelta(days=1)


def made(observed: Observation, *, plan: Plan = PLAN) -> Data:
    step = next_step(observed, plan)
    assert step is not None
    return carry_out(step, observed, plan)


@lru_cache
def first() -> tuple[Data, Data]:
    """A CA and its leaf, as they come up from nothing."""
    ca = made(Observation(NOW, None, None))
    return ca, made(Observation(NOW, ca, None))


def fingerprint(pem: bytes) -> str:
    return authority.read(pem).fingerprint


def trusted(ca: Data, seconds: float = 60.0, name: str = "tls.crt") -> dict[str, timedelta]:
    return {fingerprint(ca[name]): timedelta(seconds=seconds)}


def action(observed: Observation, plan: Plan = PLAN) -> Action | None:
    step = next_step(observed, plan)
    return step and step.action


def steady(now: datetime = NOW, **others: Any) -> Observation:
    ca, leaf = first()
    given: dict[str, Any] = {
        "authority": ca,
        "leaf": leaf,
        "bundles": [ca["tls.crt"]],
        "trusted": trusted(ca),
        "served": [authority.read(leaf["tls.crt"])],
    }
    return Observation(**{"now": now, **given, **others})


def rsa_ca() -> Data:
    """Make a CA as somebody else may have: with an RSA key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "theirs")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + 365 * DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return {
        "tls.crt": certificate.public_bytes(pem),
        "tls.key": key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
    }


RSA = rsa_ca()


# --- from nothing ------------------------------------------------------------------------------


def test_a_ca_comes_first_and_then_its_leaf_and_then_nothing() -> None:
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


def test_a_first_leaf_waits_for_nobody_who_does_not_answer_while_nothing_is_registered() -> None:
    ca, _ = first()
    assert action(Observation(NOW, ca, None, unknown=True)) is Action.ISSUE


def test_names_that_are_too_long_for_a_common_name_are_served() -> None:
    plan = Plan((f"{'h' * 63}.{'n' * 63}.svc",))
    ca = made(Observation(NOW, None, None), plan=plan)
    leaf = made(Observation(NOW, ca, None), plan=plan)
    assert rotation.serves(authority.read(leaf["tls.crt"]), ca["tls.crt"], NOW, plan.names)


# --- the leaf ----------------------------------------------------------------------------------


def spoilt(**data: bytes) -> dict[str, bytes]:
    return {**first()[1], **{name.replace("_", "."): value for name, value in data.items()}}


@lru_cache
def another() -> tuple[Data, Data]:
    ca = made(Observation(NOW, None, None))
    return ca, made(Observation(NOW, ca, None))


LEAVES: list[Any] = [
    pytest.param(lambda: None, "there is none", id="deleted"),
    pytest.param(dict, "do not match", id="empty"),
    pytest.param(lambda: spoilt(tls_crt=b"no PEM"), "do not match", id="corrupted"),
    pytest.param(lambda: spoilt(tls_key=b"\xff"), "do not match", id="key-corrupted"),
    pytest.param(lambda: spoilt(tls_key=another()[1]["tls.key"]), "do not match", id="mismatched"),
    pytest.param(lambda: another()[1], "another CA signed it", id="of-another-ca"),
    pytest.param(lambda: spoilt(ca_crt=b""), "another CA", id="without-its-ca"),
]


@pytest.mark.parametrize(("leaf", "reason"), LEAVES)
def test_a_leaf_that_will_not_do_is_issued_anew_once(leaf: Any, reason: str) -> None:
    observed = steady(leaf=leaf())
    step = next_step(observed, PLAN)
    assert step is not None
    assert step.action is Action.ISSUE
    assert reason in step.reason
    assert next_step(steady(leaf=carry_out(step, observed, PLAN)), PLAN) is None
    assert next_step(replace(observed, known_for=timedelta()), PLAN) == step


def test_a_leaf_without_a_name_is_issued_anew() -> None:
    plan = Plan((*PLAN.names, "more"))
    step = next_step(steady(), plan)
    assert step == (Action.ISSUE, "it lacks a name of the Service")


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        pytest.param(19.9, None, id="two-thirds-not-gone"),
        pytest.param(20.0, Action.ISSUE, id="two-thirds-gone"),
        pytest.param(31.0, Action.ISSUE, id="expired"),
        pytest.param(-0.1, Action.NEW_AUTHORITY, id="a-clock-set-back"),
    ],
)
def test_a_leaf_is_renewed_when_a_third_is_left(days: float, expected: Action | None) -> None:
    assert action(steady(NOW + days * DAY)) is expected


def test_a_leaf_waits_until_api_servers_know_its_ca() -> None:
    other_ca, other_leaf = another()
    ca, _ = first()
    retired = {**ca, "retired.crt": other_ca["tls.crt"]}
    served = [authority.read(other_leaf["tls.crt"])]
    waiting = steady(
        authority=retired, leaf=other_leaf, served=served, trusted=trusted(ca, seconds=59.9)
    )
    assert action(waiting) is None
    assert action(steady(authority=retired, leaf=None, served=served, trusted={})) is None
    assert action(steady(authority=retired, leaf=other_leaf, served=served)) is Action.ISSUE


def test_a_leaf_does_not_wait_where_nothing_that_is_trusted_is_served() -> None:
    assert action(steady(leaf=None, served=[], trusted={})) is Action.ISSUE
    stranger = authority.read(another()[1]["tls.crt"])
    assert action(steady(leaf=None, served=[stranger], trusted={})) is Action.ISSUE
    assert action(steady(leaf=None, served=[], trusted={}, unknown=True)) is None


def test_a_leaf_of_a_ca_that_is_served_already_does_not_wait() -> None:
    assert action(steady(leaf=None, trusted={})) is Action.ISSUE


def test_a_leaf_never_outlives_its_ca() -> None:
    ca, leaf = first()
    late = NOW + 350 * DAY
    observed = steady(late, served=[])
    renewed = carry_out(rotation.RotationStep(Action.ISSUE, ""), observed, PLAN)
    assert authority.not_after(renewed["tls.crt"]) == authority.not_after(ca["tls.crt"])
    assert renewed["tls.key"] != leaf["tls.key"]


# --- the CA ------------------------------------------------------------------------------------


def test_a_rotation_step_by_step() -> None:
    ca, leaf = first()
    now = NOW + 244 * DAY
    served = [authority.read(leaf["tls.crt"])]

    def observed(ca: Data, leaf: Data, **others: Any) -> Observation:
        return steady(now, authority=ca, leaf=leaf, **others)

    leaf = made(observed(ca, leaf, served=served))
    assert action(observed(ca, leaf)) is Action.INTRODUCE
    introduced = made(observed(ca, leaf))
    both = Authority.read(introduced)
    assert both is not None
    assert both.bundle == introduced["tls.crt"] + introduced["next.crt"]
    assert introduced["tls.crt"] == ca["tls.crt"]

    assert action(observed(introduced, leaf)) is None
    known = trusted(introduced, 59.9, "next.crt")
    assert action(observed(introduced, leaf, trusted=known)) is None
    known = {**trusted(introduced), **trusted(introduced, 60, "next.crt")}
    assert action(observed(introduced, leaf, trusted=known)) is Action.PROMOTE
    promoted = made(observed(introduced, leaf, trusted=known))
    assert promoted["tls.crt"] == introduced["next.crt"]
    assert promoted["retired.crt"] == ca["tls.crt"]
    assert datetime.fromisoformat(promoted["retired-until"].decode()) == now + 30 * DAY

    assert action(observed(promoted, leaf, trusted=known)) is Action.ISSUE
    renewed = made(observed(promoted, leaf, trusted=known))
    assert action(observed(promoted, renewed, trusted=known)) is None
    now += 10 * DAY
    assert action(observed(promoted, renewed, trusted=known)) is None
    now += 20 * DAY
    renewed = made(observed(promoted, renewed, trusted=known))
    assert action(observed(promoted, renewed, trusted=known)) is Action.FORGET
    forgotten = made(observed(promoted, renewed, trusted=known))
    assert forgotten == {"tls.crt": promoted["tls.crt"], "tls.key": promoted["tls.key"]}
    assert action(observed(forgotten, renewed, trusted=known)) is None


LOST: list[Any] = [
    pytest.param(None, id="deleted"),
    pytest.param({}, id="empty"),
    pytest.param({"tls.crt": b"no PEM", "tls.key": b""}, id="corrupted"),
]


@pytest.mark.parametrize("lost", LOST)
def test_a_lost_ca_stays_trusted(lost: Data | None) -> None:
    ca, leaf = first()
    observed = steady(authority=lost, trusted={})
    assert action(observed) is Action.NEW_AUTHORITY
    assert action(replace(observed, known_for=timedelta())) is Action.NEW_AUTHORITY
    after = Authority.read(made(observed))
    assert after is not None
    assert [one.pem for one in after.retired] == [ca["tls.crt"]]
    assert after.retired_until == NOW + authority.LEAF_LIFETIME
    assert action(steady(authority=after.data(), trusted={})) is None  # first the API servers
    assert rotation.serves(authority.read(leaf["tls.crt"]), after.bundle, NOW, PLAN.names)


def test_a_lost_ca_is_found_beside_the_leaf_when_the_bundle_is_blank() -> None:
    ca, _ = first()
    after = Authority.read(made(steady(authority=None, bundles=[b""])))
    assert after is not None
    assert [one.pem for one in after.retired] == [ca["tls.crt"]]


def test_a_ca_without_its_key_is_retired() -> None:
    ca, _ = first()
    observed = steady(authority={**ca, "tls.key": another()[0]["tls.key"]})
    after = Authority.read(made(observed))
    assert after is not None
    assert [one.pem for one in after.retired] == [ca["tls.crt"]]


def test_a_ca_of_another_kind_of_key_is_retired_and_no_longer_signs() -> None:
    found = Authority.read(made(steady(authority=RSA)))
    assert found is not None
    assert fingerprint(RSA["tls.crt"]) in {one.fingerprint for one in found.retired}


def restored(**others: Any) -> Observation:
    """Return an observation of a CA that a backup has put back, after another one replaced it."""
    ca, leaf = another()
    given: dict[str, Any] = {
        "leaf": leaf,
        "bundles": [ca["tls.crt"]],
        "trusted": trusted(ca),
        "served": [authority.read(leaf["tls.crt"])],
    }
    return steady(**{**given, **others})


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
def test_ca_that_a_restored_secret_lacks_stays_trusted_while_it_is_served(
    change: dict[str, Any],
) -> None:
    ca, (needed, needed_leaf) = first()[0], another()
    observed = restored(**change)
    assert action(observed) is Action.RETAIN
    data = made(observed)
    assert data["tls.crt"] == ca["tls.crt"]
    assert data["retired.crt"] == needed["tls.crt"]
    until = observed.now + authority.LEAF_LIFETIME
    assert datetime.fromisoformat(data["retired-until"].decode()) == until
    after = Authority.read(data)
    assert after is not None
    certificate = authority.read(needed_leaf["tls.crt"])
    assert rotation.serves(certificate, after.bundle, observed.now, PLAN.names)
    assert action(replace(observed, authority=data)) is None  # first the API servers


def test_restored_ca_signs_once_api_servers_trust_it_and_the_other_is_removed() -> None:
    ca, (needed, _) = first()[0], another()
    data = made(restored())
    bundles = [ca["tls.crt"] + needed["tls.crt"]]
    known = {**trusted(ca), **trusted(needed)}
    observed = restored(authority=data, bundles=bundles, trusted=known)
    assert action(observed) is Action.ISSUE
    leaf = made(observed)
    served = [authority.read(leaf["tls.crt"])]
    later = restored(
        now=NOW + PLAN.settling,
        authority=data,
        leaf=leaf,
        bundles=bundles,
        trusted=known,
        served=served,
    )
    assert action(later) is Action.FORGET
    assert made(later) == ca
    assert action(replace(later, authority=ca)) is None


def test_ca_in_a_bundle_is_not_retained_unless_a_replica_serves_a_valid_leaf_of_it() -> None:
    ca, _ = first()
    planted_bundle = [ca["tls.crt"] + another()[0]["tls.crt"]]
    assert action(steady(bundles=planted_bundle)) is None
    late = NOW + 31 * DAY
    leaf = made(steady(late, leaf=None))
    theirs = authority.read(another()[1]["tls.crt"])
    served = [authority.read(leaf["tls.crt"]), theirs]
    assert action(steady(late, leaf=leaf, served=served, bundles=planted_bundle)) is None


def test_retired_cas_are_not_exceeded_by_those_that_are_retained() -> None:
    crowd = [authority.new_ca(str(number), now=NOW).certificate for number in range(20)]
    full = {**first()[0], "retired.crt": b"".join(crowd[: rotation.MOST_RETIRED])}
    assert action(restored(authority=full, unknown=True)) is None
    nearly = {**first()[0], "retired.crt": b"".join(crowd[: rotation.MOST_RETIRED - 1])}
    data = made(restored(authority=nearly, unknown=True, bundles=crowd))
    assert data["retired.crt"] == b"".join(crowd[: rotation.MOST_RETIRED])


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
def test_whatever_secrets_and_bundles_hold_is_got_over(
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


def test_an_expired_ca_is_replaced() -> None:
    assert next_step(steady(NOW + 366 * DAY), PLAN) == (
        Action.NEW_AUTHORITY,
        "it is not valid at this time",
    )


def test_a_spoilt_next_ca_is_made_anew() -> None:
    ca, leaf = first()
    now = NOW + 244 * DAY
    leaf = made(steady(now, leaf=None))
    spoilt_next = {**ca, "next.crt": b"no PEM", "next.key": b""}
    assert action(steady(now, authority=spoilt_next, leaf=leaf)) is Action.INTRODUCE


def test_a_leaf_is_no_ca() -> None:
    _, leaf = first()
    assert Authority.read({"tls.crt": leaf["tls.crt"], "tls.key": leaf["tls.key"]}) is None


def planted(until: bytes = b"9999-01-01T00:00:00+00:00") -> Data:
    return {**first()[0], "retired.crt": another()[0]["tls.crt"], "retired-until": until}


@pytest.mark.parametrize("until", [b"9999-01-01T00:00:00+00:00", b"soon", b""])
def test_ca_whose_leaves_nobody_serves_is_removed_minutes_later(until: bytes) -> None:
    data, later = planted(until), NOW + PLAN.settling

    assert action(steady(later - timedelta(seconds=1), authority=data)) is None
    assert action(steady(later, authority=data)) is Action.FORGET
    assert made(steady(later, authority=data)) == first()[0]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"unknown": True}, id="a replica does not answer"),
        pytest.param({"served": []}, id="nothing is served"),
        pytest.param({"known_for": timedelta()}, id="the clock was just set"),
    ],
)
def test_retired_ca_stays_while_it_may_be_needed(change: dict[str, Any]) -> None:
    assert action(steady(NOW + DAY, authority=planted(), **change)) is None


def test_retired_ca_stays_while_a_replica_serves_its_leaf() -> None:
    theirs = authority.read(another()[1]["tls.crt"])
    served = [*steady().served, theirs]

    assert action(steady(NOW + DAY, authority=planted(), served=served)) is None


def test_after_a_theft_deleted_secrets_lead_to_another_ca_alone() -> None:
    ca, leaf = first()
    now = NOW + DAY
    fresh = made(steady(now, authority=None, leaf=None))
    assert fresh["retired.crt"] == ca["tls.crt"]
    renewed = made(steady(now, authority=fresh, leaf=None, trusted=trusted(fresh)))
    served = [authority.read(renewed["tls.crt"])]
    known = {"authority": fresh, "leaf": renewed, "trusted": trusted(fresh)}
    mixed = [*served, authority.read(leaf["tls.crt"])]
    assert action(steady(now + DAY, **known, served=mixed)) is None
    after = made(steady(now + PLAN.settling, **known, served=served))
    assert ca["tls.crt"] not in after.values()
    assert after.keys() == {"tls.crt", "tls.key"}


def test_a_retired_ca_without_a_readable_time_stays() -> None:
    ca, _ = first()
    for text in (b"soon", b"\xff", b"2026-03-01T12:00:00"):
        data = {**ca, "retired.crt": another()[0]["tls.crt"], "retired-until": text}
        assert action(steady(authority=data, unknown=True)) is None


# --- a time that may be wrong ------------------------------------------------------------------

SET = timedelta(minutes=10) - timedelta(seconds=1)
"""For how long a clock goes on that was set, and is not believed yet."""


def aged_next() -> Observation:
    """Return an observation whose next CA expired before it signed, and whose signing CA is old."""
    ca, _ = first()
    old = made(Observation(NOW - 360 * DAY, None, None))
    now = NOW + 244 * DAY
    data = {**ca, "next.crt": old["tls.crt"], "next.key": old["tls.key"]}
    return steady(now, authority=data, leaf=made(steady(now, leaf=None)))


def retired_for_long() -> Observation:
    data = {**first()[0], "retired.crt": another()[0]["tls.crt"]}
    return steady(authority={**data, "retired-until": NOW.isoformat().encode()})


AGED: list[Any] = [
    pytest.param(lambda: steady(NOW + 366 * DAY), Action.NEW_AUTHORITY, id="ca-expired"),
    pytest.param(lambda: steady(NOW - DAY), Action.NEW_AUTHORITY, id="ca-not-begun"),
    pytest.param(lambda: steady(NOW + 20 * DAY), Action.ISSUE, id="leaf-old"),
    pytest.param(
        lambda: steady(NOW + 244 * DAY, leaf=made(steady(NOW + 244 * DAY, leaf=None))),
        Action.INTRODUCE,
        id="ca-old",
    ),
    pytest.param(aged_next, Action.INTRODUCE, id="next-expired"),
    pytest.param(retired_for_long, Action.FORGET, id="retired-for-long"),
]


@pytest.mark.parametrize(("observed", "expected"), AGED)
def test_nothing_is_done_for_its_age_alone_by_a_clock_that_was_just_set(
    observed: Any, expected: Action
) -> None:
    assert action(replace(observed(), known_for=SET)) is None
    assert action(replace(observed(), known_for=SET + timedelta(seconds=1))) is expected


def test_no_leaf_is_issued_by_a_ca_that_has_not_begun() -> None:
    assert action(steady(NOW - DAY, leaf=None, known_for=timedelta())) is None


def test_a_ca_that_has_not_begun_stays_trusted() -> None:
    ca, leaf = first()
    after = Authority.read(made(steady(NOW - 400 * DAY)))
    assert after is not None
    assert [one.pem for one in after.retired] == [ca["tls.crt"]]
    assert rotation.serves(authority.read(leaf["tls.crt"]), after.bundle, NOW, PLAN.names)


def test_what_is_served_counts_where_it_may_be_valid() -> None:
    """By a wrong time nothing seems to be served that an unknown CA's leaf could break."""
    other_ca, other_leaf = another()
    data = {**first()[0], "retired.crt": other_ca["tls.crt"]}
    served = [authority.read(other_leaf["tls.crt"])]
    later = NOW + 40 * DAY
    observed = steady(later, authority=data, leaf=None, served=served, trusted={})
    assert action(observed) is Action.ISSUE
    assert action(replace(observed, known_for=SET)) is None


def test_certificates_that_live_for_a_short_time_wait_for_a_part_of_it() -> None:
    assert Plan(PLAN.names, leaf_lifetime=timedelta(minutes=1)).settling == timedelta(seconds=0.6)


# --- whom API servers trust --------------------------------------------------------------------


def test_common_is_what_every_bundle_has() -> None:
    ca, other = first()[0]["tls.crt"], another()[0]["tls.crt"]
    assert rotation.common([]) == frozenset()
    assert rotation.common([ca, b""]) == frozenset()
    assert rotation.common([ca + other, other]) == {fingerprint(other)}
    assert rotation.common([b"no PEM" + ca, ca]) == {fingerprint(ca)}


def test_serves() -> None:
    ca, leaf = first()
    certificate = authority.read(leaf["tls.crt"])
    assert rotation.serves(certificate, ca["tls.crt"], NOW, PLAN.names)
    assert not rotation.serves(certificate, another()[0]["tls.crt"], NOW, PLAN.names)
    assert not rotation.serves(certificate, b"", NOW, PLAN.names)
    assert not rotation.serves(certificate, ca["tls.crt"], NOW, ["other"])
    assert not rotation.serves(certificate, ca["tls.crt"], NOW + 31 * DAY, PLAN.names)


# --- whatever happens, in whatever order -------------------------------------------------------

SHORT = Plan(PLAN.names, timedelta(hours=18), timedelta(hours=3), propagation=timedelta(seconds=60))
REPLICAS = 3


@lru_cache(10_000)
def taken(certificate: Certificate, bundle: bytes) -> bool:
    """Return whether a client that trusts this bundle accepts the certificate, dates aside."""
    return any(authority.signed_by(certificate, ca) for ca in authority.read_all(bundle))


class World:
    """Secrets, replicas that mount them late, API servers that see the bundle late."""

    def __init__(self) -> None:
        self.now = NOW
        self.ca: Data | None = None
        self.leaf: Data | None = None
        self.mounted: list[Data | None] = [None] * REPLICAS
        self.published: bytes | None = None
        self.changes: list[tuple[datetime, bytes]] = []
        self.since: dict[str, datetime] = {}
        self.issued = 0
        self.broken_until = NOW
        self.rescued = False
        self.backup: tuple[Data | None, Data | None] = None, None

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @property
    def served(self) -> list[Certificate]:
        return [authority.read(one["tls.crt"]) for one in self.mounted if one is not None]

    def known_bundles(self) -> list[bytes]:
        """The bundles that an API server may have: the last one a minute ago, and all since."""
        late = self.now - SHORT.propagation
        old = [bundle for at, bundle in self.changes if at <= late][-1:]
        return old + [bundle for at, bundle in self.changes if at > late]

    def check(self) -> None:
        if self.now < self.broken_until:
            return
        for certificate in self.served:
            if certificate.valid_at(self.now):
                assert all(taken(certificate, bundle) for bundle in self.known_bundles())

    def observed(self, *, unknown: bool = False) -> Observation:
        bundles = [] if self.published is None else [self.published]
        self.since = {one: self.since.get(one, self.now) for one in rotation.common(bundles)}
        trusted = {one: self.now - since for one, since in self.since.items()}
        served = [] if unknown else self.served
        return Observation(self.now, self.ca, self.leaf, bundles, trusted, served, unknown)

    def control(self, *, writes: int, unknown: bool = False, publishes: bool = True) -> None:
        """Let a controller work that is killed after so many writes."""
        forgotten = False
        for _ in range(writes):
            observed = self.observed(unknown=unknown)
            if forgotten:
                observed = replace(observed, bundles=[])
            step = next_step(observed, SHORT)
            if step is None:
                break
            data = carry_out(step, observed, SHORT)
            if step.action is Action.ISSUE:
                assert self.leaf is None or rotation.leaf_defect(
                    self.leaf, self.authority, self.now, SHORT
                )
                self.leaf = data
                self.issued += 1
                if not any(one.valid_at(self.now) for one in self.served):
                    # nothing is served that could break: calls fail as they did, until the bundle
                    # that goes with this leaf is everywhere
                    self.broken_until = self.now + timedelta(days=10_000)
                    self.rescued = True
            else:
                self.ca = data
                forgotten = forgotten or step.action is Action.FORGET
        if publishes and self.ca is not None:
            self.publish()

    @property
    def authority(self) -> Authority:
        found = Authority.read(self.ca)
        assert found is not None
        return found

    def publish(self) -> None:
        """Write the bundle, once the replicas have something to show for it."""
        found = Authority.read(self.ca)
        if found is None:
            return
        if found.bundle == self.published:
            self.mend(found)
            return
        ready = len(self.served) == REPLICAS and all(
            one.valid_at(self.now) and taken(one, found.bundle) for one in self.served
        )
        if self.published is not None or ready:
            self.published = found.bundle
            self.changes.append((self.now, found.bundle))
            self.mend(found)

    def mend(self, found: Authority) -> None:
        """Note from when on calls have to work again that a lost CA broke."""
        if self.rescued and self.published == found.bundle:
            self.broken_until = self.now + SHORT.propagation
            self.rescued = False

    def mount(self, number: int) -> None:
        if self.leaf is not None and authority.pair_matches(
            KeyPair(self.leaf["tls.crt"], self.leaf["tls.key"])
        ):
            self.mounted[number] = self.leaf

    def back_up(self) -> None:
        self.backup = self.ca, self.leaf

    def restore(self) -> None:
        """Restore both Secrets; the replicas mount them after the API servers know the bundle."""
        self.ca, self.leaf = self.backup
        self.control(writes=6)
        self.pass_time(61)
        self.check()

    def replace_ca(self) -> None:
        """Replace the CA; nothing needs the old one any more."""
        self.ca = None
        self.settle()

    def settle(self) -> None:
        """Let everything come to rest."""
        for _ in range(8):
            self.control(writes=6)
            for number in range(REPLICAS):
                self.mount(number)
            self.control(writes=6)
            self.pass_time(30)
            self.check()


EVENTS: Mapping[str, Any] = {
    "controller": lambda world: world.control(writes=6),
    "controller killed after a write": lambda world: world.control(writes=1, publishes=False),
    "controller that cannot ask": lambda world: world.control(writes=6, unknown=True),
    "new leader": lambda world: (world.since.clear(), world.control(writes=6)),
    "mount 0": lambda world: world.mount(0),
    "mount 1": lambda world: world.mount(1),
    "mount 2": lambda world: world.mount(2),
    "leaf deleted": lambda world: setattr(world, "leaf", None),
    "leaf corrupted": lambda world: setattr(world, "leaf", {"tls.crt": b"?", "tls.key": b"?"}),
    "CA deleted": lambda world: setattr(world, "ca", None),
    "CA corrupted": lambda world: setattr(world, "ca", {"tls.crt": b"?"}),
    "backup": World.back_up,
    "CA restored": lambda world: setattr(world, "ca", world.backup[0]),
    "both restored": World.restore,
    "CA replaced": World.replace_ca,
}
PAUSES = st.sampled_from([0.0, 5.0, 30.0, 61.0, 600.0, 3600.0])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), PAUSES), max_size=20))
@example([("CA replaced", 0.0), ("CA restored", 0.0), ("controller", 61.0)])
@example([("CA replaced", 0.0), ("CA restored", 0.0), ("controller that cannot ask", 61.0)])
@example([("CA replaced", 0.0), ("both restored", 0.0)])
def test_api_servers_always_trust_what_is_served(events: list[tuple[str, float]]) -> None:
    world = World()
    world.settle()
    world.back_up()
    for name, seconds in events:
        EVENTS[name](world)
        world.check()
        world.pass_time(seconds)
        world.check()
    world.settle()
    assert all(one.valid_at(world.now) for one in world.served)
    assert next_step(world.observed(), SHORT) is None
    issued = world.issued
    world.settle()
    assert world.issued <= issued + 1  # its time may have come, but never twice


def test_crowd_of_planted_cas_is_not_kept() -> None:
    """The API server would reject a Secret or a webhook configuration that has them all."""
    bundles = [authority.new_ca(str(number), now=NOW).certificate for number in range(99)]
    large = authority.new_ca("large", now=NOW, dns_names=["x" * 60] * 99)
    found = Authority.read(made(Observation(NOW, None, None, [large.certificate, *bundles])))
    assert found is not None
    assert len(found.bundle) < 1 << 15
    assert Authority.read({"tls.crt": large.certificate, "tls.key": large.key}) is None
