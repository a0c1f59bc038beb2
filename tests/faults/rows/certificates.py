"""Certificates are spoilt, lost, and renewed, under load."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psutil

from certs import authority, rotation, stored
from tests.e2e import installed, pairs
from tests.e2e.pairs import CA, LEAF, corrupt, delete, mismatch, usable
from tests.e2e.world import Object
from tests.faults.scene import Fault, Scene

X509 = ("x509", "certificate", "tls:")
"""What a failed creation says whose reason is a certificate."""
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
"""What is left of a CA that is to be replaced: less than a third, and more than a leaf's life."""


def fingerprint(scene: Scene) -> str:
    """Name the pair that the Secret holds; empty while it holds none."""
    try:
        data = base64.b64decode(scene.arena.installed.secret(LEAF)["tls.crt"])
        return authority.read(data).fingerprint
    except (KeyError, ValueError):
        return ""


def replaced(scene: Scene, before: str, seconds: float = installed.REPAIR) -> float:
    """Wait until the Secret holds another pair, a usable one, and tell how many seconds it took."""
    return scene.eventually(
        lambda: usable(scene.arena.installed) and fingerprint(scene) != before, seconds
    )


def spoilt(scene: Scene) -> None:
    """Delete the leaf, give it another's key, and make it no PEM."""
    made = scene.arena.installed
    spoilers: list[Callable[[installed.Installation], None]] = [delete, mismatch, corrupt]
    for spoil in spoilers[:1] if scene.short else spoilers:
        before = fingerprint(scene)
        spoil(made)
        seconds = replaced(scene, before)
        scene.check(f"seconds until it was right: {spoil.__name__}", seconds, installed.REPAIR)
        served(scene)
        scene.go_on(5, 3)
    by_certificates(scene)


def blanked(scene: Scene) -> None:
    """Blank the caBundle of every webhook of both configurations."""
    made = scene.arena.installed
    before = made.webhooks()
    left = blank(made)
    scene.figures["webhooks blanked"] = len(before) - left
    scene.check("webhooks that were not blanked", left)
    seconds = scene.eventually(lambda: made.webhooks() == before, installed.REPAIR)
    scene.check("seconds until all were right", seconds, installed.REPAIR)


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


def lost_ca(scene: Scene) -> None:
    """Delete the CA: another takes its place, with overlap."""
    made = scene.arena.installed
    before, leaf = made.secret(CA).get("tls.crt"), fingerprint(scene)
    made.kubectl("delete", "secret", CA)
    seconds = scene.eventually(
        lambda: made.secret(CA).get("tls.crt", before) != before, installed.REPAIR
    )
    scene.check("seconds until there was another", seconds, installed.REPAIR)
    signed(scene, leaf, time.time())  # else the next row would meet a CA that may sign nothing yet
    scene.go_on(20, 5)
    by_certificates(scene)


def signed(scene: Scene, before: str, since: float) -> None:
    """Wait until another CA, made or introduced `since`, has signed a leaf: not too soon.

    Then until every replica serves it.
    """
    made = scene.arena.installed
    seconds = replaced(scene, before, SIGNED)
    scene.check("seconds until it had signed", seconds, SIGNED)
    issued = issue_time(made)
    scene.check("seconds by which a CA signed too soon", OVERLAP - (issued - since), ROUNDED)
    served(scene)


def served(scene: Scene) -> None:
    """Wait until every replica serves the pair that the Secret holds."""
    wanted = fingerprint(scene)
    seconds = scene.eventually(lambda: all_serve(scene, wanted), SERVED)
    scene.check("seconds until every replica served it", seconds, SERVED)


def issue_time(made: installed.Installation) -> float:
    """Tell when the leaf was issued: seconds since 1970."""
    return (pairs.leaf(made).not_before + authority.BACKDATED).timestamp()


def all_serve(scene: Scene, wanted: str) -> bool:
    """Tell whether every replica serves the certificate of that fingerprint."""
    try:
        return all(pairs.shown(one.address) == wanted for one in scene.arena.replicas)
    except OSError:
        return False


def believed(scene: Scene) -> None:
    """Wait until every controller has run for so long that age alone is a reason to it.

    Before, it does not trust the API server's time to have been set right.
    """
    if scene.short:
        return  # its CA is put there, and does not grow old
    pids = [each.pid for each in scene.arena.controllers]
    began = max(psutil.Process(pid).create_time() for pid in pids)
    settled = began + rotation.SETTLING.total_seconds() + installed.REPAIR
    time.sleep(max(0.0, settled - time.time()))


def rotated(scene: Scene) -> None:
    """Have the CA replaced by another, ten times, each time in the order of a rotation.

    One with a fifth of its life left is put beside the CA that signs, as a leader does that is
    killed then. It is promoted, and in its turn replaced by one that the leader makes.
    """
    made, signers = scene.arena.installed, {signer(scene)}
    turns = 1 if scene.short else 5
    for _ in range(turns):
        before, since = fingerprint(scene), time.time()
        introduce(made, YEAR if scene.short else AGED)
        signed(scene, before, since)
        signers.add(signer(scene))
        if not scene.short:
            before = fingerprint(scene)
            signed(scene, before, issue_time(made))
            signers.add(signer(scene))
    rotations = len(signers) - 1
    scene.check("rotations that did not come", turns * (1 if scene.short else 2) - rotations)
    scene.figures["rotations"] = scene.figures.get("rotations", 0) + rotations
    by_certificates(scene)


def introduce(made: installed.Installation, left: timedelta) -> None:
    """Put a CA that has so much of its year left into the place of the next one."""
    now = datetime.now(UTC)
    pair = authority.new_ca("holdfast CA, the next", now=now - YEAR + left, lifetime=YEAR)
    data = {stored.NEXT_CERTIFICATE: pair.certificate, stored.NEXT_KEY: pair.key}
    patch = {"data": {name: base64.b64encode(value).decode() for name, value in data.items()}}
    made.kubectl("patch", "secret", CA, "--type=merge", "-p", json.dumps(patch))


def signer(scene: Scene) -> str:
    """Name the CA that signs."""
    data = base64.b64decode(scene.arena.installed.secret(CA)["tls.crt"])
    return authority.read(data).fingerprint


def renewed(scene: Scene) -> None:
    """Delete the leaf again and again, so that another is issued and served each time."""
    for _ in range(2 if scene.short else 10):
        renew(scene)
        scene.go_on(5, 2)
    by_certificates(scene)


def renew(scene: Scene) -> None:
    """Delete the leaf, and wait until another is issued and served."""
    before = fingerprint(scene)
    delete(scene.arena.installed)
    seconds = replaced(scene, before)
    scene.check("seconds until there was another", seconds, installed.REPAIR)
    served(scene)


def by_certificates(scene: Scene) -> None:
    """Check that no creation failed for a certificate's sake since the row began."""
    said = [one.said for one in scene.load.failures if one.at >= scene.began]
    scene.check("x509 errors", sum(any(word in one for word in X509) for one in said))


FAULTS = [
    Fault(
        "certificate-spoilt",
        8,
        spoilt,
        broken="never-repairs",
        caught_by="seconds until it was right: delete",
        means="The leader issues another within 30 s; replicas serve the last good pair meanwhile.",
    ),
    Fault(
        "bundle-blanked",
        8,
        blanked,
        broken="never-repairs",
        caught_by="seconds until all were right",
        refuses=True,
        means="Calls fail, and pods that ask are refused, until the leader has put it right: 30 s "
        "at most.",
    ),
    Fault(
        "ca-lost",
        8,
        lost_ca,
        minutes=2.5,
        broken="never-repairs",
        caught_by="seconds until there was another",
        means="Another CA is made and published beside the old one before anything is signed by "
        "it.",
    ),
    Fault(
        "ca-rotated",
        8,
        rotated,
        prepare=believed,
        minutes=24.0,
        broken="never-repairs",
        caught_by="rotations that did not come",
        means="The next CA is in the caBundle for a minute before it signs, and the old one stays "
        "there: no call fails.",
    ),
    Fault(
        "certificates-renewed",
        8,
        renewed,
        minutes=2.5,
        broken="never-repairs",
        caught_by="seconds until there was another",
        means="Each replica looks at its mounted files every two seconds, and serves a new pair "
        "from then on; connections stay open.",
    ),
]
