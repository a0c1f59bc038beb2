"""When to make which certificate, and when to trust which CA. Pure: no I/O, no clock.

A new CA is introduced, and no pod creation fails for it:

1. `next` joins the signing CA; the bundle that API servers trust holds both;
2. every API server has had the time to see that bundle;
3. `next` becomes the signing CA; the old one signs no more, but stays in the bundle;
4. a leaf of the new CA replaces that of the old one, and reaches the replicas;
5. the old CA leaves the bundle when whatever it signed has expired.

All of it is kept in two Secrets, so that whoever leads next carries on from there. What is lost or
spoilt is made anew, and the CAs that the API servers trust by then stay trusted.

Nothing is made anew for its age alone by a time that has been set a moment ago: of several API
servers one may answer with another year, until its machine has asked for the time.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from certs import authority
from certs.authority import Certificate, KeyPair
from certs.stored import (
    CA_CERTIFICATE,
    CERTIFICATE,
    KEY,
    NEXT_CERTIFICATE,
    RETIRED,
    RETIRED_UNTIL,
    Authority,
    Data,
    cas_in,
    read_time,
)

RENEW_AT = 1 / 3
"""The share of its lifetime that a certificate has left when it is renewed."""

PROPAGATION = timedelta(seconds=60)
"""Bundles reach an API server by a watch, in moments; this is for one that is hard pressed."""

SETTLING = timedelta(minutes=10)
"""How long a clock that was set has to have gone on before certificates are made by it alone."""
SETTLING_SHARE = 1 / 100
"""The share of a leaf's lifetime that this is at most."""

NAME_LIMIT = 64
"""Characters of a common name; nobody decides by it, and the DNS names have more room."""

GROWS_OLD = "it grows old"
"""The defect of a leaf that is one by the time alone."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the certificates are to be like."""

    names: tuple[str, ...]
    """The DNS names of the leaf, the fullest last."""
    ca_lifetime: timedelta = authority.CA_LIFETIME
    leaf_lifetime: timedelta = authority.LEAF_LIFETIME
    propagation: timedelta = PROPAGATION
    """How long API servers may take to see a bundle that has been stored."""

    @property
    def settling(self) -> timedelta:
        """How long the time has to have been known before it alone is a reason."""
        return min(SETTLING, self.leaf_lifetime * SETTLING_SHARE)


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is; None stands for a Secret that does not exist."""

    now: datetime
    """The API server's time."""
    authority: Data | None
    leaf: Data | None
    bundles: Sequence[bytes] = ()
    """The caBundle of each webhook that is registered, PEM."""
    trusted: Mapping[str, timedelta] = field(default_factory=dict)
    """For how long a CA, by its fingerprint, has been in each of them."""
    served: Sequence[Certificate] = ()
    """What the replicas serve."""
    unknown: bool = False
    """Whether a replica that is called did not tell what it serves."""
    known_for: timedelta = timedelta.max
    """For how long `now` has been known without having been set."""

    def knows_time(self, plan: Plan) -> bool:
        """Tell whether the time alone is a reason to do something."""
        return self.known_for >= plan.settling


class Action(enum.Enum):
    """What can be done next; each is one write of one Secret."""

    NEW_AUTHORITY = "make a CA"
    INTRODUCE = "introduce the next CA"
    PROMOTE = "sign with the next CA"
    FORGET = "trust the retired CA no longer"
    ISSUE = "issue a certificate"


class Step(NamedTuple):
    """What to do next, and why."""

    action: Action
    reason: str


def next_step(seen: Seen, plan: Plan) -> Step | None:
    """Tell what is to be done next; None when nothing is, or it has to wait.

    The API servers need time to see a CA; and a clock that has just been set, to be believed.
    """
    known = Authority.read(seen.authority)
    if known is None:
        what = "there is none" if seen.authority is None else "it is spoilt"
        return Step(Action.NEW_AUTHORITY, what)
    knows_time = seen.knows_time(plan)
    if not authority.read(known.signer.certificate).valid_at(seen.now):
        step = Step(Action.NEW_AUTHORITY, "it has expired, or has not begun")
        return step if knows_time else None
    defect = leaf_defect(seen.leaf, known, seen.now, plan)
    if defect is not None and (defect != GROWS_OLD or knows_time):
        return Step(Action.ISSUE, defect) if _may_sign(known, seen, plan) else None
    return _next_of_cas(known, seen, plan)


def _next_of_cas(known: Authority, seen: Seen, plan: Plan) -> Step | None:
    """Tell what is to be done about CAs where all is well with the leaf."""
    knows_time = seen.knows_time(plan)
    upcoming = authority.read(known.next.certificate) if known.next is not None else None
    if upcoming is not None and (upcoming.valid_at(seen.now) or not knows_time):
        if upcoming.valid_at(seen.now) and _has_spread(upcoming, seen, plan):
            return Step(Action.PROMOTE, "every API server knows it")
    elif knows_time and _grows_old(known.signer, seen.now):
        return Step(Action.INTRODUCE, "the CA that signs grows old")
    if knows_time and known.retired and _has_come(known.retired_until, seen.now):
        return Step(Action.FORGET, "whatever it signed has expired")
    return None


def _grows_old(signer: KeyPair, now: datetime) -> bool:
    return authority.read(signer.certificate).remaining_share(now) <= RENEW_AT


def _has_come(time: datetime | None, now: datetime) -> bool:
    return time is not None and time <= now


def carry_out(step: Step, seen: Seen, plan: Plan) -> Data:
    """Make the content of the Secret that a step writes: the leaf's for ISSUE, else the CA's."""
    known = Authority.read(seen.authority)
    if step.action is Action.NEW_AUTHORITY or known is None:
        return _new_authority(seen, plan).data()
    if step.action is Action.ISSUE:
        return _leaf(known.signer, seen.now, plan)
    if step.action is Action.INTRODUCE:
        return replace(known, next=_new_ca(seen.now, plan)).data()
    if step.action is Action.PROMOTE and known.next is not None:
        retired = (authority.read(known.signer.certificate), *known.retired)
        until = _last_expiry(seen, plan, known.retired_until)
        return Authority(known.next, None, retired, until).data()
    return Authority(known.signer, known.next, (), None).data()


def leaf_defect(data: Data | None, known: Authority, now: datetime, plan: Plan) -> str | None:
    """Tell why a leaf has to be issued; None when the one that there is will do."""
    if data is None:
        return "there is none"
    pair = KeyPair(data.get(CERTIFICATE, b""), data.get(KEY, b""))
    read = authority.read_all(pair.certificate)
    if not read or not authority.pair_matches(pair):
        return "the pair is spoilt: unreadable, or the key is another's"
    found, signer = read[0], authority.read(known.signer.certificate)
    beside = data.get(CA_CERTIFICATE) == known.signer.certificate
    defects = {
        "another CA signed it": not (beside and authority.signed_by(found, signer)),
        "it lacks a name of the Service": not found.dns_names.issuperset(plan.names),
        GROWS_OLD: not found.valid_at(now) or found.remaining_share(now) <= RENEW_AT,
    }
    return next((defect for defect, there in defects.items() if there), None)


def serves(certificate: Certificate, bundle: bytes, now: datetime, names: Iterable[str]) -> bool:
    """Tell whether an API server that trusts this bundle takes the certificate for these names."""
    return (
        certificate.valid_at(now)
        and certificate.dns_names.issuperset(names)
        and any(
            one.valid_at(now) and authority.signed_by(certificate, one)
            for one in authority.read_all(bundle)
        )
    )


def common(bundles: Sequence[bytes]) -> frozenset[str]:
    """Give the fingerprints of the CAs that are in each of these bundles."""
    sets = [{one.fingerprint for one in authority.read_all(bundle)} for bundle in bundles]
    return frozenset.intersection(*map(frozenset, sets)) if sets else frozenset()


def _may_sign(known: Authority, seen: Seen, plan: Plan) -> bool:
    """Tell whether a leaf of the signing CA breaks nothing, now.

    So it is when the API servers know that CA, also where a leaf of it is served already, which
    was not issued before they did; or when nothing that they trust is served that could break.
    """
    signer = authority.read(known.signer.certificate)
    if _has_spread(signer, seen, plan):
        return True
    if not seen.bundles and seen.leaf is None:
        return True
    serving = [one for one in seen.served if _may_be_taken(one, known, seen, plan)]
    if any(authority.signed_by(one, signer) for one in serving):
        return True
    return not serving and not seen.unknown


def _may_be_taken(certificate: Certificate, known: Authority, seen: Seen, plan: Plan) -> bool:
    """Tell whether API servers take a certificate, or would by a time that may be the right one."""
    if seen.knows_time(plan):
        return serves(certificate, known.bundle, seen.now, ())
    return any(authority.signed_by(certificate, one) for one in known.cas)


def _has_spread(ca: Certificate, seen: Seen, plan: Plan) -> bool:
    since = seen.trusted.get(ca.fingerprint)
    return since is not None and since >= plan.propagation


def _new_authority(seen: Seen, plan: Plan) -> Authority:
    """Make a CA, and retire all that may have signed what is served."""
    lost, leaf = seen.authority or {}, seen.leaf or {}
    texts = [lost.get(name, b"") for name in (CERTIFICATE, NEXT_CERTIFICATE, RETIRED)]
    retired = cas_in([*texts, leaf.get(CA_CERTIFICATE, b""), *seen.bundles])
    until = _last_expiry(seen, plan, read_time(lost.get(RETIRED_UNTIL, b"")))
    return Authority(_new_ca(seen.now, plan), None, retired, until)


def _new_ca(now: datetime, plan: Plan) -> KeyPair:
    name = f"holdfast CA for {plan.names[-1]}"[:NAME_LIMIT]
    return authority.new_ca(name, now=now, lifetime=plan.ca_lifetime)


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


def _last_expiry(seen: Seen, plan: Plan, known: datetime | None) -> datetime:
    """Tell by when every leaf that has been issued so far, and may be right now, has expired."""
    times = [seen.now + plan.leaf_lifetime, *([known] if known else [])]
    leaf = seen.leaf or {}
    times += [one.not_after for one in authority.read_all(leaf.get(CERTIFICATE, b""))[:1]]
    times += [one.not_after for one in seen.served]
    return max(times)
