"""The framework on a real cluster: profiles, third-party plugins and misbehaving plugins."""

import itertools
import json
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

from controlplane.errors import ControlPlaneError
from controlplane.launcher import ControlPlane
from demo.command import Command
from tests.e2e.foreign_webhook import other_webhook
from tests.e2e.namespace import Namespace, Object, gates, pod
from tests.support.matching import REQUIRED

pytestmark = pytest.mark.xdist_group("framework")

ROOT = Path(__file__).resolve().parents[2]
DELAY, SIGNOFF = "holdfast.dev/delay", "holdfast.dev/signoff"
PROFILE = "holdfast.dev/profile"

_numbers = itertools.count(1)

Serve = Callable[..., Namespace]


@pytest.fixture
def serve(plain_cluster: ControlPlane, tmp_path: Path, log: Path) -> Iterator[Serve]:
    """Run `holdfast dev` with the test's profiles, and return a namespace in its cluster."""
    with ExitStack() as stack:

        def start(
            *profiles: Object, environment: Mapping[str, str] = MappingProxyType({})
        ) -> Namespace:
            config = tmp_path / "holdfast.yaml"
            head = {"apiVersion": "holdfast.dev/v1beta1", "kind": "HoldfastConfiguration"}
            config.write_text(yaml.safe_dump({**head, "profiles": list(profiles)}))
            arguments = ("--kubeconfig", str(plain_cluster.kubeconfig), "--config", str(config))
            command = Command("dev", *arguments, log=log, environment=environment)
            holdfast = stack.enter_context(command)
            ns = Namespace.create_new(plain_cluster, f"framework-{next(_numbers)}", holdfast)
            stack.callback(ns.delete_pods)  # a later test's controller would find them held
            return ns

        yield start


def install_plugin(package: Path, target: Path) -> Mapping[str, str]:
    """Install a plugin's package as a user would; return the environment that has it."""
    source = target.with_name("source")  # a copy: setuptools writes build files next to the sources
    shutil.copytree(package, source)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    command += [str(target), "--no-build-isolation", "--disable-pip-version-check", str(source)]
    subprocess.run(command, check=True, timeout=240, capture_output=True)
    return {"PYTHONPATH": os.pathsep.join([str(target), str(ROOT)])}


def test_scheduler_name_selects_the_profile(serve: Serve) -> None:
    strict = {"pluginConfig": [{"name": "delay", "args": {"maxDelay": "10s"}}]}
    ns = serve({"schedulerName": "impatient", **strict}, {"schedulerName": "*"})
    long = {"delay": "3600"}
    assert "maxDelay=10s" in ns.refusal(pod("refused", long, schedulerName="impatient"))
    (made,) = ns.apply(pod("held", long))
    assert gates(made) == [DELAY]
    assert made["metadata"]["annotations"][PROFILE] == "*"


def test_changing_the_scheduler_keeps_the_pods_profile_and_gate(
    serve: Serve, plain_cluster: ControlPlane
) -> None:
    hint = {"pluginConfig": [{"name": "delay", "args": {"schedulerName": "second"}}]}
    other = {"pluginConfig": [{"name": "delay", "args": {"annotations": ["other-delay"]}}]}
    ns = serve({"schedulerName": "first", **hint}, {"schedulerName": "second", **other})
    manifest = pod("changed", {"delay": "2"}, schedulerName="first")

    def touched() -> bool:
        (shown,) = ns.apply(manifest, dry_run=True)
        return bool(shown["metadata"]["annotations"].get("touched") == "gated")

    with other_webhook(plain_cluster, "a-touch", note_gates):
        ns.eventually(touched)  # the API server takes a moment to notice the other webhook
        (made,) = ns.apply(manifest)
        assert made["metadata"]["annotations"]["touched"] == "gated"  # it was called again
        assert made["spec"]["schedulerName"] == "second"
        assert made["metadata"]["annotations"][PROFILE] == "first"
        assert gates(made) == [DELAY]
        ns.eventually(lambda: "changed" in ns.releases())


def test_reinvocation_restores_edits_removed_by_other_webhook(
    serve: Serve, plain_cluster: ControlPlane
) -> None:
    ns = serve({})
    with other_webhook(plain_cluster, "z-undo", undo_edits):
        manifest = pod("undone", {"delay": "3600", "type": "space"})
        ns.eventually(lambda: "undone" in annotations_of(ns.apply(manifest, dry_run=True)[0]))
        (made,) = ns.apply(manifest)

    assert gates(made) == [DELAY]
    (term,) = made["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert [one["key"] for one in term["matchExpressions"]] == ["theirs", "kubernetes.io/role"]
    assert annotations_of(made)[PROFILE] == "*"


def undo_edits(seen: Object) -> list[Object]:
    """Replace a pod's required node affinity and remove its gates, once."""
    if "undone" in annotations_of(seen):
        return []
    theirs = {"matchExpressions": [{"key": "theirs", "operator": "Exists"}]}
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [theirs]}}}
    return [
        {"op": "add", "path": "/metadata/annotations/undone", "value": "once"},
        {"op": "add", "path": "/spec/affinity", "value": affinity},
        {"op": "add", "path": "/spec/schedulingGates", "value": []},
    ]


def test_annotation_added_after_holdfast_ran_is_rejected(
    serve: Serve, plain_cluster: ControlPlane
) -> None:
    ns = serve({})

    def rejection() -> str:
        try:
            ns.apply(pod("marked"), dry_run=True)
        except ControlPlaneError as exc:
            return str(exc)
        return ""  # the API server takes a moment to notice the other webhook

    with other_webhook(plain_cluster, "z-mark", add_rule_annotation):
        message = ns.eventually(rejection)

    assert "made the rule match after Holdfast ran" in message


def add_rule_annotation(seen: Object) -> list[Object]:
    """Annotate every pod so that a placement rule matches it."""
    marks = {**annotations_of(seen), "type": "space"}
    return [{"op": "add", "path": "/metadata/annotations", "value": marks}]


def annotations_of(seen: Object) -> dict[str, str]:
    return dict(seen["metadata"].get("annotations", {}))


def note_gates(seen: Object) -> list[Object]:
    """Annotate a pod with whether it was gated when this webhook was called."""
    value = "gated" if seen["spec"].get("schedulingGates") else "free"
    return [{"op": "add", "path": "/metadata/annotations/touched", "value": value}]


def test_example_plugin_holds_pods_until_sign_off(serve: Serve, tmp_path: Path) -> None:
    environment = install_plugin(ROOT / "examples" / "plugin", tmp_path / "plugins")
    ns = serve({"plugins": {"enabled": [{"name": "signoff"}]}}, environment=environment)
    annotations = {"example.com/needs-signoff": "true"}
    (made, both) = ns.apply(pod("waits", annotations), pod("both", {**annotations, "delay": "1"}))
    assert gates(made) == [SIGNOFF]
    assert gates(both) == [DELAY, SIGNOFF]
    ns.kubectl("annotate", "pod", "waits", "both", "example.com/signed-off-by=ada")
    ns.eventually(lambda: ns.releases().keys() == {"waits", "both"})
    nonsense = {"example.com/needs-signoff": "maybe"}
    assert 'use "true", or remove the annotation' in ns.refusal(pod("nonsense", nonsense))
    message = ns.refusal(pod("nonsense", {**nonsense, "delay": "soon"}))
    assert 'invalid value "soon"' in message
    assert 'use "true", or remove the annotation' in message


def test_example_plugin_tests_pass(tmp_path: Path) -> None:
    environment = install_plugin(ROOT / "examples" / "plugin", tmp_path / "plugins")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_signoff.py"],
        cwd=ROOT / "examples" / "plugin",
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_plugin_uses_its_handle_and_cannot_block_a_due_pod(serve: Serve, tmp_path: Path) -> None:
    environment = install_plugin(ROOT / "tests" / "e2e" / "janitor", tmp_path / "plugins")
    ns = serve({"plugins": {"enabled": [{"name": "janitor"}]}}, environment=environment)
    (waits,) = ns.apply(pod("waits", {"janitor": "wait"}))
    notes = waits["metadata"]["annotations"]
    namespace = json.loads(ns.kubectl("get", "namespace", ns.namespace, "-o", "json"))
    assert gates(waits) == ["holdfast.dev/janitor"]
    assert notes["janitor-saw"] == namespace["metadata"]["uid"]
    missed = "held pods are available in the controller only"
    assert notes["janitor-missed"] == missed
    ns.apply(
        pod("frees", {"janitor": "free", "delay": "1"}),
        pod("fails", {"janitor": "fail", "delay": "1"}),
    )
    ns.eventually(lambda: ns.releases().keys() == {"waits", "frees", "fails"})

    def event_note(name: str, reason: str) -> str:
        return ns.eventually(
            lambda: "".join(
                one["note"]
                for one in ns.all("events.events.k8s.io")
                if (one["regarding"]["name"], one["reason"]) == (name, reason)
            )
        )

    assert event_note("frees", "Freed") == "those that waited may go"
    assert event_note("frees", "Released").endswith(": too late to say no")
    assert event_note("fails", "Released").endswith("failed in release: RuntimeError: as asked")
    measured = 'count{extension_point="release",plugin="janitor",profile="*",status="%s"} 1.0'
    for status in ("Reject", "Error"):
        assert [one for one in ns.controller_metrics() if one.endswith(measured % status)]


@pytest.mark.parametrize("how", ["raise", "rubbish", "edits"])
def test_failing_plugin_rejects_only_its_pod_and_is_counted(
    serve: Serve, tmp_path: Path, how: str
) -> None:
    environment = install_plugin(ROOT / "tests" / "e2e" / "misbehaving", tmp_path / "plugins")
    ns = serve({"plugins": {"enabled": [{"name": "misbehaving"}]}}, environment=environment)
    assert "failed calling webhook" in ns.refusal(pod("misbehaves", {"misbehave": how}))
    assert gates(ns.apply(pod("other", {"delay": "60"}))[0]) == [DELAY]
    failed = 'plugin="misbehaving",profile="*",status="Error"'
    counted = [line for line in ns.metrics() if "_count" in line and failed in line]
    assert [line.rpartition(" ")[2] for line in counted] == ["1.0"]


def test_sleeping_plugin_times_out_without_blocking_other_pods(
    serve: Serve, tmp_path: Path
) -> None:
    environment = install_plugin(ROOT / "tests" / "e2e" / "misbehaving", tmp_path / "plugins")
    ns = serve({"plugins": {"enabled": [{"name": "misbehaving"}]}}, environment=environment)
    with ThreadPoolExecutor(1) as pool:
        sleeping = pool.submit(ns.refusal, pod("sleeps", {"misbehave": "sleep"}))
        served = 0
        while not sleeping.done():
            ns.apply(pod(f"served-{served}", {"delay": "60"}))
            served += 1
        assert "a plugin did not finish the review within" in sleeping.result()
    assert served > 1
    late = 'holdfast_plugin_deadlines_exceeded_total{plugin="misbehaving"}'
    assert [line.rpartition(" ")[2] for line in ns.metrics() if line.startswith(late)] == ["1.0"]
