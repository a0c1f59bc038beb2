"""Holdfast's JSON patches, applied by a real API server to generated pods."""

import random
import string

from tests.e2e.namespace import Namespace, Object, gates, pod

GATE = "holdfast.dev/delay"
SEED = 20261121
PODS = 150


def label_text(source: random.Random, length: int) -> str:
    return "".join(source.choices(string.ascii_lowercase + string.digits, k=length))


def key(source: random.Random) -> str:
    """Make an annotation key; `/` and `~` are what a JSON Pointer has to escape."""
    name = label_text(source, 3) + source.choice(["", "-", "_", "."]) + label_text(source, 3)
    return name if source.random() < 0.5 else f"{label_text(source, 4)}.example/{name}"


def generated(source: random.Random, number: int) -> Object:
    annotations = {
        key(source): source.choice(["", "a/b~c", "ünï\u202ecode", "~0~1", '"quoted"\n'])
        for _ in range(source.randint(0, 4))
    }
    requested = source.choice(["delay", "holdfast.dev/delay", "holdfast.dev/jitter"])
    annotations |= {requested: source.choice(["15", "1h30m", "+7", "2.5s"])}
    scheduling_gates = [
        {"name": f"example.com/{label_text(source, 5)}"} for _ in range(source.randint(0, 3))
    ]
    scheduling_gates += [{"name": GATE}] * (source.random() < 0.2)
    source.shuffle(scheduling_gates)
    manifest = pod(f"made-{number}", annotations)
    if scheduling_gates:
        manifest["spec"]["schedulingGates"] = scheduling_gates
    return manifest


def test_generated_pods_are_patched_as_intended(ns: Namespace) -> None:
    source = random.Random(SEED)
    manifests = [generated(source, number) for number in range(PODS)]
    plain_pods = [pod(f"plain-{number}") for number in range(5)]
    for before, after in zip(manifests, ns.create_pods(manifests, dry_run=True), strict=True):
        own_gates = gates(before)
        assert gates(after) == own_gates + [GATE] * (GATE not in own_gates), SEED
        annotations = after["metadata"]["annotations"]
        assert annotations.pop("holdfast.dev/profile") == "*", SEED
        hint = annotations.pop("holdfast.dev/held")
        assert annotations == before["metadata"]["annotations"], SEED
        assert hint.partition("=")[0] in {*annotations, "jitter"}, SEED
    for after in ns.create_pods(plain_pods, dry_run=True):
        assert gates(after) == []
