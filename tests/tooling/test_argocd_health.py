"""The health check for Argo CD, run by the Lua interpreter that Argo CD embeds."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane import build
from controlplane.modules import GLUA

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "argocd" / "argocd-cm.yaml"
CHECK = yaml.safe_load(EXAMPLE.read_text())["data"][
    "resource.customizations.health.apps_Deployment"
]
LATE = {
    "observedGeneration": 2,
    "conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}],
}
DONE = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}


def lua(value: Any) -> str:
    """Return a JSON value as Lua."""
    if isinstance(value, dict):
        fields = (f"[{json.dumps(key)}] = {lua(item)}" for key, item in value.items())
        return "{" + ", ".join(fields) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(lua, value)) + "}"
    return json.dumps(value)


def health(status: dict[str, Any], annotations: dict[str, str], **spec: Any) -> str:
    """Return the status that Argo CD shows, and its message."""
    deployment = {
        "metadata": {"generation": 2},
        "spec": {"replicas": 2, "template": {"metadata": {"annotations": annotations}}, **spec},
        "status": status,
    }
    text = (
        f"obj = {lua(deployment)}\nlocal function check()\n{CHECK}\nend\n"
        'local found = check()\nprint(found.status .. ": " .. found.message)\n'
    )
    command = [str(build.ensure(modules=GLUA) / "glua"), "-e", text]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return process.stdout.removesuffix("\n")


@pytest.mark.parametrize(
    ("status", "annotations", "expected"),
    [
        pytest.param(
            LATE,
            {"holdfast.dev/window": "night"},
            "Progressing: pods may be held: the template has the annotation holdfast.dev/window",
            id="held beyond the deadline",
        ),
        pytest.param(
            LATE,
            {"delay": "15"},
            "Progressing: pods may be held: the template has the annotation delay",
            id="held by the short key",
        ),
        pytest.param(
            LATE,
            {"team": "a"},
            "Degraded: the rollout exceeded its progress deadline",
            id="failed",
        ),
        pytest.param(DONE, {}, "Healthy: ", id="healthy"),
        pytest.param(
            DONE | {"observedGeneration": 1},
            {},
            "Progressing: the Deployment has not been observed yet",
            id="not observed",
        ),
        pytest.param(
            DONE | {"updatedReplicas": 1}, {}, "Progressing: 1 of 2 pods are new", id="rollout"
        ),
        pytest.param(
            DONE | {"replicas": 3}, {}, "Progressing: old pods are still running", id="old pods"
        ),
        pytest.param(
            DONE | {"availableReplicas": 0}, {}, "Progressing: 0 of 2 pods are available", id="down"
        ),
    ],
)
def test_health(status: dict[str, Any], annotations: dict[str, str], expected: str) -> None:
    assert health(status, annotations) == expected


def test_paused_deployment_is_suspended() -> None:
    assert health({}, {}, paused=True).startswith("Suspended: ")
