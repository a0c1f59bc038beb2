"""The framework on a real cluster: profiles, plugins of others, and those that misbehave."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml

from controlplane.launcher import ControlPlane
from demo.command import Command
from tests.e2e.world import Object, World, gates, pod

pytestmark = pytest.mark.xdist_group("framework")

ROOT = Path(__file__).resolve().parents[2]
DELAY, APPROVAL = "holdfast.dev/delay", "holdfast.dev/approval"
PROFILE = "holdfast.dev/profile"

_numbers = itertools.count(1)

Serve = Callable[..., World]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane(nodes=2, audit=True) as running:
        yield running


@pytest.fixture
def serve(plane: ControlPlane, tmp_path: Path, log: Path) -> Iterator[Serve]:
    """Run `holdfast dev` with profiles of the test's own, and give a namespace beside it."""
    with ExitStack() as stack:

        def start(
            *profiles: Object, environment: Mapping[str, str] = MappingProxyType({})
        ) -> World:
            config = tmp_path / "holdfast.yaml"
            head = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "HoldfastConfiguration"}
            config.write_text(yaml.safe_dump({**head, "profiles": list(profiles)}))
            arguments = ("--kubeconfig", str(plane.kubeconfig), "--config", str(config))
            command = Command("dev", *arguments, log=log, environment=environment)
            holdfast = stack.enter_context(command)
            return World.in_new_namespace(plane, f"framework-{next(_numbers)}", holdfast)

        yield start


def installed(package: Path, target: Path) -> Mapping[str, str]:
    """Install a plugin's package as a user would, and give the environment that has it."""
    source = target.with_name("source")  # a copy: setuptools builds beside what it packs
    shutil.copytree(package, source)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    command += [str(target), "--no-build-isolation", "--disable-pip-version-check", str(source)]
    subprocess.run(command, check=True, timeout=240, capture_output=True)
    return {"PYTHONPATH": os.pathsep.join([str(target), str(ROOT)])}


def test_two_profiles_serve_pods_of_two_schedulers(serve: Serve) -> None:
    strict = {"pluginConfig": [{"name": "delay", "args": {"maxDelay": "10s"}}]}
    world = serve({"schedulerName": "impatient", **strict}, {"schedulerName": "*"})
    long = {"delay": "3600"}
    assert "maxDelay=10s" in world.refusal(pod("refused", long, schedulerName="impatient"))
    (made,) = world.apply(pod("held", long))
    assert gates(made) == [DELAY]
    assert made["metadata"]["annotations"][PROFILE] == "*"


def test_a_plugin_that_changes_the_scheduler_leaves_one_profile_and_one_gate(
    serve: Serve, plane: ControlPlane
) -> None:
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(TOUCHING_POLICY))
    hint = {"pluginConfig": [{"name": "delay", "args": {"schedulerName": "second"}}]}
    other = {"pluginConfig": [{"name": "delay", "args": {"annotations": ["other-delay"]}}]}
    world = serve({"schedulerName": "first", **hint}, {"schedulerName": "second", **other})
    manifest = pod("changed", {"delay": "2"}, schedulerName="first")

    def touched() -> Object:
        (shown,) = world.apply(manifest, dry_run=True)
        return shown if shown["metadata"]["annotations"].get("touched") == "gated" else {}

    world.eventually(touched)  # the policy takes a moment to be in force
    (made,) = world.apply(manifest)
    assert made["spec"]["schedulerName"] == "second"
    assert made["metadata"]["annotations"][PROFILE] == "first"
    assert gates(made) == [DELAY]
    world.eventually(lambda: "changed" in world.releases())
    plane.kubectl("delete", "mutatingadmissionpolicy,mutatingadmissionpolicybinding", "touches")


TOUCHING_POLICY: list[Object] = [
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": "touches"},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "IfNeeded",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                    }
                ]
            },
            "matchConditions": [{"name": "asks", "expression": "has(object.metadata.annotations)"}],
            "mutations": [
                {
                    "patchType": "JSONPatch",
                    "jsonPatch": {
                        "expression": (
                            '[JSONPatch{op: "add", path: "/metadata/annotations/touched",'
                            ' value: has(object.spec.schedulingGates) ? "gated" : "free"}]'
                        )
                    },
                }
            ],
        },
    },
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "touches"},
        "spec": {"policyName": "touches"},
    },
]


def test_the_example_plugin_holds_pods_until_they_are_approved(
    serve: Serve, tmp_path: Path
) -> None:
    environment = installed(ROOT / "examples" / "plugin", tmp_path / "plugins")
    world = serve({"plugins": {"enabled": [{"name": "approval"}]}}, environment=environment)
    asks = {"example.com/needs-approval": "true"}
    (made, both) = world.apply(pod("waits", asks), pod("both", {**asks, "delay": "1"}))
    assert gates(made) == [APPROVAL]
    assert gates(both) == [DELAY, APPROVAL]
    world.kubectl("annotate", "pod", "waits", "both", "example.com/approved-by=ada")
    world.eventually(lambda: world.releases().keys() == {"waits", "both"})
    nonsense = {"example.com/needs-approval": "maybe"}
    assert 'write "true", or leave it out' in world.refusal(pod("nonsense", nonsense))


def test_the_example_plugins_own_tests_pass(tmp_path: Path) -> None:
    environment = installed(ROOT / "examples" / "plugin", tmp_path / "plugins")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_approval.py"],
        cwd=ROOT / "examples" / "plugin",
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("how", ["raise", "rubbish", "edits"])
def test_a_plugin_that_fails_refuses_the_pod_and_is_named(
    serve: Serve, tmp_path: Path, how: str
) -> None:
    environment = installed(ROOT / "tests" / "e2e" / "misbehaving", tmp_path / "plugins")
    world = serve({"plugins": {"enabled": [{"name": "misbehaving"}]}}, environment=environment)
    assert "failed calling webhook" in world.refusal(pod("asks", {"misbehave": how}))
    assert gates(world.apply(pod("other", {"delay": "60"}))[0]) == [DELAY]
    failed = 'plugin="misbehaving",profile="*",status="Error"'
    counted = [line for line in world.metrics() if "_count" in line and failed in line]
    assert [line.rpartition(" ")[2] for line in counted] == ["1.0"]


def test_a_plugin_that_sleeps_is_given_up_while_others_are_served(
    serve: Serve, tmp_path: Path
) -> None:
    environment = installed(ROOT / "tests" / "e2e" / "misbehaving", tmp_path / "plugins")
    world = serve({"plugins": {"enabled": [{"name": "misbehaving"}]}}, environment=environment)
    with ThreadPoolExecutor(1) as pool:
        sleeping = pool.submit(world.refusal, pod("sleeps", {"misbehave": "sleep"}))
        served = 0
        while not sleeping.done():
            world.apply(pod(f"served-{served}", {"delay": "60"}))
            served += 1
        assert "failed calling webhook" in sleeping.result()
    assert served > 1
    late = 'holdfast_plugin_deadlines_exceeded_total{plugin="misbehaving"}'
    assert [line.rpartition(" ")[2] for line in world.metrics() if line.startswith(late)] == ["1.0"]
