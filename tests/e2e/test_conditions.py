"""The CEL match conditions agree with the plugins on generated pods."""

import contextlib
import random
from collections.abc import Iterator

import pytest
import yaml

from controlplane.launcher import ControlPlane
from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.framework import conditions
from holdfast.webhook.framework.plugin import Code
from holdfast.webhook.model.annotations import OWN_PREFIX
from holdfast.webhook.model.objects import Pod
from tests.e2e.namespace import Namespace, Object, pod
from tests.e2e.secured import CREATION, Ban, policy
from tests.support.builders import make_pipeline, read_review

SEED = 364
KEYS = ["delay", "holdfast.dev/delay", "holdfast.dev/not-before", "holdfast.dev/jitter", "type"]
OTHER_KEYS = ["Delay", "delay2", "x/delay", "holdfast.dev/held", "holdfast.dev/profile", "a.b/c"]
VALUES = ["15", "space", "", "2026-12-24T18:00:00Z", "no such value"]
GATE = "holdfast.dev/delay"
GATES = [GATE, "holdfast.dev/other", "holdfast.development/x", "example.com/mine"]
OWNERS = [
    ("kubevirt.io/v1", "VirtualMachineInstance"),
    ("kubevirt.io/v1alpha3", "VirtualMachineInstance"),
    ("kubevirt.io/v1", "VirtualMachine"),
    ("kubevirt.io.example.com/v1", "VirtualMachineInstance"),
    ("apps/v1", "ReplicaSet"),
]
FINALIZERS = ["holdfast.dev/sticky", "example.com/mine"]


def generated(source: random.Random, number: int) -> Object:
    manifest = pod(f"made-{number}")
    if source.random() < 0.8:
        keys = source.sample(KEYS + OTHER_KEYS, source.randint(0, 2))
        manifest["metadata"]["annotations"] = {key: source.choice(VALUES) for key in keys}
    if source.random() < 0.3:
        names = source.sample(GATES, source.randint(0, 2))
        manifest["spec"]["schedulingGates"] = [{"name": name} for name in names]
    if source.random() < 0.3:
        manifest["metadata"]["finalizers"] = source.sample(FINALIZERS, source.randint(0, 2))
    if source.random() < 0.4:
        owner_kinds = source.sample(OWNERS, source.randint(1, 2))
        manifest["metadata"]["ownerReferences"] = [
            owner(*owner_kind, controller=index == 0 and source.random() < 0.7)
            for index, owner_kind in enumerate(owner_kinds)
        ]
    return manifest


def owner(api_version: str, kind: str, *, controller: bool) -> Object:
    reference = {"apiVersion": api_version, "kind": kind, "name": "x", "uid": "y"}
    return {**reference, "controller": True} if controller else reference


def test_match_conditions_agree_with_plugins(ns: Namespace) -> None:
    profile = make_pipeline().profiles.by_name["*"]

    def is_concerned(manifest: Object) -> bool:
        parsed = Pod.of(manifest)
        marks = (*parsed.gates, *parsed.finalizers)
        return any(plugin.concerns(parsed) for plugin in profile.plugins) or any(
            mark.startswith(OWN_PREFIX) for mark in marks
        )

    source = random.Random(SEED)
    outcomes = set()
    before = ns.reviews()
    for number in range(200):
        manifest = generated(source, number)
        with contextlib.suppress(ApiStatusError):  # a rejected pod has reached the webhook too
            ns.create_pods([manifest], dry_run=True)
        after = ns.reviews()
        sent, before = after > before, after
        assert sent == is_concerned(manifest), (SEED, manifest)
        outcomes.add(sent)
    assert outcomes == {True, False}


SECONDS = ["15", "604800", "604801", "999999999", "1000000000", "0", "015", "+15", "-15", "1_5"]
OTHER_VALUES = ["1h", "15s", "1.5", "", " 15", "15\n", "fifteen", "٣", "9" * 30]
NOW_MS = 1_790_000_000_000
MESSAGE = "has to be validated"
"""Message of a policy that reports the result of the condition without calling a webhook."""


@pytest.fixture(scope="module")
def policy_ns(control_plane: ControlPlane) -> Iterator[Namespace]:
    """A namespace that no webhook is called for, with the condition as a policy."""
    expression = f"!({conditions.validate_condition(make_pipeline().profiles)})"
    documents = policy("kube-system", Ban(MESSAGE, expression, {}), CREATION)
    control_plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
    ns = Namespace(control_plane, "kube-system")
    ns.eventually(lambda: needs_validation(ns, pod("delayed", {"delay": "15"})))
    yield ns
    kinds = "validatingadmissionpolicy,validatingadmissionpolicybinding"
    control_plane.kubectl("delete", kinds, documents[0]["metadata"]["name"])


def needs_validation(policy_ns: Namespace, manifest: Object) -> bool:
    try:
        policy_ns.create_pods([manifest], dry_run=True)
    except ApiStatusError as exc:
        if MESSAGE not in str(exc):
            raise
        return True
    return False


def test_only_valid_pods_without_warnings_skip_validation(
    policy_ns: Namespace,
) -> None:
    pipeline, source = make_pipeline(), random.Random(SEED)
    outcomes = set()
    for number in range(300):
        manifest = generated(source, number)
        annotations = manifest["metadata"].setdefault("annotations", {})
        annotations |= {
            key: source.choice(SECONDS + OTHER_VALUES) for key in annotations if "delay" in key
        }
        verdict = pipeline.validate(read_review(manifest), now_ms=NOW_MS)
        validated = needs_validation(policy_ns, manifest)
        reported = verdict.code is not Code.SUCCESS or bool(verdict.warnings)
        assert validated or not reported, (SEED, manifest, verdict)
        outcomes.add((validated, reported))
    assert outcomes == {(True, True), (True, False), (False, False)}


@pytest.mark.parametrize(
    ("annotations", "gates", "expected"),
    [
        pytest.param({"delay": "15"}, [GATE], False, id="valid delay"),
        pytest.param({"holdfast.dev/delay": "604800"}, [GATE], False, id="longest delay"),
        pytest.param({"delay": "15"}, ["x.io/y", GATE], False, id="gate of another component"),
        pytest.param(
            {"delay": "15", "holdfast.dev/allowed": "delay"},
            [GATE],
            True,
            id="hold allowed by another webhook",
        ),
        pytest.param({"delay": "15"}, [], True, id="gate removed"),
        pytest.param({"delay": "15"}, ["x.io/y"], True, id="only a gate of another component"),
        pytest.param({"delay": "604801"}, [GATE], True, id="too long"),
        pytest.param({"delay": "9" * 30}, [GATE], True, id="beyond 64 bits"),
        pytest.param({"delay": "15\n"}, [GATE], True, id="line break"),
        pytest.param({"delay": "15s"}, [GATE], True, id="duration"),
        pytest.param({"delay": "15", "holdfast.dev/delay": "15"}, [GATE], True, id="two delays"),
        pytest.param({"delay": "15", "holdfast.dev/jitter": "1"}, [GATE], True, id="jitter"),
        pytest.param({"delay": "15", "type": "space"}, [GATE], True, id="placement rule"),
        pytest.param({"delay": "15"}, [GATE, "holdfast.dev/x"], True, id="unknown Holdfast gate"),
        pytest.param(
            {"delay": "15"},
            [GATE, *(f"x.io/{number}" for number in range(100))],
            True,
            id="more gates than the condition tests",
        ),
    ],
)
def test_condition_decides_whether_a_pod_is_validated(
    policy_ns: Namespace, annotations: dict[str, str], gates: list[str], expected: bool
) -> None:
    manifest = pod("made", annotations)
    manifest["spec"]["schedulingGates"] = [{"name": name} for name in gates]

    assert expected == needs_validation(policy_ns, manifest)


def test_pod_with_55000_annotations_is_admitted(ns: Namespace) -> None:
    annotations = {f"{number:x}": "" for number in range(55_000)}  # of 256 KiB
    (stored,) = ns.create_pods([pod("many", annotations)], dry_run=True)
    assert len(stored["metadata"]["annotations"]) == len(annotations)
