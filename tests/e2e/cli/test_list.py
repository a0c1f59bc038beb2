"""`holdfast list`, and how all commands print."""

import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.e2e.cli.commands import GATE, Cli, hold, user
from tests.e2e.namespace import Namespace, pod

LIST_SECONDS = 3.0
"""Limit for listing 10,000 held pods, in CPU seconds: a busy machine does not affect these."""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_list(ns: Namespace, cli: Cli) -> None:
    assert json.loads(cli.output("list", "-o", "json"))["items"] == []
    hold(ns, "held-1", app="web")
    hold(ns, "held-2")
    ns.apply(pod("free"))
    head, *rows = cli.output("list").splitlines()
    assert head.split() == ["NAME", "LEFT", "AGE", "OWNER", "HELD", "BY"]
    assert sorted(row.split()[0] for row in rows) == ["held-1", "held-2"]
    assert all("delay=1h" in row for row in rows)
    output = cli.output("list", "-o", "json", "-l", "app=web", "--request-timeout=1m")
    (item,) = json.loads(output)["items"]
    name = item["metadata"]["name"]
    assert (name, item["heldBy"], item["gates"]) == ("held-1", "delay=1h", [GATE])
    assert 3_500 < item["secondsLeft"] <= 3_600
    listing = yaml.safe_load(cli.run("list", "-A", "-o", "yaml").stdout)
    assert ns.namespace in {entry["metadata"]["namespace"] for entry in listing["items"]}


def test_deeply_nested_pod_breaks_neither_controller_nor_commands(ns: Namespace, cli: Cli) -> None:
    """The API server accepts thousands of levels of managedFields from any user."""
    fields = '{"f:a":' * 5_000 + "{}" + "}" * 5_000
    entry = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsV1": "DEEP"}
    manifest = pod("deep", {}, schedulingGates=[{"name": "example.com/gate"}])
    manifest["metadata"]["managedFields"] = [entry | {"fieldsType": "FieldsV1"}]
    ns.kubectl("create", "-f", "-", stdin=json.dumps(manifest).replace('"DEEP"', fields))
    text = ns.kubectl("get", "--raw", f"/api/v1/namespaces/{ns.namespace}/pods/deep")
    assert fields in text

    hold(ns, "due", delay="2s")
    ns.eventually(lambda: "due" in ns.releases())
    hold(ns, "held")
    assert "held" in cli.output("list")
    assert "example.com/gate" in cli.output("explain", "deep")
    cli.output("release", "held")


def test_narrow_terminal_does_not_truncate_cells(ns: Namespace, cli: Cli) -> None:
    hold(ns, "a-pod-with-a-long-name-" + "x" * 20)
    (narrow, wide) = (
        re.sub(r"(?<=\s)([0-9]+[hms])+(?=\s)", "", CONTROL.sub("", "".join(output)))
        for output in (cli.terminal("list", columns=columns) for columns in (40, 200))
    )
    assert narrow.split()[:9] == wide.split()[:9]
    assert narrow.split()[8] == "delay=1h"
    assert "…" not in narrow


def test_no_color_disables_escape_sequences(ns: Namespace, cli: Cli) -> None:
    hold(ns, "held")
    for arguments in (("list",), ("explain", "held"), ("doctor",)):
        output = "".join(cli.terminal(*arguments, NO_COLOR="1"))
        assert "\x1b" not in output
        assert output.count("\n") > 1


def test_permission_error_names_the_missing_right(ns: Namespace, tmp_path: Path) -> None:
    nobody = user(ns, "nobody", tmp_path)
    for arguments in (["list"], ["explain", "held"], ["release", "held"]):
        message = nobody.error(*arguments)
        assert "cannot " in message
        assert 'resource "pods"' in message
        assert message.endswith(
            "ask an admin for this permission, or choose a namespace (-n) where you have it"
        )


def test_kubectl_runs_the_plugin_and_completes_pod_names(ns: Namespace) -> None:
    hold(ns, "held-1")
    ns.apply(pod("free"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "KUBECONFIG": str(ns.plane.kubeconfig), "PATH": path}

    def kubectl(*arguments: str) -> list[str]:
        command = [str(ns.plane.bin / "kubectl"), *arguments]
        return subprocess.check_output(command, text=True, env=environment).splitlines()

    assert "held-1" in kubectl("holdfast", "list", "-n", ns.namespace)[1]
    complete = ("__complete", "holdfast", "-n", ns.namespace)
    assert kubectl(*complete, "release", "")[:-1] == ["held-1"]
    assert kubectl(*complete, "explain", "")[:-1] == ["free", "held-1"]


def test_list_shows_only_unmet_dependencies(ns: Namespace, cli: Cli) -> None:
    annotations = {"holdfast.dev/after": "pod/first:PodScheduled, job/none, service/none"}
    ns.apply(pod("first"), pod("web", annotations))
    waits = "after: waits for job/none:Complete, service/none:Ready\n"
    ns.eventually(lambda: cli.output("list", "-o", "wide").endswith(waits))


def test_watch_shows_changes(ns: Namespace, cli: Cli) -> None:
    hold(ns, "first")
    output = ""
    for part in cli.terminal("list", "--watch"):
        output += part
        if "second" in output:
            break
        if "first" in output and "second" not in ns.kubectl("get", "pods"):
            cli.output("release", "first")
            hold(ns, "second")
    assert "second" in output
    assert re.search(r"first .* released ", output)


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
        head, first, *rows = listed(output).splitlines()
        assert head.split()[:2] == ["NAME", "LEFT"]
        assert first.split()[0] == "waits-0"
        assert len(rows) == 9_999
    for output in ("json", "yaml"):
        items = yaml.load(listed(output), Loader=yaml.CSafeLoader)["items"]
        assert len({item["metadata"]["name"] for item in items}) == 10_000


def children_seconds() -> float:
    """Return the CPU seconds of all commands that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
