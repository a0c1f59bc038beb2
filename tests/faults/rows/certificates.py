"""Certificates are spoilt, lost, and renewed, under load."""

import base64
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psutil

from holdfast.certs import authority, rotation
from tests.e2e import certificate_secrets, installed
from tests.e2e.certificate_secrets import CA, LEAF, corrupt, delete, mismatch, usable
from tests.e2e.namespace import Object
from tests.faults.scenario import Scenario, Table

FAULTS = Table(8)

X509 = ("x509", "certificate", "tls:")
"""Messages of creations that failed because of a certificate."""
OVERLAP = rotation.PROPAGATION.total_seconds()
"""Seconds that API servers are given to learn of a new CA before it signs anything."""
SIGNED = OVERLAP + 2 * installed.REPAIR
"""Seconds until a new CA has signed: it is seen, API servers learn of it, and that is seen."""
ROUNDED = 1.0
"""The times in certificates are whole seconds."""
SERVED = 150.0
"""Seconds until a mounted Secret has reached every replica: of a kubelet, that is; here moments."""
YEAR = authority.CA_LIFETIME
AGED = YEAR / 5
"""Time left of a CA that is to be replaced: less than a third, more than the life of a leaf."""


def fingerprint(scenario: Scenario) -> str:
    """Return the fingerprint of the Secret's certificate; empty while it has none."""
    try:
        data = base64.b64decode(scenario.testbed.installed.secret(LEAF)["tls.crt"])
        return authority.read(data).fingerprint
    except (KeyError, ValueError):
        return ""


def replaced(scenario: Scenario, before: str, seconds: float = installed.REPAIR) -> float:
    """Wait until the Secret holds another, usable pair, and return how many seconds it took."""
    return scenario.eventually(
        lambda: usable(scenario.testbed.installed) and fingerprint(scenario) != before, seconds
    )


@FAULTS.row(
    "certificate-corrupt", broken="never-repairs", caught_by="seconds until it was right: delete"
)
def spoilt(scenario: Scenario) -> None:
    """Delete the leaf, give it another's key, and make it no PEM."""
    made = scenario.testbed.installed
    spoilers: list[Callable[[installed.Installation], None]] = [delete, mismatch, corrupt]
    for spoil in spoilers[:1] if scenario.short else spoilers:
        before = fingerprint(scenario)
        spoil(made)
        seconds = replaced(scenario, before)
        scenario.check(f"seconds until it was right: {spoil.__name__}", seconds, installed.REPAIR)
        served(scenario)
        scenario.go_on(5, 3)
    by_certificates(scenario)


@FAULTS.row(
    "ca-bundle-emptied",
    broken="never-repairs",
    caught_by="seconds until all were right",
    refuses=True,
)
def blanked(scenario: Scenario) -> None:
    """Blank the caBundle of every webhook of both configurations."""
    made = scenario.testbed.installed
    before = made.webhooks()
    left = blank(made)
    scenario.figures["webhooks without a CA bundle"] = len(before) - left
    scenario.check("webhooks that were not blanked", left)
    seconds = scenario.eventually(lambda: made.webhooks() == before, installed.REPAIR)
    scenario.check("seconds until all were right", seconds, installed.REPAIR)


def blank(made: installed.Installation) -> int:
    """Blank the caBundle of every webhook, and count those that have one all the same."""
    seen = replace_in_all(made, "clientConfig/caBundle", "")
    return sum(bool(one["clientConfig"].get("caBundle")) for one in seen)


def replace_in_all(made: installed.Installation, path: str, value: str) -> list[Object]:
    """Replace a field of every webhook by hand, and give what has become of them."""
    seen: list[Object] = []
    for kind in installed.KINDS:
        patch = [
            {"op": "replace", "path": f"/webhooks/{index}/{path}", "value": value}
            for index in range(len(made.get(kind, "holdfast").get("webhooks") or ()))
        ]
        options = ("holdfast", "--type=json", "-o", "json", "-p", json.dumps(patch))
        seen += json.loads(made.kubectl("patch", kind, *options)).get("webhooks") or ()
    return seen


@FAULTS.row(
    "ca-lost", minutes=2.5, broken="never-repairs", caught_by="seconds until there was another"
)
def lost_ca(scenario: Scenario) -> None:
    """Delete the CA: another takes its place, with overlap."""
    made = scenario.testbed.installed
    before, leaf = made.secret(CA).get("tls.crt"), fingerprint(scenario)
    made.kubectl("delete", "secret", CA)
    seconds = scenario.eventually(
        lambda: made.secret(CA).get("tls.crt", before) != before, installed.REPAIR
    )
    scenario.check("seconds until there was another", seconds, installed.REPAIR)
    signed(
        scenario, leaf, time.time()
    )  # else the next row would meet a CA that may sign nothing yet
    scenario.go_on(20, 5)
    by_certificates(scenario)


def signed(scenario: Scenario, before: str, since: float) -> None:
    """Wait until another CA, made or introduced `since`, has signed a leaf: not too soon.

    Then until every replica serves it.
    """
    made = scenario.testbed.installed
    seconds = replaced(scenario, before, SIGNED)
    scenario.check("seconds until it had signed", seconds, SIGNED)
    issued = issue_time(made)
    scenario.check("seconds by which a CA signed too soon", OVERLAP - (issued - since), ROUNDED)
    served(scenario)


def served(scenario: Scenario) -> None:
    """Wait until every replica serves the pair that the Secret holds."""
    wanted = fingerprint(scenario)
    seconds = scenario.eventually(lambda: all_serve(scenario, wanted), SERVED)
    scenario.check("seconds until every replica served it", seconds, SERVED)


def issue_time(made: installed.Installation) -> float:
    """Return when the leaf was issued: seconds since 1970."""
    return (certificate_secrets.leaf(made).not_before + authority.BACKDATED).timestamp()


def all_serve(scenario: Scenario, wanted: str) -> bool:
    """Return whether every replica serves the certificate of that fingerprint."""
    try:
        return all(
            certificate_secrets.shown(one.address) == wanted for one in scenario.testbed.replicas
        )
    except OSError:
        return False


def believed(scenario: Scenario) -> None:
    """Wait until every controller has run for so long that age alone is a reason to it.

    Before, it does not trust the API server's time to have been set right.
    """
    if scenario.short:
        return  # its CA is put there, and does not grow old
    pids = [each.pid for each in scenario.testbed.controllers]
    began = max(psutil.Process(pid).create_time() for pid in pids)
    settled = began + rotation.SETTLING.total_seconds() + installed.REPAIR
    time.sleep(max(0.0, settled - time.time()))


@FAULTS.row(
    "ca-rotated",
    prepare=believed,
    minutes=14.5,
    broken="never-repairs",
    caught_by="missing rotations",
)
def rotated(scenario: Scenario) -> None:
    """Rotate the CA six times, each time in the order of a rotation.

    The test adds a CA with a fifth of its life left alongside the signing CA, as a leader does that
    is killed then. This CA is promoted, and later replaced by a CA that the leader makes.
    """
    made, signers = scenario.testbed.installed, {signer(scenario)}
    turns = 1 if scenario.short else 3
    for _ in range(turns):
        before, since = fingerprint(scenario), time.time()
        introduce(made, YEAR if scenario.short else AGED)
        signed(scenario, before, since)
        signers.add(signer(scenario))
        if not scenario.short:
            before = fingerprint(scenario)
            signed(scenario, before, issue_time(made))
            signers.add(signer(scenario))
    rotations = len(signers) - 1
    scenario.check("missing rotations", turns * (1 if scenario.short else 2) - rotations)
    scenario.figures["rotations"] = scenario.figures.get("rotations", 0) + rotations
    by_certificates(scenario)


def introduce(made: installed.Installation, left: timedelta) -> None:
    """Put a CA that has so much of its year left into the place of the next one."""
    now = datetime.now(UTC)
    pair = authority.new_ca("holdfast CA, the next", now=now - YEAR + left, lifetime=YEAR)
    data = {rotation.NEXT_CERTIFICATE: pair.certificate, rotation.NEXT_KEY: pair.key}
    patch = {"data": {name: base64.b64encode(value).decode() for name, value in data.items()}}
    made.kubectl("patch", "secret", CA, "--type=merge", "-p", json.dumps(patch))


def signer(scenario: Scenario) -> str:
    """Name the CA that signs."""
    data = base64.b64decode(scenario.testbed.installed.secret(CA)["tls.crt"])
    return authority.read(data).fingerprint


@FAULTS.row(
    "certificates-renewed",
    minutes=2.5,
    broken="never-repairs",
    caught_by="seconds until there was another",
)
def renewed(scenario: Scenario) -> None:
    """Delete the leaf again and again, so that another is issued and served each time."""
    for _ in range(2 if scenario.short else 10):
        renew(scenario)
        scenario.go_on(5, 2)
    by_certificates(scenario)


def renew(scenario: Scenario) -> None:
    """Delete the leaf, and wait until another is issued and served."""
    before = fingerprint(scenario)
    delete(scenario.testbed.installed)
    seconds = replaced(scenario, before)
    scenario.check("seconds until there was another", seconds, installed.REPAIR)
    served(scenario)


def by_certificates(scenario: Scenario) -> None:
    """Check that no creation failed for a certificate's sake since the row began."""
    said = [one.said for one in scenario.load.failures if one.at >= scenario.began]
    scenario.check("x509 errors", sum(any(word in one for word in X509) for one in said))
