"""The CEL conditions and the plugins' predicates in Python agree on generated pods."""

from __future__ import annotations

import contextlib
import random
import time

from tests.e2e.world import Object, World, pod
from webhook import config, holds, plugins
from webhook.errors import ApiStatusError
from webhook.objects import Pod

SEED = 364
KEYS = ["delay", "holdfast.dev/delay", "holdfast.dev/not-before", "holdfast.dev/jitter", "type"]
OTHER_KEYS = ["Delay", "delay2", "x/delay", "holdfast.dev/held", "holdfast.dev/profile", "a.b/c"]
VALUES = ["15", "space", "", "2026-12-24T18:00:00Z", "no such value"]
GATES = ["holdfast.dev/delay", "holdfast.dev/other", "holdfast.development/x", "example.com/mine"]
OWNERS = [
    ("kubevirt.io/v1", "VirtualMachineInstance"),
    ("kubevirt.io/v1alpha3", "VirtualMachineInstance"),
    ("kubevirt.io/v1", "VirtualMachine"),
    ("kubevirt.io.example.com/v1", "VirtualMachineInstance"),
    ("apps/v1", "ReplicaSet"),
]
FINALIZERS = ["holdfast.dev/sticky", "example.com/mine"]


def generated(source: random.Random, number: int) -> Object:
    made = pod(f"made-{number}")
    if source.random() < 0.8:
        keys = source.sample(KEYS + OTHER_KEYS, source.randint(0, 2))
        made["metadata"]["annotations"] = {key: source.choice(VALUES) for key in keys}
    if source.random() < 0.3:
        names = source.sample(GATES, source.randint(0, 2))
        made["spec"]["schedulingGates"] = [{"name": name} for name in names]
    if source.random() < 0.3:
        made["metadata"]["finalizers"] = source.sample(FINALIZERS, source.randint(0, 2))
    if source.random() < 0.4:
        chosen = source.sample(OWNERS, source.randint(1, 2))
        made["metadata"]["ownerReferences"] = [
            owner(*one, controller=place == 0 and source.random() < 0.7)
            for place, one in enumerate(chosen)
        ]
    return made


def owner(api_version: str, kind: str, *, controller: bool) -> Object:
    """Make an owner reference; one that is no controller may say so, or nothing."""
    reference = {"apiVersion": api_version, "kind": kind, "name": "x", "uid": "y"}
    return {**reference, "controller": True} if controller else reference


def test_a_pod_is_sent_where_python_says_that_it_has_to_be(world: World) -> None:
    pipeline = config.build_pipeline(
        config.Configuration(),
        plugins.registry(found=()),
        source="",
        timer=time.perf_counter,
        observe=lambda **_: None,
    )
    profile = pipeline.profiles["*"]

    def concerned(manifest: Object) -> bool:
        read = Pod.of(manifest)
        marks = (*read.gates, *read.finalizers)
        return any(plugin.concerns(read) for plugin in profile.plugins) or any(
            mark.startswith(holds.OWN_PREFIX) for mark in marks
        )

    source = random.Random(SEED)
    outcomes = set()
    before = world.reviews()
    for number in range(200):
        manifest = generated(source, number)
        with contextlib.suppress(ApiStatusError):  # some are refused: they have been sent as well
            world.create_pods([manifest], dry_run=True)
        after = world.reviews()
        sent, before = after > before, after
        assert sent == concerned(manifest), (SEED, manifest)
        outcomes.add(sent)
    assert outcomes == {True, False}
