"""The CEL conditions and what the plugins say in Python agree on generated pods."""

import contextlib
import random
from collections.abc import Iterator

import pytest
import yaml

from controlplane.launcher import ControlPlane
from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.framework import conditions
from holdfast.webhook.framework.pipeline import AdmissionPipeline
from holdfast.webhook.framework.plugin import Code
from holdfast.webhook.model.annotations import OWN_PREFIX
from holdfast.webhook.model.objects import Pod
from tests.e2e.namespace import Namespace, Object, pod
from tests.support.builders import make_pipeline, read_review

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
    """Make an owner reference; `controller: false` may be explicit or left out."""
    reference = {"apiVersion": api_version, "kind": kind, "name": "x", "uid": "y"}
    return {**reference, "controller": True} if controller else reference


def default_pipeline() -> AdmissionPipeline:
    return make_pipeline()


def test_pod_matches_exactly_when_a_plugin_concerns_it(ns: Namespace) -> None:
    profile = default_pipeline().profiles.by_name["*"]

    def concerned(manifest: Object) -> bool:
        read = Pod.of(manifest)
        marks = (*read.gates, *read.finalizers)
        return any(plugin.concerns(read) for plugin in profile.plugins) or any(
            mark.startswith(OWN_PREFIX) for mark in marks
        )

    source = random.Random(SEED)
    outcomes = set()
    before = ns.reviews()
    for number in range(200):
        manifest = generated(source, number)
        with contextlib.suppress(ApiStatusError):  # some are refused: they have been sent as well
            ns.create_pods([manifest], dry_run=True)
        after = ns.reviews()
        sent, before = after > before, after
        assert sent == concerned(manifest), (SEED, manifest)
        outcomes.add(sent)
    assert outcomes == {True, False}


SECONDS = ["15", "604800", "604801", "999999999", "1000000000", "0", "015", "+15", "-15", "1_5"]
OTHERWISE = ["1h", "15s", "1.5", "", " 15", "15\n", "fifteen", "٣", "9" * 30]
NOW_MS = 1_790_000_000_000
JUDGE = "unsettled"
"""A policy by which the API server says what the condition comes to, without a webhook."""
UNSETTLED = "has to be checked"


@pytest.fixture(scope="module")
def judged(control_plane: ControlPlane) -> Iterator[Namespace]:
    """The one namespace where no webhook is asked, with the condition as a policy in it."""
    kind = {"apiVersion": "admissionregistration.k8s.io/v1"}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    expression = f"!({conditions.validate_condition(default_pipeline().profiles)})"
    policy = {
        **kind,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": JUDGE},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{**rule, "resources": ["pods"]}]},
            "validations": [{"expression": expression, "message": UNSETTLED}],
        },
    }
    only = {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
    binding = {
        **kind,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": JUDGE},
        "spec": {
            "policyName": JUDGE,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": only},
        },
    }
    control_plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([policy, binding]))
    found = Namespace(control_plane, "kube-system")
    found.eventually(lambda: unsettled(found, pod("asks", {"delay": "15"})))
    yield found
    kinds = "validatingadmissionpolicy,validatingadmissionpolicybinding"
    control_plane.kubectl("delete", kinds, JUDGE)


def unsettled(judged: Namespace, manifest: Object) -> bool:
    try:
        judged.create_pods([manifest], dry_run=True)
    except ApiStatusError as exc:
        if UNSETTLED not in str(exc):
            raise
        return True
    return False


def test_a_new_pod_is_stored_without_a_check_only_where_there_is_nothing_to_say(
    judged: Namespace,
) -> None:
    pipeline, source = default_pipeline(), random.Random(SEED)
    outcomes = set()
    for number in range(300):
        manifest = generated(source, number)
        made = manifest["metadata"].setdefault("annotations", {})
        made |= {key: source.choice(SECONDS + OTHERWISE) for key in made if "delay" in key}
        verdict = pipeline.validate(read_review(manifest), now_ms=NOW_MS)
        checked = unsettled(judged, manifest)
        said = verdict.code is not Code.SUCCESS or bool(verdict.warnings)
        assert checked or not said, (SEED, manifest, verdict)
        outcomes.add((checked, said))
    assert outcomes == {(True, True), (True, False), (False, False)}


@pytest.mark.parametrize(
    ("annotations", "gates", "expected"),
    [
        pytest.param({"delay": "15"}, ["holdfast.dev/delay"], False, id="held as it asks"),
        pytest.param({"holdfast.dev/delay": "604800"}, ["holdfast.dev/delay"], False, id="most"),
        pytest.param({"delay": "15"}, ["x.io/y", "holdfast.dev/delay"], False, id="another's gate"),
        pytest.param(
            {"delay": "15", "holdfast.dev/allowed": "delay"},
            ["holdfast.dev/delay"],
            True,
            id="another webhook ends the hold",
        ),
        pytest.param({"delay": "15"}, [], True, id="the gate is gone"),
        pytest.param({"delay": "15"}, ["x.io/y"], True, id="another's gate alone"),
        pytest.param({"delay": "604801"}, ["holdfast.dev/delay"], True, id="too long"),
        pytest.param({"delay": "9" * 30}, ["holdfast.dev/delay"], True, id="beyond 64 bits"),
        pytest.param({"delay": "15\n"}, ["holdfast.dev/delay"], True, id="a line break"),
        pytest.param({"delay": "15s"}, ["holdfast.dev/delay"], True, id="a duration"),
        pytest.param(
            {"delay": "15", "holdfast.dev/delay": "15"}, ["holdfast.dev/delay"], True, id="both"
        ),
        pytest.param(
            {"delay": "15", "holdfast.dev/jitter": "1"}, ["holdfast.dev/delay"], True, id="jitter"
        ),
        pytest.param({"delay": "15", "type": "space"}, ["holdfast.dev/delay"], True, id="placed"),
        pytest.param(
            {"delay": "15"}, ["holdfast.dev/delay", "holdfast.dev/x"], True, id="a gate unknown"
        ),
        pytest.param(
            {"delay": "15"},
            ["holdfast.dev/delay", *(f"x.io/{number}" for number in range(100))],
            True,
            id="more gates than are tested",
        ),
    ],
)
def test_checks_made_by_calls(
    judged: Namespace, annotations: dict[str, str], gates: list[str], expected: bool
) -> None:
    manifest = pod("made", annotations)
    manifest["spec"]["schedulingGates"] = [{"name": name} for name in gates]

    assert expected == unsettled(judged, manifest)


def test_a_pod_may_have_as_many_annotations_as_the_api_server_takes(ns: Namespace) -> None:
    most = {f"{number:x}": "" for number in range(55_000)}  # of 256 KiB
    (made,) = ns.create_pods([pod("many", most)], dry_run=True)
    assert len(made["metadata"]["annotations"]) == len(most)
