"""The user-facing commands, against a real control plane."""

import fcntl
import itertools
import json
import os
import pty
import re
import resource
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.launcher import ControlPlane
from holdfast.webhook.model import kubevirt
from tests.e2e import short_intervals
from tests.e2e.namespace import HOSTNAME, Namespace, Object, definition, gates, pod, volume

GATE = "holdfast.dev/delay"
LIST_SECONDS = 3.0
"""Limit for listing 10,000 held pods, in CPU seconds: a busy machine does not affect these."""
ROOT = Path(__file__).parents[2]
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CRDS = [
    definition("kubevirt.io", "v1", "VirtualMachine", "vm"),
    definition("kubevirt.io", "v1", "VirtualMachineInstance", "vmi"),
]
VM: Object = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine"}
_numbers = itertools.count(1)


class Cli:
    """Runs `holdfast` as a user would, with a kubeconfig."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._kubeconfig = kubeconfig
        self._namespace = namespace

    def run(
        self, *arguments: str, stdin: str | None = None, module: str = "webhook"
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            check=False,
            env=self._environment(),
            timeout=120,
        )

    def output(self, *arguments: str, stdin: str | None = None) -> str:
        """Run a command in the namespace, check that it succeeds, and return its output."""
        done = self.run(*arguments, "-n", self._namespace, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def error(self, *arguments: str, stdin: str | None = None) -> str:
        """Run a command in the namespace, check that it fails, and return its one-line error."""
        done = self.run(*arguments, "-n", self._namespace, stdin=stdin)
        assert done.returncode == 1, (done.stdout, done.stderr)
        (line,) = (each for each in done.stderr.splitlines() if not each.startswith("note: "))
        assert line.startswith(("Error: ", "Error from server ("))
        return line

    def terminal(self, *arguments: str, columns: int = 80, **variables: str) -> Iterator[str]:
        """Run a command on a terminal, and yield its output as it arrives."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.webhook", *arguments, "-n", self._namespace],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**self._environment(), "TERM": "xterm-256color", **variables},
            start_new_session=True,
        )
        os.close(theirs)
        try:
            while select.select([ours], [], [], 60)[0]:
                try:
                    read = os.read(ours, 1 << 16)
                except OSError:  # end of file on a Linux terminal
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
def cli(ns: Namespace) -> Cli:
    return Cli(ns.plane.kubeconfig, ns.namespace)


def user(ns: Namespace, name: str, folder: Path, *roles: str) -> Cli:
    """Create a ServiceAccount with these ClusterRoles in the namespace, and return its Cli."""
    ns.kubectl("create", "serviceaccount", name)
    for role in roles:
        account = f"--serviceaccount={ns.namespace}:{name}"
        ns.kubectl("create", "rolebinding", f"{name}-{role}", f"--clusterrole={role}", account)
    token = ns.kubectl("create", "token", name).strip()
    config = yaml.safe_load(ns.plane.kubeconfig.read_text())
    config["users"] = [{"name": one["name"], "user": {"token": token}} for one in config["users"]]
    path = folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return Cli(path, ns.namespace)


@pytest.fixture(scope="module")
def bare_cluster() -> Iterator[ControlPlane]:
    """A cluster without Holdfast, shared by the tests of this module."""
    with ControlPlane(nodes=3) as running:
        yield running


@pytest.fixture
def bare(bare_cluster: ControlPlane) -> tuple[Namespace, Cli]:
    """A new namespace in that cluster, and a Cli for it."""
    ns = Namespace.create_new(bare_cluster, f"bare-{next(_numbers)}")
    return ns, Cli(bare_cluster.kubeconfig, ns.namespace)


def hold(ns: Namespace, *names: str, delay: str = "1h", **labels: str) -> None:
    for name in names:
        manifest = pod(name, {"delay": delay})
        manifest["metadata"]["labels"] = labels
        ns.apply(manifest)


# --- list ----------------------------------------------------------------------------------------


def test_list(ns: Namespace, cli: Cli) -> None:
    hold(ns, "held-1", app="web")
    hold(ns, "held-2")
    ns.apply(pod("free"))
    head, *rows = cli.output("list").splitlines()
    assert head.split() == ["NAME", "LEFT", "AGE", "OWNER", "HELD", "BY"]
    assert sorted(row.split()[0] for row in rows) == ["held-1", "held-2"]
    assert all("delay=1h" in row for row in rows)
    (item,) = json.loads(cli.output("list", "-o", "json", "-l", "app=web"))["items"]
    name = item["metadata"]["name"]
    assert (name, item["heldBy"], item["gates"]) == ("held-1", "delay=1h", [GATE])
    assert 3_500 < item["secondsLeft"] <= 3_600
    everywhere = yaml.safe_load(cli.run("list", "-A", "-o", "yaml").stdout)
    assert ns.namespace in {one["metadata"]["namespace"] for one in everywhere["items"]}


def test_deeply_nested_pod_breaks_neither_controller_nor_commands(ns: Namespace, cli: Cli) -> None:
    """The API server accepts thousands of levels of managedFields from any user."""
    fields = '{"f:a":' * 5_000 + "{}" + "}" * 5_000
    entry = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsV1": "DEEP"}
    deep = pod("deep", {}, schedulingGates=[{"name": "example.com/gate"}])
    deep["metadata"]["managedFields"] = [entry | {"fieldsType": "FieldsV1"}]
    ns.kubectl("create", "-f", "-", stdin=json.dumps(deep).replace('"DEEP"', fields))
    raw = ns.kubectl("get", "--raw", f"/api/v1/namespaces/{ns.namespace}/pods/deep")
    assert fields in raw

    hold(ns, "due", delay="2s")
    ns.eventually(lambda: "due" in ns.releases())
    hold(ns, "held")
    assert "held" in cli.output("list")
    assert "example.com/gate" in cli.output("explain", "deep")
    cli.output("release", "held")


def test_piped_output_is_neither_coloured_nor_truncated(ns: Namespace, cli: Cli) -> None:
    name = "a-pod-with-a-very-long-name-" + "x" * 100
    hold(ns, name)
    output = cli.output("list", "-o", "wide")
    assert name in output
    assert "\x1b" not in output


def test_narrow_terminal_does_not_truncate_cells(ns: Namespace, cli: Cli) -> None:
    hold(ns, "a-pod-with-a-long-name-" + "x" * 20)
    (narrow, wide) = (
        re.sub(r"(?<=\s)([0-9]+[hms])+(?=\s)", "", CONTROL.sub("", "".join(shown)))
        for shown in (cli.terminal("list", columns=columns) for columns in (40, 200))
    )
    assert narrow.split()[:9] == wide.split()[:9]
    assert narrow.split()[8] == "delay=1h"
    assert "…" not in narrow


def test_no_color_disables_escape_sequences(ns: Namespace, cli: Cli) -> None:
    hold(ns, "held")
    for asked in (("list",), ("explain", "held"), ("doctor",)):
        seen = "".join(cli.terminal(*asked, NO_COLOR="1"))
        assert "\x1b" not in seen
        assert seen.count("\n") > 1


def test_global_flags_work_before_and_after_the_command(ns: Namespace, cli: Cli) -> None:
    hold(ns, "held")
    for flags in (("-n", ns.namespace), ("--as=admin", "--as-group=system:masters", "-A")):
        for asked in (("list", *flags), (*flags, "list")):
            done = cli.run(*asked)
            assert "held" in done.stdout, done.stderr
    message = cli.run("list", "--as", "jane", "-n", ns.namespace).stderr
    assert 'User "jane" cannot list resource "pods"' in message
    name = "jsonpath={.items[*].metadata.name}"
    assert cli.output("list", "-v=6", "-o", name, "--request-timeout=1m") == "held"


def test_kubectl_completes_pod_names(ns: Namespace) -> None:
    hold(ns, "held-1")
    ns.apply(pod("free"))
    environment = {**os.environ, "KUBECONFIG": str(ns.plane.kubeconfig)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    for asked, expected in (("release", ["held-1"]), ("explain", ["free", "held-1"])):
        words = ["__complete", "holdfast", "-n", ns.namespace, asked, ""]
        done = subprocess.run(
            [str(ns.plane.bin / "kubectl"), *words],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        assert done.stdout.splitlines()[:-1] == expected


def test_list_without_held_pods(cli: Cli, ns: Namespace) -> None:
    done = cli.run("list", "-n", ns.namespace)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"No resources found in {ns.namespace} namespace.\n"
    assert json.loads(cli.output("list", "-o", "json"))["items"] == []


def test_list_shows_only_unmet_dependencies(ns: Namespace, cli: Cli) -> None:
    after = {"holdfast.dev/after": "pod/first:PodScheduled, job/none, service/none"}
    ns.apply(pod("first"), pod("web", after))
    waits = "after: waits for job/none:Complete, service/none:Ready\n"
    ns.eventually(lambda: cli.output("list", "-o", "wide").endswith(waits))


def test_watch_shows_changes(ns: Namespace, cli: Cli) -> None:
    hold(ns, "first")
    seen = ""
    for part in cli.terminal("list", "--watch"):
        seen += part
        if "second" in seen:
            break
        if "first" in seen and "second" not in ns.kubectl("get", "pods"):
            cli.output("release", "first")
            hold(ns, "second")
    assert "second" in seen
    assert re.search(r"first .* released ", seen)


def test_holdfast_runs_as_a_kubectl_plugin(ns: Namespace) -> None:
    hold(ns, "plugged")
    environment = {**os.environ, "KUBECONFIG": str(ns.plane.kubeconfig)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    command = [str(ns.plane.bin / "kubectl"), "holdfast", "list", "-n", ns.namespace]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "plugged" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)  # on a busy machine, storing ten thousand pods takes minutes
@pytest.mark.xdist_group("crowded")
def test_10000_held_pods_are_listed_completely(
    crowded: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = Cli(crowded.plane.kubeconfig, crowded.namespace)

    def listed(output: str) -> str:
        began, worked = time.monotonic(), children_seconds()
        if output == "terminal":
            text = CONTROL.sub("", "".join(cli.terminal("list")))
        else:
            text = cli.output("list", *(("-o", output) if output else ()))
        took, worked = time.monotonic() - began, children_seconds() - worked
        with capsys.disabled():
            figures = f"{took:.2f} s, {worked:.2f} s of CPU time"
            print(f"\n10,000 held pods, {output or 'default'}: {figures}")
        assert output == "yaml" or worked < LIST_SECONDS  # half of that is the YAML writer's
        return text

    for output in ("", "wide", "terminal"):
        head, first, *others = listed(output).splitlines()
        assert head.split()[:2] == ["NAME", "LEFT"]
        assert first.split()[0] == "waits-0"
        assert len(others) == 9_999
    for output in ("json", "yaml"):
        items = yaml.load(listed(output), Loader=yaml.CSafeLoader)["items"]
        assert len({item["metadata"]["name"] for item in items}) == 10_000


def children_seconds() -> float:
    """Return the CPU seconds of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# --- explain -------------------------------------------------------------------------------------


def test_explain_a_held_pod(ns: Namespace, cli: Cli) -> None:
    hold(ns, "held")
    output = cli.output("explain", "held")
    assert "is held until" in output
    assert 'delay: "1h": 1h from creation' in output
    assert "delay: adds scheduling gate holdfast.dev/delay" in output
    assert f"holdfast release held -n {ns.namespace}" in output


def test_explain_foreign_gate_and_unmet_node_selector(ns: Namespace, cli: Cli) -> None:
    fields = {"schedulingGates": [{"name": "example.com/quota"}]}
    selector = {"kubernetes.io/hostname": "node-9"}
    ns.apply(pod("tied", {"delay": "1h"}, nodeSelector=selector, **fields))
    output = cli.output("explain", "tied")
    assert "example.com/quota: another component's" in output
    assert "must run on a node labeled kubernetes.io/hostname=node-9: there is none" in output


def test_explain_shows_the_schedulers_message(ns: Namespace, cli: Cli) -> None:
    ns.apply(pod("nowhere", nodeSelector={"disk": "fast"}))
    ns.eventually(lambda: "Unschedulable" in cli.output("explain", "nowhere"))
    assert "scheduler: Unschedulable: 0/3 nodes" in cli.output("explain", "nowhere")


def test_explain_a_changed_template(ns: Namespace, cli: Cli) -> None:
    template: Any = {
        "metadata": {"labels": {"app": "web"}, "annotations": {"delay": "1h"}},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }
    made: Any = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template},
    }
    ns.apply(made)
    ns.eventually(lambda: ns.all("pods", "app=web"))
    template["metadata"]["annotations"] = {"delay": "5s"}
    ns.apply(made)
    advice = 'the template of StatefulSet web has changed; to apply delay "5s", delete the pod'
    assert advice in cli.output("explain", "web-0")


def test_explain_contradictory_requirements(ns: Namespace, cli: Cli) -> None:
    ns.apply(pod("torn", {"type": "space"}, nodeSelector={"kubernetes.io/role": "core"}))
    assert (
        'no node can meet "kubernetes.io/role In [core]" (nodeSelector) and '
        '"kubernetes.io/role In [edge]" (placement rule space)'
    ) in cli.output("explain", "torn")


def test_explain_a_volume_on_another_node(ns: Namespace, cli: Cli) -> None:
    there = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": ["node-2"]}]}
    ns.apply(*volume(f"disk-{ns.namespace}", "data", {"nodeSelectorTerms": [there]}))
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    ns.apply(pod("far", nodeSelector={HOSTNAME: "node-1"}, volumes=volumes))

    def said() -> str:
        status = ns.get("pod", "far")["status"]
        return str([one.get("message") for one in status.get("conditions", ())])

    ns.eventually(lambda: any(text in said() for text in kubevirt.OUT_OF_REACH))
    message = cli.output("explain", "far")
    assert (
        f'must run on node-1: the volume of claim data requires "{HOSTNAME} In [node-2]"' in message
    )


def test_explain_a_missing_pod(ns: Namespace, cli: Cli) -> None:
    assert cli.error("explain", "none") == (
        f"Error: pod {ns.namespace}/none not found; see kubectl get pods -n {ns.namespace}"
    )


# --- preview -------------------------------------------------------------------------------------


def manifest(delay: str) -> str:
    template: Any = {
        "metadata": {"labels": {"app": "web"}, "annotations": {"delay": delay}},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}
    return yaml.safe_dump_all([{**deployment, "spec": spec}, pod("free")])


@pytest.mark.parametrize(
    "live", [pytest.param([], id="offline"), pytest.param(["--dry-run=server"], id="live")]
)
def test_preview(ns: Namespace, cli: Cli, live: list[str]) -> None:
    output = cli.output("preview", "-f", "-", *live, stdin=manifest("15"))
    assert f"Deployment {ns.namespace}/web: changed" in output
    assert "+    holdfast.dev/held: delay=15s" in output
    assert "+  - name: holdfast.dev/delay" in output
    done = cli.run("preview", "-f", "-", "-n", ns.namespace, *live, stdin=manifest("soon"))
    assert done.returncode == 1
    assert "web: rejected" in done.stdout
    assert 'annotation delay: invalid value "soon"' in done.stdout
    assert done.stderr == "Error: 1 would be rejected; the reasons are above\n"
    assert ns.all("deployments") == []
    assert ns.all("pods") == []


def test_offline_preview_matches_the_cluster(ns: Namespace, cli: Cli) -> None:
    text = yaml.safe_dump(pod("kind", {"type": "space", "delay": "1m"}))
    (made,) = ns.apply(pod("kind", {"type": "space", "delay": "1m"}))
    offline = cli.output("preview", "-f", "-", stdin=text)
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


@pytest.mark.parametrize(
    ("text", "kinds"), [("", ""), ("kind: Service", "; the files have Service"), ("a: b", "")]
)
def test_preview_without_pods(text: str, kinds: str, tmp_path: Path) -> None:
    done = Cli(tmp_path / "none", "default").run("preview", "-f", "-", stdin=text)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"No pods and no pod templates found{kinds}.\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: [", "invalid YAML", id="invalid YAML"),
        pytest.param(None, "cannot be read (No such file or directory)", id="no file"),
    ],
)
def test_preview_of_an_unreadable_file(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    if text is not None:
        path.write_text(text)
    assert message in Cli(tmp_path / "none", "default").error("preview", "-f", str(path))


# --- release -------------------------------------------------------------------------------------


def test_release(ns: Namespace, cli: Cli) -> None:
    fields = {"schedulingGates": [{"name": "example.com/quota"}]}
    ns.apply(pod("one", {"delay": "1h"}, **fields))
    assert cli.output("release", "one") == f"pod {ns.namespace}/one released\n"
    assert gates(ns.get("pod", "one")) == ["example.com/quota"]
    assert "is not held: it is Pending and has gates of other" in cli.error("release", "one")
    assert f"pod {ns.namespace}/two not found" in cli.error("release", "two")


def test_workload_release_and_dry_runs(ns: Namespace, cli: Cli) -> None:
    ns.apply(*yaml.safe_load_all(manifest("1h")))
    held = ns.eventually(lambda: [one for one in ns.all("pods") if gates(one) == [GATE]])
    hold(ns, "foreign", app="web")  # not controlled by the Deployment
    name = held[0]["metadata"]["name"]
    assert f"Pod {ns.namespace}/{name}" in cli.output("describe", "deployment/web")
    for mode, suffix in (("client", "(dry run)"), ("server", "(server dry run)")):
        for asked in (("release", "deploy/web"), ("freeze", "--reason", "x")):
            assert suffix in cli.output(*asked, f"--dry-run={mode}")
    assert gates(ns.get("pod", name)) == [GATE]
    assert "annotations" not in ns.get("namespace", ns.namespace)["metadata"]
    cli.output("freeze", "--reason", "x")
    assert "(dry run)" in cli.output("thaw", "--dry-run=client")
    assert "holdfast.dev/freeze" in ns.get("namespace", ns.namespace)["metadata"]["annotations"]
    cli.output("thaw")
    done = cli.run("release", "deployment/web", "free", "none", "-n", ns.namespace)
    assert done.returncode == 1
    assert done.stdout == f"pod {ns.namespace}/{name} released\n"
    assert gates(ns.get("pod", "foreign")) == [GATE]
    unheld, missing, summary = done.stderr.splitlines()
    assert re.search(f"pod {ns.namespace}/free is not held: it is .* on node-", unheld)
    assert f"pod {ns.namespace}/none not found" in missing
    assert summary == "Error: 2 of 3 failed; the reasons are above"


def test_difference_from_installed_configuration_is_reported(
    ns: Namespace, cli: Cli, tmp_path: Path
) -> None:
    text = (ROOT / "manifests" / "base" / "holdfast.yaml").read_text()
    container = {"name": "main", "image": "busybox"}
    volumes = [{"name": "config", "configMap": {"name": "c"}}]
    labels = {"app": "none"}
    inner = {"containers": [container], "volumes": volumes}
    template = {"metadata": {"labels": labels}, "spec": inner}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    apps = {"apiVersion": "apps/v1", "kind": "Deployment"}
    ns.apply({**apps, "metadata": {"name": "holdfast-webhook"}, "spec": spec})
    data = {"holdfast.yaml": text}
    ns.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data})
    here = ("--holdfast-namespace", ns.namespace, "-n", ns.namespace)
    file = tmp_path / "holdfast.yaml"
    head = "apiVersion: holdfast.dev/v1beta1\nkind: HoldfastConfiguration\n"
    file.write_text(f"{head}profiles: [{{schedulerName: other}}]\n")
    assert "note" not in cli.run("list", *here).stderr
    message = cli.run("list", *here, "--config", str(file)).stderr
    assert f"differs from the installed configuration, ConfigMap {ns.namespace}/c" in message
    message = user(ns, "reader", tmp_path, "view").run("list", *here).stderr
    assert "note" not in message
    message = user(ns, "stranger", tmp_path).run("list", *here).stderr
    assert message.count("assuming the defaults") == 1


def test_early_gate_removal_by_others_is_reported(ns: Namespace, cli: Cli) -> None:
    hold(ns, "asked", "taken")
    cli.output("release", "asked")
    ns.kubectl("patch", "pod", "taken", "--type=merge", "-p", '{"spec": {"schedulingGates": null}}')

    def messages() -> dict[tuple[str, str], str]:
        found = {
            (one["reason"], one["involvedObject"]["name"]): one["message"]
            for one in ns.all("events")
            if one["reason"].startswith("Released")
        }
        return found if len(found) == 2 else {}

    found = ns.eventually(messages)
    left = r"(1h|59m\d+s) before its due time"  # 1h: released in the second of its creation
    assert re.search(f"{left} by someone else", found["ReleasedEarly", "taken"])
    assert re.search(f"{left} at a user's request", found["Released", "asked"])
    removed = "holdfast.dev/delay: removed by someone else before the due time"
    assert removed in cli.output("explain", "taken")
    assert removed not in cli.output("explain", "asked")


def test_releasing_many_pods_needs_confirmation(ns: Namespace, cli: Cli) -> None:
    hold(ns, "a", "b", app="web")
    hold(ns, "c")
    message = cli.error("release", "-l", "app=web")
    assert message == ("Error: cannot ask without a terminal (Release 2 pods now?); add --yes")
    assert gates(ns.get("pod", "a")) == [GATE]
    assert cli.output("release", "-l", "app=web", "--yes").count("released") == 2
    assert gates(ns.get("pod", "b")) == []
    assert gates(ns.get("pod", "c")) == [GATE]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["release"], id="no pod"),
        pytest.param(["release", "a", "-l", "b=c"], id="names and selector"),
        pytest.param(["release", "a", "-A"], id="in all namespaces"),
        pytest.param(["list", "-o", "table"], id="unknown format"),
        pytest.param(["preview"], id="no file"),
    ],
)
def test_usage_error_exits_with_status_2(cli: Cli, arguments: list[str]) -> None:
    done = cli.run(*arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("Error: ")


def test_user_without_the_release_verb_is_rejected(ns: Namespace, tmp_path: Path) -> None:
    hold(ns, "held")
    editor = user(ns, "editor", tmp_path, "edit")
    assert editor.error("release", "held") == (
        f"Error: you may not release pods in namespace {ns.namespace}: the verb 'release' on "
        "holds.holdfast.dev is missing; ask an admin to bind the ClusterRole holdfast-releaser"
    )
    assert gates(ns.get("pod", "held")) == [GATE]


def test_user_with_the_release_verb_releases(ns: Namespace, tmp_path: Path) -> None:
    hold(ns, "held")
    role = f"releaser-{ns.namespace}"
    ns.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role},
            "rules": [
                {"apiGroups": ["holdfast.dev"], "resources": ["holds"], "verbs": ["release"]}
            ],
        }
    )
    releaser = user(ns, "releaser", tmp_path, "edit", role)
    assert "released" in releaser.output("release", "held")


# --- missing rights, no cluster, kubeconfig contexts --------------------------------------------


@pytest.mark.parametrize("arguments", [["list"], ["explain", "held"], ["release", "held"]], ids=str)
def test_permission_error_names_the_missing_right(
    ns: Namespace, tmp_path: Path, arguments: list[str]
) -> None:
    message = user(ns, "nobody", tmp_path).error(*arguments)
    assert "cannot " in message
    assert 'resource "pods"' in message
    assert message.endswith(
        "ask an admin for this permission, or choose a namespace (-n) where you have it"
    )


def test_unreachable_cluster_is_reported(ns: Namespace, tmp_path: Path) -> None:
    config = yaml.safe_load(ns.plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    message = Cli(path, "default").error("list")
    assert "https://127.0.0.1:1 does not answer" in message
    assert message.endswith(
        "check that the cluster is running, and check --kubeconfig, --context and KUBECONFIG"
    )
    done = Cli(path, "default").run("doctor")
    assert done.returncode == 1
    assert "does not answer" in done.stderr


def test_namespace_defaults_to_that_of_the_context(ns: Namespace, tmp_path: Path) -> None:
    hold(ns, "held")
    config = yaml.safe_load(ns.plane.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = ns.namespace
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
    healthy = ("API server", "clock", "webhooks", "caBundle", "server", "certificate")
    assert {about: found[about] for about in healthy} == dict.fromkeys(healthy, "OK")


@pytest.mark.xdist_group("cli")
def test_doctor_on_an_empty_cluster(bare: tuple[Namespace, Cli]) -> None:
    ns, cli = bare
    done = cli.run("doctor")
    found = levels(done.stdout)
    assert done.returncode == 1
    assert (found["webhooks"], found["leader"]) == ("PROBLEM", "WARNING")
    assert found["held pods"] == "OK"
    assert "no mutating and no validating webhook is registered" in done.stdout
    assert "nothing is installed in namespace holdfast-system" in done.stdout
    for asked in (("list",), ("show", "db")):
        assert "this cluster has no KubeVirt" in cli.error("sticky", *asked)
    gated = [{"name": GATE}]
    ns.apply(pod("stuck", {"delay": "1"}, schedulingGates=gated))
    overdue = ns.eventually(
        lambda: re.search("1 of 1 is overdue: .*stuck", cli.run("doctor").stdout)
    )
    assert overdue is not None
    assert levels(cli.run("doctor").stdout)["leader"] == "PROBLEM"
    assert "is still held" in cli.output("explain", "stuck")
    assert cli.output("list").splitlines()[1].split()[1] == "overdue"
    ns.kubectl("delete", "pod", "stuck")


@pytest.mark.xdist_group("cli")
def test_doctor_suggests_how_to_free_a_stuck_vm_pod(bare: tuple[Namespace, Cli]) -> None:
    ns, cli = bare
    kept = pod("kept")
    kept["metadata"] |= {
        "labels": {"kubevirt.io": "virt-launcher"},
        "finalizers": ["holdfast.dev/sticky", "example.com/other"],
    }
    ns.apply(kept)
    ns.kubectl("delete", "pod", "kept", "--wait=false", "--grace-period=0")
    advice = re.compile("run: (kubectl .*)")
    found = ns.eventually(
        lambda: advice.findall(cli.run("doctor", module=short_intervals.__name__).stdout)
    )
    ns.kubectl(*shlex.split(found[0])[1:])
    assert ns.get("pod", "kept")["metadata"]["finalizers"] == ["example.com/other"]
    ns.kubectl("patch", "pod", "kept", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def test_doctor_for_a_user_without_rights(ns: Namespace, tmp_path: Path) -> None:
    done = user(ns, "patient", tmp_path).run("doctor")
    found = levels(done.stdout)
    assert found["API server"] == "OK"
    assert found["webhooks"] == found["leader"] == found["held pods"] == "UNKNOWN"
    assert list(found)[-1] == "summary"
    assert "checked, no problem: API server, clock\n" in done.stdout
    assert done.returncode == 0


def test_version(cli: Cli) -> None:
    assert json.loads(cli.run("version", "-o", "json").stdout)["kubernetes"].startswith("v1.")
    assert cli.run("version", "--client").stdout.startswith("holdfast ")


# --- uninstall -----------------------------------------------------------------------------------


@pytest.mark.xdist_group("cli")
def test_uninstall_reports_a_running_dev(bare: tuple[Namespace, Cli]) -> None:
    ns, cli = bare
    arguments = ("uninstall", "--release", "now", "--yes")
    assert cli.run(*arguments).stdout == "nothing was installed in holdfast-system\n"
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    ns.apply({**kind, "metadata": {"name": "holdfast-dev"}})
    lines = cli.run(*arguments).stdout.splitlines()
    assert lines[0] == "nothing was installed in holdfast-system"
    assert "holdfast dev still holds pods in this cluster; stop it with Ctrl-C" in lines[1]
    ns.kubectl("delete", "mutatingwebhookconfiguration", "holdfast-dev")


# --- sticky --------------------------------------------------------------------------------------


@pytest.mark.xdist_group("cli")
def test_sticky_set_show_list_and_clear(bare: tuple[Namespace, Cli]) -> None:
    ns, cli = bare
    ns.apply(*CRDS)
    ns.definitions_established()
    made: Any = ns.create({**VM, "metadata": {"name": "db"}})
    assert cli.output("sticky", "list").splitlines()[1].split()[:4] == ["db", "-", "yes", "-"]
    assert "node node-9 not found" in cli.error("sticky", "set", "db", "node-9")
    assert "not found" in cli.error("sticky", "show", "none")
    ns.kubectl("cordon", "node-2")
    output = cli.output("sticky", "set", "db", "node-2")
    assert "returns to node-2 at its next start" in output
    assert "warning: node-2: it is cordoned" in output
    ns.kubectl("uncordon", "node-2")
    annotations = ns.get("virtualmachine", "db")["metadata"]["annotations"]
    assert annotations == {
        "holdfast.dev/sticky-node": "node-2",
        "holdfast.dev/sticky-node-uid": made["metadata"]["uid"],
    }
    shown = cli.output("sticky", "show", "db")
    assert "returns to node-2" in shown
    assert "was created on" not in shown
    (item,) = json.loads(cli.output("sticky", "list", "-o", "json"))["items"]
    assert (item["node"], item["runsOn"]) == ("node-2", None)
    own = {"template": {"spec": {"nodeSelector": {"zone": "b"}}}}
    ns.kubectl("patch", "vm", "db", "--type=merge", "-p", json.dumps({"spec": own}))
    why = 'the node selector or affinity of the pod requires "zone In [b]"'
    assert f"warning: node-1: {why}" in cli.output("sticky", "set", "db", "node-1")
    assert "no longer has a recorded node" in cli.output("sticky", "clear", "db")
    recorded = {"holdfast.dev/sticky-node-uid": made["metadata"]["uid"]}
    assert ns.get("virtualmachine", "db")["metadata"]["annotations"] == recorded


@pytest.mark.xdist_group("cli")
def test_sticky_move_and_a_recreated_node(bare: tuple[Namespace, Cli]) -> None:
    ns, cli = bare
    ns.apply(*CRDS)
    ns.definitions_established()
    for name, node in (("a", "old"), ("b", "old"), ("c", "node-1")):
        annotations = {"holdfast.dev/sticky-node": node}
        ns.create({**VM, "metadata": {"name": name, "annotations": annotations}})
    move = ("sticky", "move", "--from", "old", "--to")
    assert "node new not found" in cli.error(*move, "new")
    message = "Error: cannot ask without a terminal (Move 2 VMs from old to node-2?); add --yes"
    assert cli.error(*move, "node-2") == message
    assert cli.output(*move, "node-2", "--yes").count("returns to node-2 at its next start") == 2
    assert cli.output(*move, "node-2", "--yes") == ""
    listed = cli.output("sticky", "list").splitlines()[1:]
    assert [line.split()[:2] for line in listed] == [
        ["a", "node-2"],
        ["b", "node-2"],
        ["c", "node-1"],
    ]

    assert "was created on" not in cli.output("sticky", "show", "a")
    manifest = ns.get("node", "node-2")
    ns.kubectl("delete", "node", "node-2")
    time.sleep(1.1)  # times have whole seconds
    kept = {key: manifest["metadata"][key] for key in ("name", "labels", "annotations")}
    ns.create({"apiVersion": "v1", "kind": "Node", "metadata": kept})
    shown = cli.output("sticky", "show", "a")
    assert "node-2 was created on" in shown
    assert "it may be another node of that name, without the VM's disks" in shown


STICKY_BY_PROFILE = """
apiVersion: holdfast.dev/v1beta1
kind: HoldfastConfiguration
profiles:
- schedulerName: gold
  plugins: {disabled: [{name: sticky}]}
  pluginConfig: [{name: sticky, args: {nodeAnnotation: example.com/of-gold}}]
- schedulerName: "*"
  pluginConfig: [{name: sticky, args: {nodeAnnotation: example.com/node, namespaces: [NAME]}}]
"""


@pytest.mark.xdist_group("cli")
def test_sticky_uses_the_registered_annotation(bare: tuple[Namespace, Cli], tmp_path: Path) -> None:
    ns, cli = bare
    ns.apply(*CRDS)
    ns.definitions_established()
    ns.create({**VM, "metadata": {"name": "db"}})
    gold = {"template": {"spec": {"schedulerName": "gold"}}}
    ns.create({**VM, "metadata": {"name": "other"}, "spec": gold})
    registered = {
        "name": "templates.holdfast.dev",
        "clientConfig": {"url": "https://127.0.0.1:1/validate"},
        "rules": [],
        "matchConditions": [{"name": "asks", "expression": "'example.com/node' == 'x'"}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    ns.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "holdfast", "labels": {"app.kubernetes.io/name": "holdfast"}},
            "webhooks": [registered],
        }
    )
    not_read = "in this cluster does not read annotation holdfast.dev/sticky-node of VMs; give"
    for change in (["set", "db", "node-2"], ["clear", "db"]):
        assert not_read in cli.error("sticky", *change)
    assert "annotations" not in ns.get("virtualmachine", "db")["metadata"]
    assert not_read in cli.run("sticky", "list", "-n", ns.namespace).stderr
    assert not_read in cli.run("sticky", "show", "db", "-n", ns.namespace).stderr

    configuration = tmp_path / "holdfast.yaml"
    configuration.write_text(STICKY_BY_PROFILE.replace("NAME", ns.namespace))
    by = ("--config", str(configuration))
    assert "returns to node-2" in cli.output("sticky", "set", "db", "node-2", *by)
    annotations = ns.get("virtualmachine", "db")["metadata"]["annotations"]
    assert annotations["example.com/node"] == "node-2"
    listed = cli.run("sticky", "list", "-n", ns.namespace, *by)
    assert listed.stderr == ""
    assert [line.split()[:3] for line in listed.stdout.splitlines()[1:]] == [
        ["db", "node-2", "yes"],
        ["other", "-", "no"],
    ]
    not_run = "the sticky plugin does not run for its pods in this configuration"
    assert not_run in cli.error("sticky", "set", "other", "node-2", *by)
    assert not_run in cli.output("sticky", "show", "other", *by)

    configuration.write_text(STICKY_BY_PROFILE.replace("NAME", "elsewhere"))
    message = cli.output("sticky", "set", "db", "node-1", *by)
    assert "node-1 is recorded for VM" in message
    assert "which is not sticky: namespace" in message
    configuration.write_text(STICKY_BY_PROFILE.replace("nodeAnnotation", "nodeAnotation"))
    refused = cli.error("sticky", "list", *by)
    assert "unknown field 'nodeAnotation': did you mean nodeAnnotation" in refused
