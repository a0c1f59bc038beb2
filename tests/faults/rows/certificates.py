"""Certificates are corrupted, lost, and renewed under load."""

import base64
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psutil

from holdfast.certs import authority, rotation
from tests.e2e import certificate_secrets, installed
from tests.e2e.certificate_secrets import CA, corrupt, delete, mismatch, usable
from tests.e2e.namespace import Object
from tests.faults.scenario import Scenario, Table

FAULTS = Table()

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
        return certificate_secrets.leaf(scenario.testbed.installed).fingerprint
    except (KeyError, ValueError):
        return ""


def await_new_leaf(
    scenario: Scenario, old_fingerprint: str, seconds: float = installed.REPAIR
) -> float:
    """Wait until the Secret has a new, usable leaf, and return how many seconds that took."""
    return scenario.eventually(
        lambda: usable(scenario.testbed.installed) and fingerprint(scenario) != old_fingerprint,
        seconds,
    )


@FAULTS.row(
    "certificate-corrupt",
    broken="never-repairs",
    caught_by="seconds until the leaf was repaired: delete",
)
def corrupted(scenario: Scenario) -> None:
    """Delete the leaf, replace its key with another, and write invalid PEM."""
    changes: list[Callable[[installed.Installation], None]] = [delete, mismatch, corrupt]
    for change in changes[:1] if scenario.short else changes:
        renew(scenario, change, f"seconds until the leaf was repaired: {change.__name__}")
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
    installation = scenario.testbed.installed
    webhooks = installation.webhooks()
    unblanked_count = blank(installation)
    scenario.check("webhooks not blanked", unblanked_count)
    seconds = scenario.eventually(lambda: installation.webhooks() == webhooks, installed.REPAIR)
    scenario.check("seconds until all CA bundles were restored", seconds, installed.REPAIR)


def blank(installation: installed.Installation) -> int:
    """Blank the caBundle of every webhook, and count those that still have one."""
    webhooks = replace_in_all(installation, "clientConfig/caBundle", "")
    return sum(bool(webhook["clientConfig"].get("caBundle")) for webhook in webhooks)


def replace_in_all(installation: installed.Installation, path: str, value: str) -> list[Object]:
    """Replace a field of every webhook, and return the webhooks as they are then stored."""
    webhooks: list[Object] = []
    for kind in installed.KINDS:
        patch = [
            {"op": "replace", "path": f"/webhooks/{index}/{path}", "value": value}
            for index in range(len(installation.get(kind, "holdfast").get("webhooks") or ()))
        ]
        options = ("holdfast", "--type=json", "-o", "json", "-p", json.dumps(patch))
        webhooks += json.loads(installation.kubectl("patch", kind, *options)).get("webhooks") or ()
    return webhooks


@FAULTS.row(
    "ca-lost", minutes=2.5, broken="never-repairs", caught_by="seconds until there was a new CA"
)
def lost_ca(scenario: Scenario) -> None:
    """Delete the CA: a new CA replaces it, with overlap."""
    installation = scenario.testbed.installed
    old_ca, leaf = installation.secret(CA).get("tls.crt"), fingerprint(scenario)
    installation.kubectl("delete", "secret", CA)
    seconds = scenario.eventually(
        lambda: installation.secret(CA).get("tls.crt", old_ca) != old_ca, installed.REPAIR
    )
    scenario.check("seconds until there was a new CA", seconds, installed.REPAIR)
    # otherwise the next row would start with a CA that may not sign yet
    await_signed(scenario, leaf, time.time())
    scenario.wait(20, 5)
    check_no_x509_errors(scenario)


def await_signed(scenario: Scenario, old_fingerprint: str, since: float) -> None:
    """Wait until a new CA has signed a leaf, and check that it did not sign too early.

    `since` is when the CA was added. Then wait until every replica serves the leaf.
    """
    installation = scenario.testbed.installed
    seconds = await_new_leaf(scenario, old_fingerprint, SIGN_SECONDS)
    scenario.check("seconds until the new CA signed a leaf", seconds, SIGN_SECONDS)
    issued_at = issue_time(installation)
    scenario.check(
        "seconds by which a CA signed too early", OVERLAP - (issued_at - since), ROUNDING
    )
    await_served(scenario)


def await_served(scenario: Scenario) -> None:
    """Wait until every replica serves the leaf in the Secret."""
    leaf_fingerprint = fingerprint(scenario)
    seconds = scenario.eventually(lambda: all_serve(scenario, leaf_fingerprint), SERVE_SECONDS)
    scenario.check("seconds until all replicas served the leaf", seconds, SERVE_SECONDS)


def issue_time(installation: installed.Installation) -> float:
    """Return when the leaf was issued: seconds since 1970."""
    return (certificate_secrets.leaf(installation).not_before + authority.BACKDATED).timestamp()


def all_serve(scenario: Scenario, leaf_fingerprint: str) -> bool:
    """Return whether every replica serves the certificate with that fingerprint."""
    try:
        return all(
            certificate_secrets.shown(replica.address) == leaf_fingerprint
            for replica in scenario.testbed.replicas
        )
    except OSError:
        return False


def await_trusted_clock(scenario: Scenario) -> None:
    """Wait until every controller has run long enough to rotate a CA because of its age.

    Before that, it does not trust the API server's clock.
    """
    if scenario.short:
        return  # the short form does not depend on the age of a CA
    pids = [controller.pid for controller in scenario.testbed.controllers]
    last_start = max(psutil.Process(pid).create_time() for pid in pids)
    trusted = last_start + rotation.SETTLING.total_seconds() + installed.REPAIR
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
    installation, signers = scenario.testbed.installed, {signer(scenario)}
    rounds = 1 if scenario.short else 3
    for _ in range(rounds):
        old_fingerprint, since = fingerprint(scenario), time.time()
        add_next_ca(installation, YEAR if scenario.short else REMAINING)
        await_signed(scenario, old_fingerprint, since)
        signers.add(signer(scenario))
        if not scenario.short:
            old_fingerprint = fingerprint(scenario)
            await_signed(scenario, old_fingerprint, issue_time(installation))
            signers.add(signer(scenario))
    rotations = len(signers) - 1
    scenario.check("missing rotations", rounds * (1 if scenario.short else 2) - rotations)
    check_no_x509_errors(scenario)


def add_next_ca(installation: installed.Installation, remaining: timedelta) -> None:
    """Store a CA with this lifetime left as the next CA."""
    now = datetime.now(UTC)
    next_ca = authority.new_ca("holdfast CA, the next", now=now - YEAR + remaining, lifetime=YEAR)
    data = {rotation.NEXT_CERTIFICATE: next_ca.certificate, rotation.NEXT_KEY: next_ca.key}
    patch = {"data": {name: base64.b64encode(value).decode() for name, value in data.items()}}
    installation.kubectl("patch", "secret", CA, "--type=merge", "-p", json.dumps(patch))


def signer(scenario: Scenario) -> str:
    """Return the fingerprint of the signing CA."""
    pem = base64.b64decode(scenario.testbed.installed.secret(CA)["tls.crt"])
    return authority.read(pem).fingerprint


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


def renew(
    scenario: Scenario,
    change: Callable[[installed.Installation], None] = delete,
    check: str = "seconds until there was a new leaf",
) -> None:
    """Delete or damage the leaf, and wait until a new leaf is issued and served."""
    old_fingerprint = fingerprint(scenario)
    change(scenario.testbed.installed)
    seconds = await_new_leaf(scenario, old_fingerprint)
    scenario.check(check, seconds, installed.REPAIR)
    await_served(scenario)


def check_no_x509_errors(scenario: Scenario) -> None:
    """Check that no creation failed because of a certificate since the row started."""
    messages = [
        failure.message for failure in scenario.load.failures if failure.at >= scenario.began
    ]
    scenario.check(
        "x509 errors", sum(any(word in message for word in X509) for message in messages)
    )
