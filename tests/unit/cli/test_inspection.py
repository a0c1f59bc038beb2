"""`holdfast doctor` checks of the installation's objects, and of deleted pods that are kept."""

from typing import Any

import pytest

from holdfast.webhook.cli import inspection
from holdfast.webhook.kube import listing
from holdfast.webhook.model.freezes import NAMESPACES
from holdfast.webhook.report.doctor.diagnosis import Level
from holdfast.webhook.report.doctor.installation import MAX_BYTES, Runs
from tests.support.builders import CREATED_MS, HOUR
from tests.support.fakes import FakeApi
from tests.support.vm_builders import make_launcher

OWN = "apart"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{OWN}/deployments/holdfast-controller"


def registered(name: str, expression: str = "true") -> list[tuple[str, Any]]:
    condition = {"name": "asks", "expression": expression}
    return [
        ("mutating", {"metadata": {"name": name}, "webhooks": [{"matchConditions": [condition]}]})
    ]


def with_deployment(config: str = "") -> FakeApi:
    api = FakeApi()
    volumes = [{"name": "config", "configMap": {"name": "holdfast-config-x"}}]
    api.put(DEPLOYMENT, {"metadata": {}, "spec": {"template": {"spec": {"volumes": volumes}}}})
    api.put(
        f"/api/v1/namespaces/{OWN}/configmaps/holdfast-config-x",
        {"metadata": {}, "data": {"holdfast.yaml": config}},
    )
    return api


def test_detects_how_the_controller_runs() -> None:
    assert inspection.runs(with_deployment(), OWN, registered("holdfast")) is Runs.DEPLOYMENT
    assert inspection.runs(FakeApi(), OWN, registered("holdfast-dev")) is Runs.DEV
    assert inspection.runs(FakeApi(), OWN, registered("holdfast")) is Runs.NOTHING


def test_large_configuration_is_a_warning() -> None:
    api = with_deployment("x" * (MAX_BYTES - 1))
    findings = [*inspection.size(api, OWN, registered("holdfast", "x" * 99_000))]

    assert [finding.level for finding in findings] == [Level.WARNING, Level.WARNING]
    assert [finding.text for finding in findings] == [
        "99,000 of at most 100,000 characters of a match condition",
        "1,048,575 of at most 1,048,576 bytes of holdfast-config-x",
    ]


@pytest.mark.parametrize(
    ("deleted_hour", "finalizers", "count"),
    [
        pytest.param(12, ["holdfast.dev/sticky"], 1, id="kept"),
        pytest.param(13, ["holdfast.dev/sticky"], 0, id="still terminating"),
        pytest.param(12, ["x.io/y"], 0, id="kept by another finalizer"),
    ],
)
def test_deleted_pods_kept_by_a_finalizer(
    deleted_hour: int, finalizers: list[str], count: int
) -> None:
    api, pod = FakeApi(), make_launcher(finalizers=finalizers)
    pod["metadata"]["deletionTimestamp"] = f"2026-03-01T{deleted_hour}:00:00Z"
    api.put(f"{listing.pods_path('default')}/{pod['metadata']['name']}", pod)
    api.put(f"{NAMESPACES}/default", {"metadata": {}, "status": {"phase": "Terminating"}})

    findings = [*inspection.kept(api, CREATED_MS + HOUR)]

    assert len(findings) == count
    assert all("terminating namespace default" in finding.text for finding in findings)
