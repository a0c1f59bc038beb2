"""The commands for people, against the real control plane."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import resource
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.world import World, gates, pod

GATE = "holdfast.dev/delay"
LIST_SECONDS = 3.0
"""In which 10,000 held pods have to be listed; at work, so that a busy machine does not decide."""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CRDS = [
    {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.kubevirt.io"},
        "spec": {
            "group": "kubevirt.io",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "shortNames": [short]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "x-kubernetes-preserve-unknown-fields": True,
                        }
                    },
                }
            ],
        },
    }
    for kind, plural, short in (
        ("VirtualMachine", "virtualmachines", "vm"),
        ("VirtualMachineInstance", "virtualmachineinstances", "vmi"),
    )
]


class Cli:
    """Runs `holdfast` as a person would, with a kubeconfig."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._kubeconfig = kubeconfig
        self._namespace = namespace

    def run(
        self, *arguments: str, stdin: str | None = None, module: str = "webhook"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command into pipes."""
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            check=False,
            env=self._environment(),
            timeout=120,
        )

    def here(self, *arguments: str, stdin: str | None = None) -> str:
        """Run a command in the namespace, which has to succeed, and return its output."""
        done = self.run(*arguments, "-n", self._namespace, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *arguments: str, stdin: str | None = None) -> str:
        """Run a command in the namespace, which has to fail with one line, and return it."""
        done = self.run(*arguments, "-n", self._namespace, stdin=stdin)
        assert done.returncode == 1, (done.stdout, done.stderr)
        (line,) = done.stderr.splitlines()
        assert line.startswith("holdfast: ")
        return line

    def terminal(self, *arguments: str, columns: int = 80) -> Iterator[str]:
        """Run a command on a terminal, and give what it writes, as it comes."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-m", "webhook", *arguments, "-n", self._namespace],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**self._environment(), "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(theirs)
        try:
            while select.select([ours], [], [], 60)[0]:
                try:
                    read = os.read(ours, 1 << 16)
                except OSError:  # Linux' end of file on a terminal
                    return
                yield read.decode(errors="replace")
        finally:
            process.terminate()
            process.wait()
            os.close(ours)

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "LINES"}}
        return {**kept, "KUBECONFIG": str(self._kubeconfig)}


@pytest.fixture
def cli(world: World) -> Cli:
    return Cli(world.plane.kubeconfig, world.namespace)


def user(world: World, name: str, folder: Path, *roles: str) -> Cli:
    """Give a new user of the namespace these ClusterRoles there, and the command as that user."""
    world.kubectl("create", "serviceaccount", name)
    for role in roles:
        account = f"--serviceaccount={world.namespace}:{name}"
        world.kubectl("create", "rolebinding", f"{name}-{role}", f"--clusterrole={role}", account)
    token = world.kubectl("create", "token", name).strip()
    config = yaml.safe_load(world.plane.kubeconfig.read_text())
    config["users"] = [{"name": one["name"], "user": {"token": token}} for one in config["users"]]
    path = folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return Cli(path, world.namespace)


def hold(world: World, *names: str, delay: str = "1h", **labels: str) -> None:
    for name in names:
        manifest = pod(name, {"delay": delay})
        manifest["metadata"]["labels"] = labels
        world.apply(manifest)


# --- list ----------------------------------------------------------------------------------------


def test_list(world: World, cli: Cli) -> None:
    hold(world, "held-1", app="web")
    hold(world, "held-2")
    world.apply(pod("free"))
    head, *rows = cli.here("list").splitlines()
    assert head.split() == ["NAME", "HELD", "BY", "SINCE", "LEFT", "OWNER"]
    assert sorted(row.split()[0] for row in rows) == ["held-1", "held-2"]
    assert all("delay=1h" in row for row in rows)
    (item,) = json.loads(cli.here("list", "-o", "json", "-l", "app=web"))["items"]
    assert (item["name"], item["heldBy"], item["gates"]) == ("held-1", "delay=1h", [GATE])
    assert 3_500 < item["secondsLeft"] <= 3_600
    everywhere = yaml.safe_load(cli.run("list", "-A", "-o", "yaml").stdout)
    assert world.namespace in {one["namespace"] for one in everywhere["items"]}


def test_what_is_written_into_a_pipe_has_no_colours_and_is_not_cut(world: World, cli: Cli) -> None:
    name = "a-pod-with-a-very-long-name-" + "x" * 100
    hold(world, name)
    output = cli.here("list", "-o", "wide")
    assert name in output
    assert "\x1b" not in output


def test_a_terminal_of_80_columns_is_not_overrun(world: World, cli: Cli) -> None:
    hold(world, "a-pod-with-a-very-long-name-" + "x" * 100)
    seen = "".join(cli.terminal("list", "-o", "wide"))
    assert "\x1b[1m" in seen
    lines = CONTROL.sub("", seen).replace("\r", "").splitlines()
    assert [len(line) for line in lines if len(line) > 80] == []
    assert "…" in lines[1]


def test_no_held_pod(cli: Cli, world: World) -> None:
    done = cli.run("list", "-n", world.namespace)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"No pod is held in namespace {world.namespace}.\n"
    assert json.loads(cli.here("list", "-o", "json"))["items"] == []


def test_watch_shows_what_becomes_of_a_pod(world: World, cli: Cli) -> None:
    hold(world, "first")
    seen = ""
    for part in cli.terminal("list", "--watch"):
        seen += part
        if "second" in seen:
            break
        if "first" in seen and "second" not in world.kubectl("get", "pods"):
            hold(world, "second")
    assert "second" in seen


def test_kubectl_finds_it_as_a_plugin(world: World) -> None:
    hold(world, "plugged")
    environment = {**os.environ, "KUBECONFIG": str(world.plane.kubeconfig)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    command = [str(world.plane.bin / "kubectl"), "holdfast", "list", "-n", world.namespace]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "plugged" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(900)  # on a busy machine, storing ten thousand pods takes minutes
def test_ten_thousand_held_pods_are_listed_whole(
    bare_world: Callable[[], World], capsys: pytest.CaptureFixture[str]
) -> None:
    world = bare_world()
    gated = [{"name": GATE}]
    world.create_pods(
        pod(f"waits-{number}", {"delay": f"{36_000 + number}"}, schedulingGates=gated)
        for number in range(10_000)
    )
    cli = Cli(world.plane.kubeconfig, world.namespace)

    def listed(output: str) -> str:
        began, worked = time.monotonic(), children_seconds()
        if output == "terminal":
            text = CONTROL.sub("", "".join(cli.terminal("list")))
        else:
            text = cli.here("list", "-o", output)
        took, worked = time.monotonic() - began, children_seconds() - worked
        with capsys.disabled():
            print(f"\n10,000 held pods, {output}: {took:.2f} s, {worked:.2f} s of them at work")
        assert output == "yaml" or worked < LIST_SECONDS  # half of that is the YAML writer's
        return text

    for output in ("table", "wide", "terminal"):
        head, first, *others = listed(output).splitlines()
        assert head.split()[:3] == ["NAME", "HELD", "BY"]
        assert first.split()[0] == "waits-0"
        assert len(others) == 9_999
    for output in ("json", "yaml"):
        items = yaml.load(listed(output), Loader=yaml.CSafeLoader)["items"]
        assert len({item["name"] for item in items}) == 10_000


def children_seconds() -> float:
    """Processor seconds of the commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# --- explain -------------------------------------------------------------------------------------


def test_explain_a_held_pod(world: World, cli: Cli) -> None:
    hold(world, "held")
    output = cli.here("explain", "held")
    assert "is held until" in output
    assert 'delay: "1h": 1h from its creation' in output
    assert "delay: holds it by the gate holdfast.dev/delay" in output
    assert f"holdfast release held -n {world.namespace}" in output


def test_explain_why_it_waits_on(world: World, cli: Cli) -> None:
    fields = {"schedulingGates": [{"name": "example.com/quota"}]}
    selector = {"kubernetes.io/hostname": "node-9"}
    world.apply(pod("tied", {"delay": "1h"}, nodeSelector=selector, **fields))
    output = cli.here("explain", "tied")
    assert "example.com/quota: somebody else's" in output
    assert "it has to run on node-9: there is no such node" in output


def test_explain_what_the_scheduler_says(world: World, cli: Cli) -> None:
    world.apply(pod("nowhere", nodeSelector={"disk": "fast"}))
    world.eventually(lambda: "Unschedulable" in cli.here("explain", "nowhere"))
    assert "the scheduler says: Unschedulable: 0/3 nodes" in cli.here("explain", "nowhere")


def test_explain_a_pod_that_is_not_there(world: World, cli: Cli) -> None:
    assert cli.refused("explain", "none") == (
        f"holdfast: there is no pod {world.namespace}/none; "
        f"see kubectl get pods -n {world.namespace}"
    )


# --- preview -------------------------------------------------------------------------------------


def manifest(delay: str) -> str:
    template = {
        "metadata": {"labels": {"app": "web"}, "annotations": {"delay": delay}},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}
    return yaml.safe_dump_all([{**deployment, "spec": spec}, pod("free")])


@pytest.mark.parametrize(
    "live", [pytest.param([], id="offline"), pytest.param(["--cluster"], id="live")]
)
def test_preview(world: World, cli: Cli, live: list[str]) -> None:
    output = cli.here("preview", "-f", "-", *live, stdin=manifest("15"))
    assert f"Deployment {world.namespace}/web: changed" in output
    assert "+    holdfast.dev/held: delay=15s" in output
    assert "+  - name: holdfast.dev/delay" in output
    done = cli.run("preview", "-f", "-", "-n", world.namespace, *live, stdin=manifest("soon"))
    assert done.returncode == 1
    assert "web: refused" in done.stdout
    assert 'annotation delay: "soon" is no duration' in done.stdout
    assert done.stderr == "holdfast: 1 would be refused; the reasons are above\n"
    assert world.all("deployments") == []
    assert world.all("pods") == []


def test_offline_preview_agrees_with_the_cluster(world: World, cli: Cli) -> None:
    text = yaml.safe_dump(pod("kind", {"type": "space", "delay": "1m"}))
    (made,) = world.apply(pod("kind", {"type": "space", "delay": "1m"}))
    offline = cli.here("preview", "-f", "-", stdin=text)
    for key, value in made["metadata"]["annotations"].items():
        if key in {"holdfast.dev/held", "holdfast.dev/profile"}:
            assert re.search(rf"^  \+    {key}: '?{re.escape(value)}'?$", offline, re.MULTILINE)
    assert gates(made) == [GATE]
    assert "+          - key: kubernetes.io/role" in offline


def test_preview_needs_no_cluster(tmp_path: Path) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text(manifest("15"))
    cli = Cli(tmp_path / "none", "default")
    done = cli.run("preview", str(path), "-f", str(path))
    assert done.returncode == 0
    assert done.stdout.count(f"{path}: Deployment default/web: changed") == 2


@pytest.mark.parametrize("text", ["", "kind: Service", "a: b"])
def test_preview_of_what_has_no_pods(text: str, tmp_path: Path) -> None:
    done = Cli(tmp_path / "none", "default").run("preview", "-f", "-", stdin=text)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "No pod and no template of pods is in what was given.\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("a: [", "is no YAML", id="no YAML"),
        pytest.param(None, "cannot be read (No such file or directory)", id="no file"),
    ],
)
def test_preview_of_what_cannot_be_read(text: str | None, told: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    if text is not None:
        path.write_text(text)
    assert told in Cli(tmp_path / "none", "default").refused("preview", "-f", str(path))


# --- release -------------------------------------------------------------------------------------


def test_release(world: World, cli: Cli) -> None:
    fields = {"schedulingGates": [{"name": "example.com/quota"}]}
    world.apply(pod("one", {"delay": "1h"}, **fields))
    assert cli.here("release", "one") == f"pod {world.namespace}/one released\n"
    assert gates(world.get("pod", "one")) == ["example.com/quota"]
    assert "is not held by Holdfast; holdfast explain one" in cli.refused("release", "one")
    assert f"there is no pod {world.namespace}/two" in cli.refused("release", "two")


def test_many_are_confirmed(world: World, cli: Cli) -> None:
    hold(world, "a", "b", app="web")
    hold(world, "c")
    told = cli.refused("release", "-l", "app=web")
    assert told == "holdfast: 2 pods are selected and nobody can confirm; give --yes"
    assert gates(world.get("pod", "a")) == [GATE]
    assert cli.here("release", "-l", "app=web", "--yes").count("released") == 2
    assert gates(world.get("pod", "b")) == []
    assert gates(world.get("pod", "c")) == [GATE]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["release"], id="nothing named"),
        pytest.param(["release", "a", "-l", "b=c"], id="named and selected"),
        pytest.param(["release", "a", "-A"], id="in all namespaces"),
        pytest.param(["list", "--watch", "-o", "json"], id="watched for a program"),
        pytest.param(["preview"], id="no file"),
    ],
)
def test_a_wrong_use_is_exit_status_2(cli: Cli, arguments: list[str]) -> None:
    done = cli.run(*arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("Error: ")


def test_who_lacks_the_verb_is_told_so(world: World, tmp_path: Path) -> None:
    hold(world, "held")
    editor = user(world, "editor", tmp_path, "edit")
    assert editor.refused("release", "held") == (
        f"holdfast: you may not release pods in namespace {world.namespace}: the verb 'release' on "
        "holds.holdfast.dev is missing; ask an admin to bind the ClusterRole holdfast-releaser"
    )
    assert gates(world.get("pod", "held")) == [GATE]


def test_who_has_the_verb_releases(world: World, tmp_path: Path) -> None:
    hold(world, "held")
    role = f"releaser-{world.namespace}"
    world.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role},
            "rules": [
                {"apiGroups": ["holdfast.dev"], "resources": ["holds"], "verbs": ["release"]}
            ],
        }
    )
    releaser = user(world, "releaser", tmp_path, "edit", role)
    assert "released" in releaser.here("release", "held")


# --- a user without rights, no cluster, an old token --------------------------------------------


@pytest.mark.parametrize("arguments", [["list"], ["explain", "held"], ["release", "held"]], ids=str)
def test_a_user_without_rights_is_told_what_is_missing(
    world: World, tmp_path: Path, arguments: list[str]
) -> None:
    told = user(world, "nobody", tmp_path).refused(*arguments)
    assert "cannot " in told
    assert 'resource "pods"' in told
    assert told.endswith("ask an admin for that right, or name a namespace (-n) where you have it")


def test_an_unreachable_cluster(world: World, tmp_path: Path) -> None:
    config = yaml.safe_load(world.plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    told = Cli(path, "default").refused("list")
    assert "https://127.0.0.1:1 does not answer" in told
    assert told.endswith("check that the cluster runs, and --kubeconfig, --context, KUBECONFIG")
    done = Cli(path, "default").run("doctor")
    assert done.returncode == 1
    assert "does not answer" in done.stderr


def test_the_contexts_namespace_is_meant_where_none_is_named(world: World, tmp_path: Path) -> None:
    hold(world, "held")
    config = yaml.safe_load(world.plane.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = world.namespace
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    assert "held" in Cli(path, "").run("list").stdout
    name = config["contexts"][0]["name"]
    assert "held" in Cli(path, "").run("list", "--context", name).stdout


# --- doctor and version --------------------------------------------------------------------------


def levels(output: str) -> dict[str, str]:
    found = re.findall(r"^(OK|WARNING|PROBLEM|UNKNOWN) +([\w ]+):", output, re.MULTILINE)
    return {about: level for level, about in found}


def test_doctor_on_a_cluster_with_holdfast(cli: Cli) -> None:
    found = levels(cli.run("doctor").stdout)
    well = ("API server", "clock", "webhooks", "caBundle", "server", "certificate")
    assert {about: found[about] for about in well} == dict.fromkeys(well, "OK")


def test_doctor_on_an_empty_cluster(bare_world: Callable[[], World]) -> None:
    world = bare_world()
    cli = Cli(world.plane.kubeconfig, world.namespace)
    done = cli.run("doctor")
    found = levels(done.stdout)
    assert done.returncode == 1
    assert (found["webhooks"], found["leader"]) == ("PROBLEM", "WARNING")
    assert found["held pods"] == "OK"
    assert "no mutating and no validating webhook is registered" in done.stdout
    gated = [{"name": GATE}]
    world.apply(pod("stuck", {"delay": "1"}, schedulingGates=gated))
    overdue = world.eventually(
        lambda: re.search("1 of 1 is overdue: .*stuck", cli.run("doctor").stdout)
    )
    assert overdue is not None
    assert levels(cli.run("doctor").stdout)["leader"] == "PROBLEM"
    assert "is held still" in cli.here("explain", "stuck")
    assert cli.run("list", "-A").stdout.splitlines()[1].split()[4] == "overdue"


def test_doctor_for_a_user_without_rights(world: World, tmp_path: Path) -> None:
    done = user(world, "patient", tmp_path).run("doctor")
    found = levels(done.stdout)
    assert found["API server"] == "OK"
    assert found["webhooks"] == found["leader"] == found["held pods"] == "UNKNOWN"
    assert done.returncode == 0


def test_version(cli: Cli) -> None:
    assert json.loads(cli.run("version", "-o", "json").stdout)["kubernetes"].startswith("v1.")
    assert cli.run("version", "--client").stdout.startswith("holdfast ")


# --- uninstall -----------------------------------------------------------------------------------


def test_uninstall_says_who_else_holds_pods(bare_world: Callable[[], World]) -> None:
    world = bare_world()
    cli = Cli(world.plane.kubeconfig, world.namespace)
    arguments = ("uninstall", "--release", "now", "--yes")
    assert cli.run(*arguments).stdout == "Holdfast is uninstalled\n"
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    world.apply({**kind, "metadata": {"name": "holdfast-dev"}})
    told = cli.run(*arguments).stdout.splitlines()
    assert told[0] == "Holdfast is uninstalled"
    assert "holdfast dev serves this cluster; end it with Ctrl-C" in told[1]


# --- sticky --------------------------------------------------------------------------------------


def test_sticky(bare_world: Callable[[], World]) -> None:
    world = bare_world()
    cli = Cli(world.plane.kubeconfig, world.namespace)
    for asked in (("list",), ("show", "db")):
        assert "this cluster has no KubeVirt" in cli.refused("sticky", *asked)
    world.apply(*CRDS)
    world.kubectl("wait", "--for=condition=Established", "crd", "--all")
    made: Any = world.create(
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "db"}}
    )
    assert cli.here("sticky", "list").splitlines()[1].split() == ["db", "-", "yes", "-"]
    assert "there is no node node-9" in cli.refused("sticky", "set", "db", "node-9")
    assert "there is no VM" in cli.refused("sticky", "show", "none")
    world.kubectl("cordon", "node-2")
    output = cli.here("sticky", "set", "db", "node-2")
    assert "comes back to node-2 at its next start" in output
    assert "warning: node-2: it is cordoned" in output
    annotations = world.get("virtualmachine", "db")["metadata"]["annotations"]
    assert annotations == {
        "holdfast.dev/sticky-node": "node-2",
        "holdfast.dev/sticky-node-uid": made["metadata"]["uid"],
    }
    assert "comes back to node-2" in cli.here("sticky", "show", "db")
    (item,) = json.loads(cli.here("sticky", "list", "-o", "json"))["items"]
    assert (item["node"], item["runsOn"]) == ("node-2", None)
    assert "has no node recorded now" in cli.here("sticky", "clear", "db")
    recorded = {"holdfast.dev/sticky-node-uid": made["metadata"]["uid"]}
    assert world.get("virtualmachine", "db")["metadata"]["annotations"] == recorded


STICKY_BY_PROFILE = """
apiVersion: holdfast.dev/v1alpha1
kind: HoldfastConfiguration
profiles:
- schedulerName: gold
  plugins: {disabled: [{name: sticky}]}
  pluginConfig: [{name: sticky, args: {nodeAnnotation: example.com/of-gold}}]
- schedulerName: "*"
  pluginConfig: [{name: sticky, args: {nodeAnnotation: example.com/node, namespaces: [NAME]}}]
"""


def test_sticky_goes_by_what_the_cluster_goes_by(
    bare_world: Callable[[], World], tmp_path: Path
) -> None:
    world = bare_world()
    cli = Cli(world.plane.kubeconfig, world.namespace)
    world.apply(*CRDS)
    world.kubectl("wait", "--for=condition=Established", "crd", "--all")
    kind = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine"}
    world.create({**kind, "metadata": {"name": "db"}})
    gold = {"template": {"spec": {"schedulerName": "gold"}}}
    world.create({**kind, "metadata": {"name": "other"}, "spec": gold})
    registered = {
        "name": "templates.holdfast.dev",
        "clientConfig": {"url": "https://127.0.0.1:1/validate"},
        "rules": [],
        "matchConditions": [{"name": "asks", "expression": "'example.com/node' == 'x'"}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    world.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "holdfast", "labels": {"app.kubernetes.io/name": "holdfast"}},
            "webhooks": [registered],
        }
    )
    unheard = "does not look at annotation holdfast.dev/sticky-node of VMs in this cluster; give"
    for change in (["set", "db", "node-2"], ["clear", "db"]):
        assert unheard in cli.refused("sticky", *change)
    assert "annotations" not in world.get("virtualmachine", "db")["metadata"]
    assert unheard in cli.run("sticky", "list", "-n", world.namespace).stderr
    assert unheard in cli.run("sticky", "show", "db", "-n", world.namespace).stderr

    configuration = tmp_path / "holdfast.yaml"
    configuration.write_text(STICKY_BY_PROFILE.replace("NAME", world.namespace))
    by = ("--config", str(configuration))
    assert "comes back to node-2" in cli.here("sticky", "set", "db", "node-2", *by)
    annotations = world.get("virtualmachine", "db")["metadata"]["annotations"]
    assert annotations["example.com/node"] == "node-2"
    listed = cli.run("sticky", "list", "-n", world.namespace, *by)
    assert listed.stderr == ""
    assert [line.split()[:3] for line in listed.stdout.splitlines()[1:]] == [
        ["db", "node-2", "yes"],
        ["other", "-", "no"],
    ]
    not_run = "by this configuration the plugin sticky does not run for its pods"
    assert not_run in cli.refused("sticky", "set", "other", "node-2", *by)
    assert not_run in cli.here("sticky", "show", "other", *by)

    configuration.write_text(STICKY_BY_PROFILE.replace("NAME", "elsewhere"))
    told = cli.here("sticky", "set", "db", "node-1", *by)
    assert "node-1 is recorded for VM" in told
    assert "which does not stick: namespace" in told
    configuration.write_text(STICKY_BY_PROFILE.replace("nodeAnnotation", "nodeAnotation"))
    refused = cli.refused("sticky", "list", *by)
    assert "there is no field 'nodeAnotation' here; did you mean nodeAnnotation" in refused
