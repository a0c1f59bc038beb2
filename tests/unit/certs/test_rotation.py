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


def run_next_step(observed: Observation, *, plan: Plan = PLAN) -> Data:
    step = next_step(observed, plan)
    assert step is not None
    return carry_out(step, observed, plan)


@lru_cache
def first() -> tuple[Data, Data]:
    """Return the first CA and its leaf in a new cluster."""
    ca = run_next_step(Observation(NOW, None, None))
    return ca, run_next_step(Observation(NOW, ca, None))


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
    """Make a foreign CA with an RSA key."""
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


# --- first certificates ------------------------------------------------------------------------


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


def test_first_leaf_does_not_wait_for_unresponsive_replicas() -> None:
    ca, _ = first()
    assert action(Observation(NOW, ca, None, unknown=True)) is Action.ISSUE


def test_leaf_serves_names_too_long_for_a_common_name() -> None:
    plan = Plan((f"{'h' * 63}.{'n' * 63}.svc",))
    ca = run_next_step(Observation(NOW, None, None), plan=plan)
    leaf = run_next_step(Observation(NOW, ca, None), plan=plan)
    assert rotation.serves(authority.read(leaf["tls.crt"]), ca["tls.crt"], NOW, plan.names)


# --- the leaf ----------------------------------------------------------------------------------


def damaged_leaf(**data: bytes) -> dict[str, bytes]:
    return {**first()[1], **{name.replace("_", "."): value for name, value in data.items()}}


@lru_cache
def another() -> tuple[Data, Data]:
    ca = run_next_step(Observation(NOW, None, None))
    return ca, run_next_step(Observation(NOW, ca, None))


LEAVES: list[Any] = [
    pytest.param(lambda: None, "there is none", id="deleted"),
    pytest.param(dict, "do not match", id="empty"),
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
    waiting = steady(
        authority=retired, leaf=other_leaf, served=served, trusted=trusted(ca, seconds=59.9)
    )
    assert action(waiting) is None
    assert action(steady(authority=retired, leaf=None, served=served, trusted={})) is None
    assert action(steady(authority=retired, leaf=other_leaf, served=served)) is Action.ISSUE


def test_leaf_is_issued_at_once_if_no_trusted_leaf_is_served() -> None:
    assert action(steady(leaf=None, served=[], trusted={})) is Action.ISSUE
    stranger = authority.read(another()[1]["tls.crt"])
    assert action(steady(leaf=None, served=[stranger], trusted={})) is Action.ISSUE
    assert action(steady(leaf=None, served=[], trusted={}, unknown=True)) is None


def test_leaf_is_issued_at_once_if_its_ca_is_already_served() -> None:
    assert action(steady(leaf=None, trusted={})) is Action.ISSUE


def test_leaf_never_outlives_its_ca() -> None:
    ca, leaf = first()
    late = NOW + 350 * DAY
    observed = steady(late, served=[])
    renewed = carry_out(rotation.RotationStep(Action.ISSUE, ""), observed, PLAN)
    assert authority.not_after(renewed["tls.crt"]) == authority.not_after(ca["tls.crt"])
    assert renewed["tls.key"] != leaf["tls.key"]


# --- the CA ------------------------------------------------------------------------------------


def test_ca_rotation_step_by_step() -> None:
    ca, leaf = first()
    now = NOW + 244 * DAY
    served = [authority.read(leaf["tls.crt"])]

    def observed(ca: Data, leaf: Data, **others: Any) -> Observation:
        return steady(now, authority=ca, leaf=leaf, **others)

    leaf = run_next_step(observed(ca, leaf, served=served))
    assert action(observed(ca, leaf)) is Action.INTRODUCE
    introduced = run_next_step(observed(ca, leaf))
    both = Authority.read(introduced)
    assert both is not None
    assert both.bundle == introduced["tls.crt"] + introduced["next.crt"]
    assert introduced["tls.crt"] == ca["tls.crt"]

    assert action(observed(introduced, leaf)) is None
    known = trusted(introduced, 59.9, "next.crt")
    assert action(observed(introduced, leaf, trusted=known)) is None
    known = {**trusted(introduced), **trusted(introduced, 60, "next.crt")}
    assert action(observed(introduced, leaf, trusted=known)) is Action.PROMOTE
    promoted = run_next_step(observed(introduced, leaf, trusted=known))
    assert promoted["tls.crt"] == introduced["next.crt"]
    assert promoted["retired.crt"] == ca["tls.crt"]
    assert datetime.fromisoformat(promoted["retired-until"].decode()) == now + 30 * DAY

    assert action(observed(promoted, leaf, trusted=known)) is Action.ISSUE
    renewed = run_next_step(observed(promoted, leaf, trusted=known))
    assert action(observed(promoted, renewed, trusted=known)) is None
    now += 10 * DAY
    assert action(observed(promoted, renewed, trusted=known)) is None
    now += 20 * DAY
    renewed = run_next_step(observed(promoted, renewed, trusted=known))
    assert action(observed(promoted, renewed, trusted=known)) is Action.FORGET
    forgotten = run_next_step(observed(promoted, renewed, trusted=known))
    assert forgotten == {"tls.crt": promoted["tls.crt"], "tls.key": promoted["tls.key"]}
    assert action(observed(forgotten, renewed, trusted=known)) is None


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
    after = Authority.read(run_next_step(observed))
    assert after is not None
    assert [one.pem for one in after.retired] == [ca["tls.crt"]]
    assert after.retired_until == NOW + authority.LEAF_LIFETIME
    # nothing is issued until API servers trust the CA
    assert action(steady(authority=after.data(), trusted={})) is None
    assert rotation.serves(authority.read(leaf["tls.crt"]), after.bundle, NOW, PLAN.names)


def test_lost_ca_is_recovered_from_the_leaf_secret() -> None:
    ca, _ = first()
    after = Authority.read(run_next_step(steady(authority=None, bundles=[b""])))
    assert after is not None
    assert [one.pem for one in after.retired] == [ca["tls.crt"]]


def test_ca_without_its_key_is_retired() -> None:
    ca, _ = first()
    observed = steady(authority={**ca, "tls.key": another()[0]["tls.key"]})
    after = Authority.read(run_next_step(observed))
    assert after is not None
    assert [one.pem for one in after.retired] == [ca["tls.crt"]]


def test_ca_with_an_rsa_key_is_retired() -> None:
    found = Authority.read(run_next_step(steady(authority=RSA)))
    assert found is not None
    assert fingerprint(RSA["tls.crt"]) in {one.fingerprint for one in found.retired}


def restored(**others: Any) -> Observation:
    """Return an observation of a replaced CA that was restored from a backup."""
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
def test_served_ca_missing_from_a_restored_secret_stays_trusted(
    change: dict[str, Any],
) -> None:
    ca, (needed, needed_leaf) = first()[0], another()
    observed = restored(**change)
    assert action(observed) is Action.RETAIN
    data = run_next_step(observed)
    assert data["tls.crt"] == ca["tls.crt"]
    assert data["retired.crt"] == needed["tls.crt"]
    until = observed.now + authority.LEAF_LIFETIME
    assert datetime.fromisoformat(data["retired-until"].decode()) == until
    after = Authority.read(data)
    assert after is not None
    certificate = authority.read(needed_leaf["tls.crt"])
    assert rotation.serves(certificate, after.bundle, observed.now, PLAN.names)
    # nothing is issued until API servers trust the CA
    assert action(replace(observed, authority=data)) is None


def test_restored_ca_signs_once_trusted_and_replaces_the_other() -> None:
    ca, (needed, _) = first()[0], another()
    data = run_next_step(restored())
    bundles = [ca["tls.crt"] + needed["tls.crt"]]
    known = {**trusted(ca), **trusted(needed)}
    observed = restored(authority=data, bundles=bundles, trusted=known)
    assert action(observed) is Action.ISSUE
    leaf = run_next_step(observed)
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
    assert run_next_step(later) == ca
    assert action(replace(later, authority=ca)) is None


def test_bundled_ca_without_a_valid_served_leaf_is_not_retained() -> None:
    ca, _ = first()
    planted_bundle = [ca["tls.crt"] + another()[0]["tls.crt"]]
    assert action(steady(bundles=planted_bundle)) is None
    late = NOW + 31 * DAY
    leaf = run_next_step(steady(late, leaf=None))
    theirs = authority.read(another()[1]["tls.crt"])
    served = [authority.read(leaf["tls.crt"]), theirs]
    assert action(steady(late, leaf=leaf, served=served, bundles=planted_bundle)) is None


def test_retained_cas_do_not_exceed_the_limit_of_retired_cas() -> None:
    crowd = [authority.new_ca(str(number), now=NOW).certificate for number in range(20)]
    full = {**first()[0], "retired.crt": b"".join(crowd[: rotation.MOST_RETIRED])}
    assert action(restored(authority=full, unknown=True)) is None
    nearly = {**first()[0], "retired.crt": b"".join(crowd[: rotation.MOST_RETIRED - 1])}
    data = run_next_step(restored(authority=nearly, unknown=True, bundles=crowd))
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
    assert next_step(steady(NOW + 366 * DAY), PLAN) == (
        Action.NEW_AUTHORITY,
        "it is not valid at this time",
    )


def test_corrupt_next_ca_is_replaced() -> None:
    ca, leaf = first()
    now = NOW + 244 * DAY
    leaf = run_next_step(steady(now, leaf=None))
    corrupt_next = {**ca, "next.crt": b"no PEM", "next.key": b""}
    assert action(steady(now, authority=corrupt_next, leaf=leaf)) is Action.INTRODUCE


def test_leaf_is_not_accepted_as_a_ca() -> None:
    _, leaf = first()
    assert Authority.read({"tls.crt": leaf["tls.crt"], "tls.key": leaf["tls.key"]}) is None


def planted(until: bytes = b"9999-01-01T00:00:00+00:00") -> Data:
    return {**first()[0], "retired.crt": another()[0]["tls.crt"], "retired-until": until}


@pytest.mark.parametrize("until", [b"9999-01-01T00:00:00+00:00", b"soon", b""])
def test_unserved_retired_ca_is_removed_after_settling(until: bytes) -> None:
    data, later = planted(until), NOW + PLAN.settling

    assert action(steady(later - timedelta(seconds=1), authority=data)) is None
    assert action(steady(later, authority=data)) is Action.FORGET
    assert run_next_step(steady(later, authority=data)) == first()[0]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"unknown": True}, id="a replica does not answer"),
        pytest.param({"served": []}, id="nothing is served"),
        pytest.param({"known_for": timedelta()}, id="the clock was just set"),
    ],
)
def test_retired_ca_is_kept_while_it_may_be_needed(change: dict[str, Any]) -> None:
    assert action(steady(NOW + DAY, authority=planted(), **change)) is None


def test_retired_ca_is_kept_while_a_replica_serves_its_leaf() -> None:
    theirs = authority.read(another()[1]["tls.crt"])
    served = [*steady().served, theirs]

    assert action(steady(NOW + DAY, authority=planted(), served=served)) is None


def test_deleting_both_secrets_removes_a_stolen_ca() -> None:
    ca, leaf = first()
    now = NOW + DAY
    fresh = run_next_step(steady(now, authority=None, leaf=None))
    assert fresh["retired.crt"] == ca["tls.crt"]
    renewed = run_next_step(steady(now, authority=fresh, leaf=None, trusted=trusted(fresh)))
    served = [authority.read(renewed["tls.crt"])]
    known = {"authority": fresh, "leaf": renewed, "trusted": trusted(fresh)}
    mixed = [*served, authority.read(leaf["tls.crt"])]
    assert action(steady(now + DAY, **known, served=mixed)) is None
    after = run_next_step(steady(now + PLAN.settling, **known, served=served))
    assert ca["tls.crt"] not in after.values()
    assert after.keys() == {"tls.crt", "tls.key"}


def test_retired_ca_with_an_unreadable_expiry_is_kept() -> None:
    ca, _ = first()
    for text in (b"soon", b"\xff", b"2026-03-01T12:00:00"):
        data = {**ca, "retired.crt": another()[0]["tls.crt"], "retired-until": text}
        assert action(steady(authority=data, unknown=True)) is None


# --- untrusted clock ---------------------------------------------------------------------------

SET = timedelta(minutes=10) - timedelta(seconds=1)
"""Time since the clock was set: just too short for the clock to be trusted."""


def aged_next() -> Observation:
    """Return an observation whose next CA expired before it signed, and whose signing CA is old."""
    ca, _ = first()
    old = run_next_step(Observation(NOW - 360 * DAY, None, None))
    now = NOW + 244 * DAY
    data = {**ca, "next.crt": old["tls.crt"], "next.key": old["tls.key"]}
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
    after = Authority.read(run_next_step(steady(NOW - 400 * DAY)))
    assert after is not None
    assert [one.pem for one in after.retired] == [ca["tls.crt"]]
    assert rotation.serves(authority.read(leaf["tls.crt"]), after.bundle, NOW, PLAN.names)


def test_served_leaf_counts_as_valid_while_the_clock_is_untrusted() -> None:
    """A wrong clock can make a valid served leaf look expired, so that nothing seems to break."""
    other_ca, other_leaf = another()
    data = {**first()[0], "retired.crt": other_ca["tls.crt"]}
    served = [authority.read(other_leaf["tls.crt"])]
    later = NOW + 40 * DAY
    observed = steady(later, authority=data, leaf=None, served=served, trusted={})
    assert action(observed) is Action.ISSUE
    assert action(replace(observed, known_for=SET)) is None


def test_settling_time_is_a_fraction_of_a_short_lifetime() -> None:
    assert Plan(PLAN.names, leaf_lifetime=timedelta(minutes=1)).settling == timedelta(seconds=0.6)


# --- trusted bundles ---------------------------------------------------------------------------


def test_common_returns_the_cas_in_every_bundle() -> None:
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


# --- arbitrary events in any order -------------------------------------------------------------

SHORT = Plan(PLAN.names, timedelta(hours=18), timedelta(hours=3), propagation=timedelta(seconds=60))
REPLICAS = 3


@lru_cache(10_000)
def is_trusted(certificate: Certificate, bundle: bytes) -> bool:
    """Return whether a client that trusts this bundle accepts the certificate, dates aside."""
    return any(authority.signed_by(certificate, ca) for ca in authority.read_all(bundle))


class World:
    """Secrets, replicas that mount them late, and API servers that see the bundle late."""

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
        """Return the bundles that an API server may have: that of a minute ago, and all since."""
        late = self.now - SHORT.propagation
        old = [bundle for at, bundle in self.changes if at <= late][-1:]
        return old + [bundle for at, bundle in self.changes if at > late]

    def check(self) -> None:
        if self.now < self.broken_until:
            return
        for certificate in self.served:
            if certificate.valid_at(self.now):
                assert all(is_trusted(certificate, bundle) for bundle in self.known_bundles())

    def observed(self, *, unknown: bool = False) -> Observation:
        bundles = [] if self.published is None else [self.published]
        self.since = {one: self.since.get(one, self.now) for one in rotation.common(bundles)}
        trusted = {one: self.now - since for one, since in self.since.items()}
        served = [] if unknown else self.served
        return Observation(self.now, self.ca, self.leaf, bundles, trusted, served, unknown)

    def run_controller(self, *, writes: int, unknown: bool = False, publishes: bool = True) -> None:
        """Run a controller that is killed after this many writes."""
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
                    # no valid leaf is served that could break: calls keep failing until the
                    # bundle for this leaf has reached every API server
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
        """Publish the bundle, the first time only if all replicas serve a leaf that it trusts."""
        found = Authority.read(self.ca)
        if found is None:
            return
        if found.bundle == self.published:
            self.record_recovery(found)
            return
        ready = len(self.served) == REPLICAS and all(
            one.valid_at(self.now) and is_trusted(one, found.bundle) for one in self.served
        )
        if self.published is not None or ready:
            self.published = found.bundle
            self.changes.append((self.now, found.bundle))
            self.record_recovery(found)

    def record_recovery(self, found: Authority) -> None:
        """Record when calls that a lost CA broke must work again."""
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
        self.run_controller(writes=6)
        self.pass_time(61)
        self.check()

    def replace_ca(self) -> None:
        """Replace the CA, and wait until the old one is unused."""
        self.ca = None
        self.settle()

    def settle(self) -> None:
        """Run everything until nothing changes."""
        for _ in range(8):
            self.run_controller(writes=6)
            for number in range(REPLICAS):
                self.mount(number)
            self.run_controller(writes=6)
            self.pass_time(30)
            self.check()


EVENTS: Mapping[str, Any] = {
    "controller": lambda world: world.run_controller(writes=6),
    "controller killed after a write": lambda world: world.run_controller(
        writes=1, publishes=False
    ),
    "controller that gets no replies": lambda world: world.run_controller(writes=6, unknown=True),
    "new leader": lambda world: (world.since.clear(), world.run_controller(writes=6)),
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
@example([("CA replaced", 0.0), ("CA restored", 0.0), ("controller that gets no replies", 61.0)])
@example([("CA replaced", 0.0), ("both restored", 0.0)])
def test_api_servers_always_trust_served_leaves(events: list[tuple[str, float]]) -> None:
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
    assert world.issued <= issued + 1  # one renewal may be due, but not two


def test_excess_planted_cas_are_dropped() -> None:
    """The API server would reject a Secret or webhook configuration with all of them."""
    bundles = [authority.new_ca(str(number), now=NOW).certificate for number in range(99)]
    large = authority.new_ca("large", now=NOW, dns_names=["x" * 60] * 99)
    found = Authority.read(
        run_next_step(Observation(NOW, None, None, [large.certificate, *bundles]))
    )
    assert found is not None
    assert len(found.bundle) < 1 << 15
    assert Authority.read({"tls.crt": large.certificate, "tls.key": large.key}) is None
