"""Certificates are corrupted, lost, and renewed under load."""

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
"""Seconds in which API servers learn of a new CA, before it signs anything."""
SIGN_SECONDS = OVERLAP + 2 * installed.REPAIR
"""Seconds until a new CA has signed: the leader reads it, API servers learn of it, and it signs."""
ROUNDING = 1.0
"""Times in certificates are whole seconds."""
SERVE_SECONDS = 150.0
"""Seconds until a kubelet has updated a mounted Secret in every replica; here it is much faster."""
YEAR = authority.CA_LIFETIME
REMAINING = YEAR / 5
"""Time left of a CA that is to be replaced: less than a third, more than the lifetime of a leaf."""


def fingerprint(scenario: Scenario) -> str:
    """Return the fingerprint of the certificate in the Secret; empty if there is none."""
    try:
        data = base64.b64decode(scenario.testbed.installed.secret(LEAF)["tls.crt"])
        return authority.read(data).fingerprint
    except (KeyError, ValueError):
        return ""


def await_new_leaf(scenario: Scenario, before: str, seconds: float = installed.REPAIR) -> float:
    """Wait until the Secret has a new, usable leaf, and return how many seconds that took."""
    return scenario.eventually(
        lambda: usable(scenario.testbed.installed) and fingerprint(scenario) != before, seconds
    )


@FAULTS.row(
    "certificate-corrupt",
    broken="never-repairs",
    caught_by="seconds until the leaf was repaired: delete",
)
def corrupted(scenario: Scenario) -> None:
    """Delete the leaf, replace its key with another, and write invalid PEM."""
    made = scenario.testbed.installed
    changes: list[Callable[[installed.Installation], None]] = [delete, mismatch, corrupt]
    for change in changes[:1] if scenario.short else changes:
        before = fingerprint(scenario)
        change(made)
        seconds = await_new_leaf(scenario, before)
        scenario.check(
            f"seconds until the leaf was repaired: {change.__name__}", seconds, installed.REPAIR
        )
        await_served(scenario)
        scenario.wait(5, 3)
    check_no_x509_errors(scenario)


@FAULTS.row(
    "ca-bundle-emptied",
    broken="never-repairs",
    caught_by="seconds until all CA bundles were restored",
    rejects=True,
)
def blanked(scenario: Scenario) -> None:
    """Blank the caBundle of every webhook of both configurations."""
    made = scenario.testbed.installed
    before = made.webhooks()
    left = blank(made)
    scenario.figures["webhooks without a CA bundle"] = len(before) - left
    scenario.check("webhooks not blanked", left)
    seconds = scenario.eventually(lambda: made.webhooks() == before, installed.REPAIR)
    scenario.check("seconds until all CA bundles were restored", seconds, installed.REPAIR)


def blank(made: installed.Installation) -> int:
    """Blank the caBundle of every webhook, and count those that still have one."""
    seen = replace_in_all(made, "clientConfig/caBundle", "")
    return sum(bool(one["clientConfig"].get("caBundle")) for one in seen)


def replace_in_all(made: installed.Installation, path: str, value: str) -> list[Object]:
    """Replace a field of every webhook, and return the webhooks as they are then stored."""
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
    "ca-lost", minutes=2.5, broken="never-repairs", caught_by="seconds until there was a new CA"
)
def lost_ca(scenario: Scenario) -> None:
    """Delete the CA: a new CA replaces it, with overlap."""
    made = scenario.testbed.installed
    before, leaf = made.secret(CA).get("tls.crt"), fingerprint(scenario)
    made.kubectl("delete", "secret", CA)
    seconds = scenario.eventually(
        lambda: made.secret(CA).get("tls.crt", before) != before, installed.REPAIR
    )
    scenario.check("seconds until there was a new CA", seconds, installed.REPAIR)
    # otherwise the next row would start with a CA that may not sign yet
    await_signed(scenario, leaf, time.time())
    scenario.wait(20, 5)
    check_no_x509_errors(scenario)


def await_signed(scenario: Scenario, before: str, since: float) -> None:
    """Wait until a new CA has signed a leaf, and check that it did not sign too early.

    `since` is when the CA was added. Then wait until every replica serves the leaf.
    """
    made = scenario.testbed.installed
    seconds = await_new_leaf(scenario, before, SIGN_SECONDS)
    scenario.check("seconds until the new CA signed a leaf", seconds, SIGN_SECONDS)
    issued = issue_time(made)
    scenario.check("seconds by which a CA signed too early", OVERLAP - (issued - since), ROUNDING)
    await_served(scenario)


def await_served(scenario: Scenario) -> None:
    """Wait until every replica serves the leaf in the Secret."""
    wanted = fingerprint(scenario)
    seconds = scenario.eventually(lambda: all_serve(scenario, wanted), SERVE_SECONDS)
    scenario.check("seconds until all replicas served the leaf", seconds, SERVE_SECONDS)


def issue_time(made: installed.Installation) -> float:
    """Return when the leaf was issued: seconds since 1970."""
    return (certificate_secrets.leaf(made).not_before + authority.BACKDATED).timestamp()


def all_serve(scenario: Scenario, wanted: str) -> bool:
    """Return whether every replica serves the certificate with that fingerprint."""
    try:
        return all(
            certificate_secrets.shown(one.address) == wanted for one in scenario.testbed.replicas
        )
    except OSError:
        return False


def await_trusted_clock(scenario: Scenario) -> None:
    """Wait until every controller has run long enough to rotate a CA because of its age.

    Before that, it does not trust the API server's clock.
    """
    if scenario.short:
        return  # the short form does not depend on the age of a CA
    pids = [each.pid for each in scenario.testbed.controllers]
    started = max(psutil.Process(pid).create_time() for pid in pids)
    trusted = started + rotation.SETTLING.total_seconds() + installed.REPAIR
    time.sleep(max(0.0, trusted - time.time()))


@FAULTS.row(
    "ca-rotated",
    prepare=await_trusted_clock,
    minutes=14.5,
    broken="never-repairs",
    caught_by="missing rotations",
)
def rotated(scenario: Scenario) -> None:
    """Rotate the CA six times, each time in the order of a rotation.

    The test adds a CA with a fifth of its lifetime left next to the signing CA, as if a leader had
    been killed after adding it. This CA is promoted, and then replaced by a CA of the leader.
    """
    made, signers = scenario.testbed.installed, {signer(scenario)}
    rounds = 1 if scenario.short else 3
    for _ in range(rounds):
        before, since = fingerprint(scenario), time.time()
        add_next_ca(made, YEAR if scenario.short else REMAINING)
        await_signed(scenario, before, since)
        signers.add(signer(scenario))
        if not scenario.short:
            before = fingerprint(scenario)
            await_signed(scenario, before, issue_time(made))
            signers.add(signer(scenario))
    rotations = len(signers) - 1
    scenario.check("missing rotations", rounds * (1 if scenario.short else 2) - rotations)
    scenario.figures["rotations"] = scenario.figures.get("rotations", 0) + rotations
    check_no_x509_errors(scenario)


def add_next_ca(made: installed.Installation, left: timedelta) -> None:
    """Store a CA with this lifetime left as the next CA."""
    now = datetime.now(UTC)
    pair = authority.new_ca("holdfast CA, the next", now=now - YEAR + left, lifetime=YEAR)
    data = {rotation.NEXT_CERTIFICATE: pair.certificate, rotation.NEXT_KEY: pair.key}
    patch = {"data": {name: base64.b64encode(value).decode() for name, value in data.items()}}
    made.kubectl("patch", "secret", CA, "--type=merge", "-p", json.dumps(patch))


def signer(scenario: Scenario) -> str:
    """Return the fingerprint of the signing CA."""
    data = base64.b64decode(scenario.testbed.installed.secret(CA)["tls.crt"])
    return authority.read(data).fingerprint


@FAULTS.row(
    "certificates-renewed",
    minutes=2.5,
    broken="never-repairs",
    caught_by="seconds until there was a new leaf",
)
def renewed(scenario: Scenario) -> None:
    """Delete the leaf repeatedly; each time, a new leaf is issued and served."""
    for _ in range(2 if scenario.short else 10):
        renew(scenario)
        scenario.wait(5, 2)
    check_no_x509_errors(scenario)


def renew(scenario: Scenario) -> None:
    """Delete the leaf, and wait until a new leaf is issued and served."""
    before = fingerprint(scenario)
    delete(scenario.testbed.installed)
    seconds = await_new_leaf(scenario, before)
    scenario.check("seconds until there was a new leaf", seconds, installed.REPAIR)
    await_served(scenario)


def check_no_x509_errors(scenario: Scenario) -> None:
    """Check that no creation failed because of a certificate since the row started."""
    messages = [one.message for one in scenario.load.failures if one.at >= scenario.began]
    scenario.check("x509 errors", sum(any(word in one for word in X509) for one in messages))
