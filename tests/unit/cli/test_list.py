"""The output formats of `holdfast list`, and what it prints as pods change."""

import sys
import time
from pathlib import Path

import pytest
import yaml

from holdfast.webhook.cli import freeze_lookup, terminal, watching
from holdfast.webhook.cli.list import _HeldPods
from holdfast.webhook.cli.printing import Printing
from holdfast.webhook.kube import listing
from holdfast.webhook.model.freezes import OWN_NAMESPACE
from holdfast.webhook.model.objects import Pod
from tests.support.builders import CREATED_MS, GATE, HEAD, held, instant, make_decider, make_pod
from tests.support.fakes import FakeApi
from tests.support.served import ServedApi
from tests.support.vm_builders import owner_of


def hold(cluster: ServedApi, **delays: str) -> None:
    for name, delay in delays.items():
        cluster.api.put_pod(held({"delay": delay}, name=name))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param("-o name", "pod/a\npod/b\n", id="name"),
        pytest.param("-o name --sort-by=.heldBy", "pod/b\npod/a\n", id="sorted by text"),
        pytest.param("-o=jsonpath={.items[*].heldBy}", "delay=9h delay=10h", id="jsonpath"),
        pytest.param(
            "-o custom-columns=POD:.metadata.name,X:.none --no-headers",
            "a     <none>\nb     <none>\n",
            id="columns",
        ),
    ],
)
def test_output_formats(arguments: str, text: str, cluster: ServedApi) -> None:
    hold(cluster, b="10h", a="9h")
    assert cluster.run("list", *arguments.split()).stdout == text


def test_headers(cluster: ServedApi) -> None:
    hold(cluster, a="9h")
    header, row = cluster.run("list").stdout.splitlines()
    assert header.split() == ["NAME", "LEFT", "AGE", "OWNER", "HELD", "BY"]
    assert cluster.run("list", "--no-headers").stdout.split()[0] == row.split()[0] == "a"
    assert cluster.run("list", "-A").stdout.split()[0] == "NAMESPACE"


def test_sort_by_unknown_field(cluster: ServedApi) -> None:
    hold(cluster, a="9h")
    result = cluster.run("list", "--sort-by=.nosuch", code=1)
    assert (
        "--sort-by: no object has the field .nosuch; there are .metadata, .heldBy" in result.stderr
    )


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_document_is_a_kubernetes_list(output: str, cluster: ServedApi) -> None:
    hold(cluster, a="9h")
    document = yaml.safe_load(cluster.run("list", "-o", output).stdout)
    assert document["kind"] == "HeldPodList"
    assert document["items"][0]["metadata"]["name"] == "a"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(("list",), "No resources found in default namespace.\n", id="default"),
        pytest.param(("list", "-A"), "No resources found.\n", id="all"),
        pytest.param(("sticky", "list"), "No resources found in default namespace.\n", id="VMs"),
    ],
)
def test_nothing_found(arguments: tuple[str, ...], message: str, cluster: ServedApi) -> None:
    result = cluster.run(*arguments)
    assert (result.stdout, result.stderr) == ("", message)


@pytest.mark.parametrize("output", ["table", "custom-columns=NAME", "custom-columns=A:.b["])
def test_invalid_format_is_a_usage_error(output: str, cluster: ServedApi) -> None:
    assert "Invalid value for '-o'" in cluster.run("list", "-o", output, code=2).stderr
    assert cluster.api.requests == []


class Clock(listing.CommandClock):
    def now_ms(self) -> int:
        return CREATED_MS


def make_view(output: str) -> _HeldPods:
    lookup = freeze_lookup.FreezeLookup(FakeApi(), "default", lambda: CREATED_MS, OWN_NAMESPACE)
    return _HeldPods(Printing(output), "default", Clock(), make_decider(), lookup)


def test_changes_are_printed_as_they_arrive(capsys: pytest.CaptureFixture[str]) -> None:
    view = make_view("")
    held_pod = Pod.of(held({"delay": "1h"}, name="a-long-name"))
    free_pod = Pod.of(make_pod({}, name="free"))
    view.on_list([held_pod, free_pod])
    view.on_change(held_pod, is_deleted=False)  # no cell has changed
    view.on_change(Pod.of(held({"delay": "2h"}, name="b")), is_deleted=False)
    view.on_change(Pod.of(make_pod({}, name="a-long-name")), is_deleted=False)
    view.on_change(Pod.of(held({"delay": "2h"}, name="b")), is_deleted=True)
    view.on_change(free_pod, is_deleted=True)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(line[0], line[1]) for line in lines] == [
        ("NAME", "LEFT"),
        ("a-long-name", "1h"),
        ("b", "2h"),
        ("a-long-name", "released"),
        ("b", "deleted"),
    ]


def test_headers_are_printed_with_the_first_pod(capsys: pytest.CaptureFixture[str]) -> None:
    view = make_view("")
    view.on_list([])
    for name in ("a", "b"):
        view.on_change(Pod.of(held({"delay": "1h"}, name=name)), is_deleted=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "a", "b"]


def test_relist_prints_changes(capsys: pytest.CaptureFixture[str]) -> None:
    view = make_view("jsonpath={.metadata.name} {.ended}")
    pod, new_pod = (Pod.of(held({"delay": "1h"}, name=name)) for name in ("one", "other"))
    view.on_list([pod])
    view.on_list([new_pod])
    assert capsys.readouterr().out.splitlines() == ["one ", "other ", "one released"]


@pytest.mark.parametrize(
    ("is_terminal", "text"),
    [
        pytest.param(True, "a\t\\x1b[2J\nb\\u202e\n", id="a terminal"),
        pytest.param(False, "a\t\x1b[2J\nb\u202e\n", id="a pipe"),
    ],
)
def test_control_characters_are_escaped_only_on_a_terminal(
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    is_terminal: bool,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    terminal.write_text("a\t\x1b[2J\nb\u202e\n")
    assert capsys.readouterr().out == text


def test_hostile_pod_does_not_widen_other_rows(cluster: ServedApi) -> None:
    long_name = "n" * 100_000
    owner = owner_of("K" + long_name, long_name, "u", api_version="v1")
    gates = [GATE, *(f"holdfast.dev/{number}" for number in range(5_000))]
    cluster.api.put_pod(held({"delay": "1h"}, name="a", owners=[owner], gates=gates))
    hold(cluster, b="10h")
    assert len(cluster.run("list", "-o", "wide").stdout) < 20_000


def test_pods_are_watched_in_the_calling_thread() -> None:
    api, calls = FakeApi(held({"delay": "1h"}, name="a")), []

    def on_list(pods: object) -> None:
        calls.append(pods)
        api.put_pod(held({"delay": "1h"}, name="b"))

    def on_change(pod: Pod, *, is_deleted: bool) -> None:
        calls.append((pod.metadata.name, is_deleted))
        raise KeyboardInterrupt

    watching.follow_pods(api, "/api/v1/pods", {}, on_list=on_list, on_change=on_change)
    api.close()
    assert calls[1:] == [("b", False)]


def test_delay_from_the_owner(cluster: ServedApi) -> None:
    owner = owner_of("ReplicaSet", "web", "u", api_version="apps/v1")
    requested = {"delay": "10h", "holdfast.dev/delay-from": "owner"}
    cluster.api.put_pod(held(requested, owners=[owner]))
    created = {"uid": "u", "creationTimestamp": "2026-03-01T11:00:00Z"}
    path = "/apis/apps/v1/namespaces/default/replicasets/web"
    cluster.api.put(path, {"metadata": created})

    (item,) = yaml.safe_load(cluster.run("list", "-o", "json").stdout)["items"]
    assert item["due"] == "2026-03-01T21:00:00Z"


PACE = "holdfast.dev/pace"


def put_paced_pods(cluster: ServedApi, value: str = "1") -> None:
    """Create pods of one owner with a pace: one starting and two waiting."""
    for name, gates in (("a", []), ("b", [PACE]), ("c", [PACE])):
        pod = make_pod({PACE: value}, name=name, gates=gates, labels={PACE: "x"})
        pod["metadata"]["uid"] = name  # orders pods that are created in the same second
        pod["metadata"]["creationTimestamp"] = instant(int(time.time()) * 1_000)
        cluster.api.put_pod(pod)


def test_place_in_line_of_inline_pace(cluster: ServedApi) -> None:
    put_paced_pods(cluster)
    lines = cluster.run("list", "-o", "wide").stdout.splitlines()[1:]
    assert [line.rpartition("   ")[2] for line in lines] == [
        "pace: 1 of 1 starting, 1st in line",
        "pace: 1 of 1 starting, 2nd in line",
    ]
    stdout = cluster.run("explain", "c").stdout
    assert "is held: pace: 1 of 1 starting, 2nd in line" in stdout


def test_no_place_in_line_without_pace_or_list_permission(cluster: ServedApi) -> None:
    hold(cluster, a="9h")
    cluster.run("list")
    assert not any(PACE in str(query) for query in cluster.api.queries)
    put_paced_pods(cluster)
    cluster.forbidden = {"/api/v1/namespaces/default/pods"}
    assert "is held: pace: at most 1 starting" in cluster.run("explain", "c").stdout


@pytest.mark.parametrize(
    ("scope", "forbidden", "remark"),
    [
        pytest.param("cluster", False, "pace jvm: 1 of 1 starting, 1st in line", id="cluster"),
        pytest.param("cluster", True, "pace: at most 1 starting", id="forbidden"),
        pytest.param("owner", True, "pace jvm: 1 of 1 starting, 1st in line", id="owner"),
    ],
)
def test_place_in_line_of_shared_pace(
    scope: str, forbidden: bool, remark: str, cluster: ServedApi, tmp_path: Path
) -> None:
    put_paced_pods(cluster, "jvm")
    if forbidden:
        cluster.forbidden = {"/api/v1/pods"}
    paces = f"paces: [{{name: jvm, maxStarting: 1, scope: {scope}}}]"
    file = tmp_path / "holdfast.yaml"
    file.write_text(f"{HEAD}profiles: [{{pluginConfig: [{{name: pace, args: {{{paces}}}}}]}}]")
    lines = cluster.run("list", "-o", "wide", "--config", str(file)).stdout.splitlines()
    assert lines[1].endswith(f"   {remark}")


def test_pods_without_a_due_time_are_sorted_last(cluster: ServedApi) -> None:
    hold(cluster, b="10h", a="9h")
    gates = ["holdfast.dev/approval"]
    cluster.api.put_pod(held({"holdfast.dev/approval": "x"}, name="0", gates=gates))
    sorted_names = cluster.run("list", "-o", "name", "--sort-by", ".due").stdout.split()
    assert sorted_names == ["pod/a", "pod/b", "pod/0"]
