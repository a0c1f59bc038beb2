"""Shell completion of commands, flags and object names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.webhook.cli import main
from tests.support.builders import held, make_pod
from tests.support.fakes import KUBEVIRT, NAMESPACES
from tests.support.served import ServedApi

APPS = "/apis/apps/v1"
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
LINES = re.findall(r"^\$ (.*holdfast completion .*)$", PAGE.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param("pre", ["preview"], id="a command"),
        pytest.param("list --wat", ["--watch"], id="an option"),
        pytest.param("list -o js", ["json", "jsonpath="], id="a value"),
        pytest.param("sticky s", ["set", "show"], id="a command of a group"),
        pytest.param("explain ", ["free", "held-0"], id="pods"),
        pytest.param("explain -n shop/pods?a= ", [], id="invalid namespace"),
        pytest.param("--context there release ", ["shop-0"], id="held pods of another context"),
        pytest.param("release h", ["held-0"], id="held pods"),
        pytest.param("explain deployment/", ["deployment/api", "deployment/web"], id="workloads"),
        pytest.param("approve -n shop sts/", ["sts/db"], id="workloads of another namespace"),
        pytest.param("release pod/h", ["pod/held-0"], id="pods with type"),
        pytest.param("explain nonsense/", [], id="unknown type"),
        pytest.param("sticky show ", ["db"], id="VMs"),
        pytest.param("sticky show vm/", ["vm/db"], id="VMs with type"),
        pytest.param("list -n s", ["shop"], id="namespaces"),
        pytest.param("list --context ", ["here", "there"], id="contexts"),
        pytest.param("--user jo", ["joe"], id="users, before the command"),
        pytest.param("--cluster gone explain ", [], id="unreachable cluster"),
    ],
)
def test_kubectl_completes_words(
    words: str,
    expected: list[str],
    cluster: ServedApi,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    labels = {"holdfast.dev/held": "true"}
    cluster.api.put_pod(held({"delay": "1h"}, name="held-0", labels=labels))
    cluster.api.put_pod(held({"delay": "1h"}, name="shop-0", namespace="shop", labels=labels))
    cluster.api.put_pod(make_pod({}, name="free"))
    cluster.api.put(f"{KUBEVIRT}/namespaces/default/virtualmachines/db", {})
    cluster.api.kinds |= {f"{APPS}/deployments", f"{APPS}/statefulsets"}
    for path in ("default/deployments/web", "default/deployments/api", "shop/statefulsets/db"):
        cluster.api.put(f"{APPS}/namespaces/{path}", {})
    for name in ("default", "shop"):
        cluster.api.put(f"{NAMESPACES}/{name}", {})
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-holdfast", *words.split(" ")])
    main.complete()
    *completions, directive = capsys.readouterr().out.splitlines()
    assert directive == ":4"
    assert [line.partition("\t")[0] for line in completions if line] == expected


def run_bash(script: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_documented_line_enables_bash_completion() -> None:
    words = "COMP_WORDS=(holdfast pre); COMP_CWORD=1"
    invoke = "_holdfast_completion holdfast; echo ${COMPREPLY[@]}"
    assert run_bash(f"{LINES[0]}; {words}; {invoke}") == "preview\n"


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        pytest.param(LINES[1], "#compdef holdfast", id="zsh"),
        pytest.param(LINES[2], "complete --no-files --command holdfast", id="fish"),
        pytest.param(LINES[3], "Register-ArgumentCompleter -Native", id="powershell"),
    ],
)
def test_other_shells_get_their_own_script(line: str, mark: str) -> None:
    (invocation,) = re.findall(r"holdfast completion \w+", line)
    assert mark in run_bash(invocation)
