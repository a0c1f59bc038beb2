"""Certificates are spoilt, lost, and renewed, under load."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

from certs import authority, rotation
from tests.e2e import installed
from tests.e2e.pairs import CA, LEAF, corrupt, delete, mismatch, usable
from tests.faults.scene import Fault, Scene

X509 = ("x509", "certificate", "tls:")
"""What a failed creation says whose reason is a certificate."""
OVERLAP = rotation.PROPAGATION.total_seconds()
"""Seconds that API servers are given to learn of a new CA before it signs anything."""


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
        scene.go_on(5, 3)
    by_certificates(scene)


def blanked(scene: Scene) -> None:
    """Blank the caBundle of both webhook configurations."""
    made = scene.arena.installed
    before = made.bundles()
    for kind in installed.KINDS:
        patch = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}]
        made.kubectl("patch", kind, "holdfast", "--type=json", "-p", json.dumps(patch))
    seconds = scene.eventually(lambda: made.bundles() == before, installed.REPAIR)
    scene.check("seconds until it was right", seconds, installed.REPAIR)


def lost_ca(scene: Scene) -> None:
    """Delete the CA: another takes its place, with overlap."""
    made = scene.arena.installed
    before, leaf = made.secret(CA).get("tls.crt"), fingerprint(scene)
    made.kubectl("delete", "secret", CA)
    seconds = scene.eventually(
        lambda: made.secret(CA).get("tls.crt", before) != before, installed.REPAIR
    )
    scene.check("seconds until there was another", seconds, installed.REPAIR)
    if not scene.short:  # else the next row would meet a CA that may sign nothing yet
        seconds = replaced(scene, leaf, OVERLAP + installed.REPAIR)
        scene.check("seconds until it had signed", seconds, OVERLAP + installed.REPAIR)
    scene.go_on(20, 5)
    by_certificates(scene)


def renewed(scene: Scene) -> None:
    """Delete the leaf again and again, so that another is issued and served each time."""
    for _ in range(2 if scene.short else 10):
        before = fingerprint(scene)
        delete(scene.arena.installed)
        seconds = replaced(scene, before)
        scene.check("seconds until there was another", seconds, installed.REPAIR)
        scene.go_on(5, 2)
    by_certificates(scene)


def by_certificates(scene: Scene) -> None:
    """Check that no creation failed for a certificate's sake."""
    said = [one.said for one in scene.load.failures]
    scene.check("x509 errors", sum(any(word in one for word in X509) for one in said))


FAULTS = [
    Fault(
        "certificate-spoilt",
        8,
        spoilt,
        broken="never-repairs",
        means="The leader issues another within 30 s; replicas serve the last good pair meanwhile.",
    ),
    Fault(
        "bundle-blanked",
        8,
        blanked,
        broken="never-repairs",
        refuses=True,
        means="Calls fail, and pods that ask are refused, until the leader has put it right: 30 s "
        "at most.",
    ),
    Fault(
        "ca-lost",
        8,
        lost_ca,
        broken="never-repairs",
        means="Another CA is made and published beside the old one before anything is signed by "
        "it.",
    ),
    Fault(
        "certificates-renewed",
        8,
        renewed,
        broken="never-repairs",
        means="A new pair is served as soon as it is mounted; connections stay open.",
    ),
]
