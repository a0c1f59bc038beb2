"""Decide when to issue certificates and rotate CAs. Pure: no I/O, no clock.

A CA is rotated without failing pod creations:

1. `next` is added; the registered bundle contains both CAs;
2. all API servers get time to see that bundle;
3. `next` becomes the signing CA; the old one stays in the bundle;
4. a leaf of the new CA replaces the old leaf and reaches the replicas;
5. the old CA is removed from the bundle once no replica serves a leaf that it signed, or all of
   its leaves have expired.

Therefore, a CA that an attacker plants in a Secret or a bundle leaves the bundle minutes later. So
does a CA that is replaced because its key was stolen.

The state is in two Secrets, so another leader can continue. Lost or invalid Secrets are recreated,
and CAs in the registered bundles stay trusted. If a Secret is restored from a backup, the
registered CAs that signed the replicas' certificates stay trusted.

Age alone is not a reason to renew while the clock has only just been set: one of several API
servers may report a wrong year until its machine has synchronized its clock.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Self

from holdfast.certs import authority
from holdfast.certs.authority import Certificate, KeyPair

CERTIFICATE, KEY = "tls.crt", "tls.key"
"""In both Secrets: the signing CA, or the leaf, and its key."""
CA_CERTIFICATE: Final = "ca.crt"
"""In the leaf's Secret: the CA that signed it."""
NEXT_CERTIFICATE, NEXT_KEY = "next.crt", "next.key"
"""In the CA's Secret: the next CA."""
RETIRED, RETIRED_UNTIL = "retired.crt", "retired-until"
"""In the CA's Secret: retired CAs, and when the last of their leaves expires."""

Data = Mapping[str, bytes]
"""The data of a Secret."""

RENEW_AT = 1 / 3
"""Certificates are renewed when this share of their lifetime is left."""

PROPAGATION = timedelta(seconds=60)
"""API servers watch bundles and see changes in moments; this is a margin for overloaded ones."""

SETTLING = timedelta(minutes=10)
"""How long the clock must run without being set before the time alone is a reason to renew."""
SETTLING_SHARE = 1 / 100
"""Upper limit of SETTLING, as a share of the leaf's lifetime."""

LARGEST_CA, MOST_RETIRED = 4 << 10, 16
"""Maximum bytes of a CA (PEM), and maximum retired CAs. Anything beyond was planted, and is
dropped: the API server rejects a Secret or a webhook configuration of more than 1 MiB."""

NAME_LIMIT = 64
"""The maximum length of a common name; only the DNS names matter."""

GROWS_OLD = "it is due for renewal"
"""The only leaf defect that depends on time."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The contents of the CA's Secret."""

    signer: KeyPair
    next: KeyPair | None
    retired: tuple[Certificate, ...]
    retired_until: datetime | None

    @classmethod
    def read(cls, data: Data | None) -> Self | None:
        """Parse the Secret, regardless of the time. Returns None if no CA can sign."""
        if data is None:
            return None
        signer = _ca(data.get(CERTIFICATE, b""), data.get(KEY, b""))
        if signer is None:
            return None
        next_ca = _ca(data.get(NEXT_CERTIFICATE, b""), data.get(NEXT_KEY, b""))
        retired = _cas_in([data.get(RETIRED, b"")])
        return cls(signer, next_ca, retired, _read_time(data.get(RETIRED_UNTIL, b"")))

    @property
    def cas(self) -> tuple[Certificate, ...]:
        """All trusted CAs, without duplicates."""
        pairs = [pair for pair in (self.signer, self.next) if pair is not None]
        cas = [*(authority.read(pair.certificate) for pair in pairs), *self.retired]
        return tuple({ca.fingerprint: ca for ca in cas}.values())

    @property
    def bundle(self) -> bytes:
        """The bundle (PEM) for API servers."""
        return b"".join(ca.pem for ca in self.cas)

    def data(self) -> Data:
        """Return the data of the CA's Secret."""
        data = {CERTIFICATE: self.signer.certificate, KEY: self.signer.key}
        if self.next is not None:
            data |= {NEXT_CERTIFICATE: self.next.certificate, NEXT_KEY: self.next.key}
        if self.retired:
            data[RETIRED] = b"".join(ca.pem for ca in self.retired)
        if self.retired and self.retired_until is not None:
            data[RETIRED_UNTIL] = self.retired_until.isoformat().encode()
        return data


@dataclass(frozen=True, slots=True)
class Plan:
    """Names and lifetimes of the certificates."""

    names: tuple[str, ...]
    """The leaf's DNS names, longest last."""
    ca_lifetime: timedelta = authority.CA_LIFETIME
    leaf_lifetime: timedelta = authority.LEAF_LIFETIME
    propagation: timedelta = PROPAGATION
    """The time for API servers to see a new bundle."""

    @property
    def settling(self) -> timedelta:
        """How long the clock must run without being set before time alone is a reason to renew."""
        return min(SETTLING, self.leaf_lifetime * SETTLING_SHARE)


@dataclass(frozen=True, slots=True)
class Observation:
    """The current state; a Secret that does not exist is None."""

    now: datetime
    """The API server's time."""
    authority: Data | None
    leaf: Data | None
    bundles: Sequence[bytes] = ()
    """The caBundle (PEM) of each registered webhook."""
    trusted: Mapping[str, timedelta] = field(default_factory=dict)
    """How long each CA, by fingerprint, has been in all bundles."""
    served: Sequence[Certificate] = ()
    """The serving certificates of the replicas."""
    unknown: bool = False
    """Whether the certificate of some replica is unknown."""
    known_for: timedelta = timedelta.max
    """How long the clock has run without being set."""

    def knows_time(self, plan: Plan) -> bool:
        """Return whether the time alone is a reason to renew."""
        return self.known_for >= plan.settling


class Action(enum.Enum):
    """The kinds of steps; each writes one Secret."""

    NEW_AUTHORITY = "create a CA"
    RETAIN = "keep a registered CA"
    INTRODUCE = "add the next CA"
    PROMOTE = "sign with the next CA"
    FORGET = "remove the retired CA"
    ISSUE = "issue a certificate"


class RotationStep(NamedTuple):
    """The next step and its reason."""

    action: Action
    reason: str


def next_step(observation: Observation, plan: Plan) -> RotationStep | None:
    """Return the next step, or None if none is due yet.

    API servers need time to see a CA, and a clock that was just set is not trusted.
    """
    ca_secret = Authority.read(observation.authority)
    if ca_secret is None:
        reason = "there is none" if observation.authority is None else "it is invalid"
        return RotationStep(Action.NEW_AUTHORITY, reason)
    if _retained(ca_secret, observation, plan):
        return RotationStep(Action.RETAIN, "the Secret lacks it, and replicas may need it")
    knows_time = observation.knows_time(plan)
    if not authority.read(ca_secret.signer.certificate).valid_at(observation.now):
        step = RotationStep(Action.NEW_AUTHORITY, "it is not valid at this time")
        return step if knows_time else None
    defect = leaf_defect(observation.leaf, ca_secret, observation.now, plan)
    if defect is not None and (defect != GROWS_OLD or knows_time):
        return (
            RotationStep(Action.ISSUE, defect) if _may_sign(ca_secret, observation, plan) else None
        )
    return _next_of_cas(ca_secret, observation, plan)


def _next_of_cas(ca_secret: Authority, observation: Observation, plan: Plan) -> RotationStep | None:
    """Return the next step for the CAs, given a good leaf."""
    knows_time, signer = observation.knows_time(plan), authority.read(ca_secret.signer.certificate)
    next_ca = authority.read(ca_secret.next.certificate) if ca_secret.next is not None else None
    if next_ca is not None and (next_ca.valid_at(observation.now) or not knows_time):
        if next_ca.valid_at(observation.now) and _has_spread(next_ca, observation, plan):
            return RotationStep(Action.PROMOTE, "every API server trusts it")
    elif knows_time and signer.remaining_share(observation.now) <= RENEW_AT:
        return RotationStep(Action.INTRODUCE, "the signing CA is due for renewal")
    retired_until = ca_secret.retired_until
    if not (knows_time and ca_secret.retired):
        return None
    if retired_until is not None and retired_until <= observation.now:
        return RotationStep(Action.FORGET, "everything it signed has expired")
    if _is_replaced(ca_secret, observation, plan):
        return RotationStep(Action.FORGET, "no replica serves what it signed")
    return None


def _is_replaced(ca_secret: Authority, observation: Observation, plan: Plan) -> bool:
    """Return whether all replicas serve a leaf of the signing CA, and new replicas will, too.

    A new replica may get a slightly older Secret from the kubelet's cache. Servers that are not
    Holdfast's do not count, whose certificate another CA signed.
    """
    signer = authority.read(ca_secret.signer.certificate)
    served = _signed_by_any(observation.served, ca_secret.cas)
    leaves = authority.read_all((observation.leaf or {}).get(CERTIFICATE, b""))[:1]
    return (
        bool(served)
        and not observation.unknown
        and all(authority.signed_by(leaf, signer) for leaf in (*leaves, *served))
        and all(observation.now - leaf.issued_at >= plan.settling for leaf in leaves)
    )


def carry_out(step: RotationStep, observation: Observation, plan: Plan) -> Data:
    """Return the data of the Secret that a step writes: the leaf's for ISSUE, else the CA's."""
    ca_secret = Authority.read(observation.authority)
    if step.action is Action.NEW_AUTHORITY or ca_secret is None:
        return _new_authority(observation, plan).data()
    if step.action is Action.ISSUE:
        return _leaf(ca_secret.signer, observation.now, plan)
    if step.action is Action.RETAIN:
        retired = (*ca_secret.retired, *_retained(ca_secret, observation, plan))
        retired_until = _last_expiry(observation, plan, retired, ca_secret.retired_until)
        return replace(ca_secret, retired=retired, retired_until=retired_until).data()
    if step.action is Action.INTRODUCE:
        return replace(ca_secret, next=_new_ca(observation.now, plan)).data()
    if step.action is Action.PROMOTE and ca_secret.next is not None:
        retired = (authority.read(ca_secret.signer.certificate), *ca_secret.retired)
        retired_until = _last_expiry(observation, plan, retired, ca_secret.retired_until)
        return Authority(ca_secret.next, None, retired, retired_until).data()
    return Authority(ca_secret.signer, ca_secret.next, (), None).data()


def leaf_defect(data: Data | None, ca_secret: Authority, now: datetime, plan: Plan) -> str | None:
    """Return why a new leaf is needed, or None."""
    if data is None:
        return "there is none"
    pair = KeyPair(data.get(CERTIFICATE, b""), data.get(KEY, b""))
    certificates = authority.read_all(pair.certificate)
    if not certificates or not authority.pair_matches(pair):
        return "the certificate and key are invalid or do not match"
    leaf, signer = certificates[0], authority.read(ca_secret.signer.certificate)
    same_ca = data.get(CA_CERTIFICATE) == ca_secret.signer.certificate
    defects = {
        "another CA signed it": not (same_ca and authority.signed_by(leaf, signer)),
        "it lacks a name of the Service": not leaf.dns_names.issuperset(plan.names),
        GROWS_OLD: not leaf.valid_at(now) or leaf.remaining_share(now) <= RENEW_AT,
    }
    return next((defect for defect, applies in defects.items() if applies), None)


def serves(certificate: Certificate, bundle: bytes, now: datetime, names: Iterable[str]) -> bool:
    """Return whether an API server with this bundle accepts the certificate for these names."""
    return (
        certificate.valid_at(now)
        and certificate.dns_names.issuperset(names)
        and any(
            ca.valid_at(now) and authority.signed_by(certificate, ca)
            for ca in authority.read_all(bundle)
        )
    )


def common(bundles: Sequence[bytes]) -> frozenset[str]:
    """Return the fingerprints of the CAs that are in all bundles."""
    sets = [{ca.fingerprint for ca in authority.read_all(bundle)} for bundle in bundles]
    return frozenset.intersection(*map(frozenset, sets)) if sets else frozenset()


def _may_sign(ca_secret: Authority, observation: Observation, plan: Plan) -> bool:
    """Return whether API servers trust leaves of the signing CA, or none of the served leaves."""
    signer = authority.read(ca_secret.signer.certificate)
    if _has_spread(signer, observation, plan):
        return True
    if not observation.bundles and observation.leaf is None:
        return True
    leaves = [
        leaf for leaf in observation.served if _may_be_taken(leaf, ca_secret.cas, observation, plan)
    ]
    if any(authority.signed_by(leaf, signer) for leaf in leaves):
        return True
    return not leaves and not observation.unknown


def _may_be_taken(
    certificate: Certificate, cas: Sequence[Certificate], observation: Observation, plan: Plan
) -> bool:
    """Return whether API servers with these CAs may accept a certificate.

    Validity periods count only once the time is known.
    """
    if observation.knows_time(plan):
        return serves(certificate, b"".join(ca.pem for ca in cas), observation.now, ())
    return any(authority.signed_by(certificate, ca) for ca in cas)


def _retained(ca_secret: Authority, observation: Observation, plan: Plan) -> Sequence[Certificate]:
    """Return registered CAs that a restored Secret lacks, but whose leaves replicas may serve."""
    fingerprints = {ca.fingerprint for ca in ca_secret.cas}
    missing = [ca for ca in _cas_in(observation.bundles) if ca.fingerprint not in fingerprints]
    needed = [
        ca
        for ca in missing
        if observation.unknown
        or any(_may_be_taken(leaf, [ca], observation, plan) for leaf in observation.served)
    ]
    return needed[: MOST_RETIRED - len(ca_secret.retired)]


def _has_spread(ca: Certificate, observation: Observation, plan: Plan) -> bool:
    duration = observation.trusted.get(ca.fingerprint)
    return duration is not None and duration >= plan.propagation


def _new_authority(observation: Observation, plan: Plan) -> Authority:
    """Create a CA, and retire all CAs that may have signed a serving certificate."""
    ca_data, leaf = observation.authority or {}, observation.leaf or {}
    texts = [ca_data.get(name, b"") for name in (CERTIFICATE, NEXT_CERTIFICATE, RETIRED)]
    retired = _cas_in([*texts, leaf.get(CA_CERTIFICATE, b""), *observation.bundles])
    expiry = _read_time(ca_data.get(RETIRED_UNTIL, b""))
    retired_until = _last_expiry(observation, plan, retired, expiry)
    return Authority(_new_ca(observation.now, plan), None, retired, retired_until)


def _new_ca(now: datetime, plan: Plan) -> KeyPair:
    name = f"holdfast CA for {plan.names[-1]}"[:NAME_LIMIT]
    return authority.new_ca(name, now=now, lifetime=plan.ca_lifetime, dns_names=plan.names)


def _leaf(signer: KeyPair, now: datetime, plan: Plan) -> Data:
    lifetime = min(plan.leaf_lifetime, authority.not_after(signer.certificate) - now)
    pair = authority.issue(
        signer,
        common_name=plan.names[-1][:NAME_LIMIT],
        now=now,
        lifetime=lifetime,
        dns_names=plan.names,
    )
    return {CERTIFICATE: pair.certificate, KEY: pair.key, CA_CERTIFICATE: signer.certificate}


def _last_expiry(
    observation: Observation, plan: Plan, cas: Sequence[Certificate], expiry: datetime | None
) -> datetime:
    """Return the time at which all leaves that these CAs issued so far have expired."""
    times = [observation.now + plan.leaf_lifetime, *([expiry] if expiry else [])]
    leaf = observation.leaf or {}
    times += [
        certificate.not_after for certificate in authority.read_all(leaf.get(CERTIFICATE, b""))[:1]
    ]
    times += [certificate.not_after for certificate in _signed_by_any(observation.served, cas)]
    return max(times)


def _signed_by_any(
    certificates: Iterable[Certificate], cas: Sequence[Certificate]
) -> Sequence[Certificate]:
    return [
        certificate
        for certificate in certificates
        if any(authority.signed_by(certificate, ca) for ca in cas)
    ]


def _ca(certificate: bytes, key: bytes) -> KeyPair | None:
    pair = KeyPair(certificate, key)
    return pair if len(certificate) <= LARGEST_CA and authority.can_sign(pair) else None


def _cas_in(texts: Iterable[bytes]) -> tuple[Certificate, ...]:
    certificates = [certificate for text in texts for certificate in authority.read_all(text)]
    cas = {ca.fingerprint: ca for ca in certificates if ca.is_ca and len(ca.pem) <= LARGEST_CA}
    return tuple(cas.values())[:MOST_RETIRED]


def _read_time(text: bytes) -> datetime | None:
    try:
        time = datetime.fromisoformat(text.decode())
    except (ValueError, UnicodeDecodeError):
        return None
    return time if time.tzinfo is not None else None
