"""`holdfast doctor` suggests working commands, and restarts only an existing Deployment."""

import json

import pytest

from holdfast.webhook.report.doctor import installation
from holdfast.webhook.report.doctor.diagnosis import Level
from holdfast.webhook.report.doctor.installation import Runs


@pytest.mark.parametrize(
    ("runs", "advice"),
    [
        (Runs.DEPLOYMENT, "kubectl -n apart rollout restart deployment/holdfast-controller"),
        (Runs.DEV, "start holdfast dev again, or end it: kubectl delete"),
        (Runs.NOTHING, "there is no Deployment holdfast-controller in namespace apart"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_start_advice_depends_on_how_the_controller_runs(runs: Runs, advice: str) -> None:
    text = installation.start(runs, "apart")

    assert advice in text
    assert ("rollout restart" in text) is (runs is Runs.DEPLOYMENT)


@pytest.mark.parametrize(
    ("length", "levels"), [(0, []), (79, [Level.OK]), (80, [Level.WARNING]), (101, [Level.WARNING])]
)
def test_size_level(length: int, levels: list[Level]) -> None:
    assert [finding.level for finding in installation.size(length, 100, "bytes")] == levels


def test_kept_pods_finding_suggests_a_patch_command() -> None:
    finding = installation.kept("shop", ["db-1", "db-2"], terminating=True)
    command, patch = finding.cure.rstrip("'").split(" -p '")

    assert finding.text == (
        "2 deleted pods in terminating namespace shop kept by finalizer holdfast.dev/sticky: "
        "db-1, db-2"
    )
    assert command.endswith("kubectl -n shop patch pod db-1 db-2")
    assert json.loads(patch)["metadata"] == {
        "$deleteFromPrimitiveList/finalizers": ["holdfast.dev/sticky"]
    }
