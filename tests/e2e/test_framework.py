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
    annotations = {"delay": "3600"}
    assert "maxDelay=10s" in ns.refusal(pod("refused", annotations, schedulerName="impatient"))
    (stored,) = ns.apply(pod("held", annotations))
    assert gates(stored) == [DELAY]
    assert stored["metadata"]["annotations"][PROFILE] == "*"


def test_changing_the_scheduler_keeps_the_pods_profile_and_gate(
    serve: Serve, plain_cluster: ControlPlane
) -> None:
    first_profile = {"pluginConfig": [{"name": "delay", "args": {"schedulerName": "second"}}]}
    second_profile = {"pluginConfig": [{"name": "delay", "args": {"annotations": ["other-delay"]}}]}
    ns = serve(
        {"schedulerName": "first", **first_profile}, {"schedulerName": "second", **second_profile}
    )
    manifest = pod("changed", {"delay": "2"}, schedulerName="first")

    def touched() -> bool:
        (preview,) = ns.apply(manifest, dry_run=True)
        return bool(preview["metadata"]["annotations"].get("touched") == "gated")

    with other_webhook(plain_cluster, "a-touch", note_gates):
        ns.eventually(touched)  # the API server takes a moment to notice the other webhook
        (stored,) = ns.apply(manifest)
        assert stored["metadata"]["annotations"]["touched"] == "gated"  # it was called again
        assert stored["spec"]["schedulerName"] == "second"
        assert stored["metadata"]["annotations"][PROFILE] == "first"
        assert gates(stored) == [DELAY]
        ns.eventually(lambda: "changed" in ns.releases())


def test_reinvocation_restores_edits_removed_by_other_webhook(
    serve: Serve, plain_cluster: ControlPlane
) -> None:
    ns = serve({})
    with other_webhook(plain_cluster, "z-undo", undo_edits):
        manifest = pod("undone", {"delay": "3600", "type": "space"})
        ns.eventually(lambda: "undone" in annotations_of(ns.apply(manifest, dry_run=True)[0]))
        (stored,) = ns.apply(manifest)

    assert gates(stored) == [DELAY]
    (term,) = stored["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert [requirement["key"] for requirement in term["matchExpressions"]] == [
        "theirs",
        "kubernetes.io/role",
    ]
    assert annotations_of(stored)[PROFILE] == "*"


def undo_edits(manifest: Object) -> list[Object]:
    """Replace a pod's required node affinity and remove its gates, once."""
    if "undone" in annotations_of(manifest):
        return []
    term = {"matchExpressions": [{"key": "theirs", "operator": "Exists"}]}
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}
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


def add_rule_annotation(manifest: Object) -> list[Object]:
    """Annotate every pod so that a placement rule matches it."""
    annotations = {**annotations_of(manifest), "type": "space"}
    return [{"op": "add", "path": "/metadata/annotations", "value": annotations}]


def annotations_of(manifest: Object) -> dict[str, str]:
    return dict(manifest["metadata"].get("annotations", {}))


def note_gates(manifest: Object) -> list[Object]:
    """Annotate a pod with whether it was gated when this webhook was called."""
    value = "gated" if manifest["spec"].get("schedulingGates") else "free"
    return [{"op": "add", "path": "/metadata/annotations/touched", "value": value}]


def test_example_plugin_holds_pods_until_sign_off(serve: Serve, tmp_path: Path) -> None:
    environment = install_plugin(ROOT / "examples" / "plugin", tmp_path / "plugins")
    ns = serve({"plugins": {"enabled": [{"name": "signoff"}]}}, environment=environment)
    annotations = {"example.com/needs-signoff": "true"}
    (waiting_pod, both_pod) = ns.apply(
        pod("waits", annotations), pod("both", {**annotations, "delay": "1"})
    )
    assert gates(waiting_pod) == [SIGNOFF]
    assert gates(both_pod) == [DELAY, SIGNOFF]
    ns.kubectl("annotate", "pod", "waits", "both", "example.com/signed-off-by=ada")
    ns.eventually(lambda: ns.releases().keys() == {"waits", "both"})
    nonsense = {"example.com/needs-signoff": "maybe"}
    assert 'use "true", or remove the annotation' in ns.refusal(pod("nonsense", nonsense))


def test_example_plugin_tests_pass(tmp_path: Path) -> None:
    environment = install_plugin(ROOT / "examples" / "plugin", tmp_path / "plugins")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_signoff.py"],
        cwd=ROOT / "examples" / "plugin",
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_plugin_uses_its_handle_and_cannot_block_a_due_pod(serve: Serve, tmp_path: Path) -> None:
    environment = install_plugin(ROOT / "tests" / "e2e" / "janitor", tmp_path / "plugins")
    ns = serve({"plugins": {"enabled": [{"name": "janitor"}]}}, environment=environment)
    (stored,) = ns.apply(pod("waits", {"janitor": "wait"}))
    annotations = stored["metadata"]["annotations"]
    namespace = json.loads(ns.kubectl("get", "namespace", ns.namespace, "-o", "json"))
    assert gates(stored) == ["holdfast.dev/janitor"]
    assert annotations["janitor-saw"] == namespace["metadata"]["uid"]
    message = "held pods are available in the controller only"
    assert annotations["janitor-missed"] == message
    ns.apply(
        pod("frees", {"janitor": "free", "delay": "1"}),
        pod("fails", {"janitor": "fail", "delay": "1"}),
    )
    ns.eventually(lambda: ns.releases().keys() == {"waits", "frees", "fails"})

    def event_note(name: str, reason: str) -> str:
        return ns.eventually(lambda: ns.notes(name).get(reason, ""))

    assert event_note("frees", "Freed") == "those that waited may go"
    assert event_note("frees", "Released").endswith(": too late to say no")
    assert event_note("fails", "Released").endswith("failed in release: RuntimeError: as asked")
    series = 'count{extension_point="release",plugin="janitor",profile="*",status="%s"} 1.0'
    for status in ("Reject", "Error"):
        assert [line for line in ns.controller_metrics() if line.endswith(series % status)]


def test_failing_plugin_rejects_only_its_pods_and_is_counted(serve: Serve, tmp_path: Path) -> None:
    environment = install_plugin(ROOT / "tests" / "e2e" / "misbehaving", tmp_path / "plugins")
    ns = serve({"plugins": {"enabled": [{"name": "misbehaving"}]}}, environment=environment)
    for how in ("raise", "rubbish", "edits"):
        assert "failed calling webhook" in ns.refusal(pod("misbehaves", {"misbehave": how}))
    assert gates(ns.apply(pod("other", {"delay": "60"}))[0]) == [DELAY]
    labels = 'plugin="misbehaving",profile="*",status="Error"'
    lines = [line for line in ns.metrics() if "_count" in line and labels in line]
    assert [line.rpartition(" ")[2] for line in lines] == ["3.0"]


def test_sleeping_plugin_times_out_without_blocking_other_pods(
    serve: Serve, tmp_path: Path
) -> None:
    environment = install_plugin(ROOT / "tests" / "e2e" / "misbehaving", tmp_path / "plugins")
    ns = serve({"plugins": {"enabled": [{"name": "misbehaving"}]}}, environment=environment)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(ns.refusal, pod("sleeps", {"misbehave": "sleep"}))
        served = 0
        while not future.done():
            ns.apply(pod(f"served-{served}", {"delay": "60"}))
            served += 1
        assert "a plugin did not finish the review within" in future.result()
    assert served > 1
    series = 'holdfast_plugin_deadlines_exceeded_total{plugin="misbehaving"}'
    assert [line.rpartition(" ")[2] for line in ns.metrics() if line.startswith(series)] == ["1.0"]
