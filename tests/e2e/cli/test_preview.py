"""`holdfast preview`."""

from pathlib import Path

import pytest

from tests.e2e.cli.commands import Cli, manifests
from tests.e2e.namespace import Namespace


@pytest.mark.parametrize(
    "live", [pytest.param([], id="offline"), pytest.param(["--dry-run=server"], id="live")]
)
def test_preview(ns: Namespace, cli: Cli, live: list[str]) -> None:
    output = cli.output("preview", "-f", "-", *live, stdin=manifests("15"))
    assert f"Deployment {ns.namespace}/it: changed" in output
    assert "+    holdfast.dev/held: delay=15s" in output
    assert "+  - name: holdfast.dev/delay" in output
    result = cli.run("preview", "-f", "-", "-n", ns.namespace, *live, stdin=manifests("soon"))
    assert result.returncode == 1
    assert "it: rejected" in result.stdout
    assert 'annotation delay: invalid value "soon"' in result.stdout
    assert result.stderr == "Error: 1 would be rejected; the reasons are above\n"
    assert ns.all("deployments") == []
    assert ns.all("pods") == []


def test_preview_needs_no_cluster(tmp_path: Path) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text(manifests("15"))
    cli = Cli(tmp_path / "none", "default")
    result = cli.run("preview", str(path), "-f", str(path))
    assert result.returncode == 0
    assert result.stdout.count(f"{path}: Deployment default/it: changed") == 2


@pytest.mark.parametrize(
    ("text", "kinds"), [("", ""), ("kind: Service", "; the files have Service"), ("a: b", "")]
)
def test_preview_without_pods(text: str, kinds: str, tmp_path: Path) -> None:
    result = Cli(tmp_path / "none", "default").run("preview", "-f", "-", stdin=text)
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == f"No pods and no pod templates found{kinds}.\n"
