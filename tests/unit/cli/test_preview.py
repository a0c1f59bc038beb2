"""`holdfast preview --dry-run=server`: what the API server answers, and what it would change."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.webhook.cli import server_preview
from tests.support.builders import make_pod
from tests.support.served import ServedApi

WARNED = ['299 - "holdfast: unknown annotation \\"holdfast.dev/delai\\""', '299 - "second, too"']
SHOWN = ['warning: holdfast: unknown annotation "holdfast.dev/delai"', "warning: second, too"]
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {"template": {"metadata": {}, "spec": {"containers": []}}},
}


@pytest.mark.parametrize(
    "document",
    [{"apiVersion": "v1", "kind": "Pod", **make_pod()}, DEPLOYMENT],
    ids=["Pod", "Deployment"],
)
def test_warnings_of_the_api_server(document: Any, cluster: ServedApi, tmp_path: Path) -> None:
    cluster.api.created = lambda: 1_798_131_600.0
    cluster.warnings = WARNED
    file = tmp_path / "x.json"
    file.write_text(json.dumps(document))

    shown = cluster.run("preview", "--dry-run=server", "-f", str(file)).stdout

    assert [line.strip() for line in shown.splitlines() if "warning:" in line] == SHOWN


def test_defaults_of_the_api_server_are_no_change() -> None:
    given = {
        "metadata": {"annotations": {"delay": "1s", "app": "x"}},
        "spec": {"tolerations": [{"operator": "Exists", "key": "gpu"}]},
    }
    added = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ]
    stored = {
        "metadata": {"annotations": {"app": "x", "delay": "1s"}, "uid": "u"},
        "spec": {
            "schedulerName": "default-scheduler",
            "tolerations": [{"key": "gpu", "operator": "Exists"}, *added],
        },
    }
    before, after = server_preview.decided(given), server_preview.decided(stored)
    assert json.dumps(before) == json.dumps(after)


def test_label_of_held_pods_is_a_change() -> None:
    labels = {"holdfast.dev/held": "true"}
    assert server_preview.decided({"metadata": {"labels": labels}}) == {
        "metadata": {"labels": labels}
    }
