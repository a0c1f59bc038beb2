"""`holdfast doctor` checks of the installation's Deployments and configuration."""

from typing import Any

import pytest

from holdfast.webhook.cli import deployments
from holdfast.webhook.registration import configurations
from holdfast.webhook.report.doctor.diagnosis import Finding, Level
from holdfast.webhook.report.doctor.rollouts import DeploymentState
from tests.support.builders import HEAD, make_pod, make_profiles
from tests.support.fakes import FakeApi

Document = dict[str, Any]
OWN = "apart"
WEBHOOK = f"/apis/apps/v1/namespaces/{OWN}/deployments/holdfast-webhook"
SELECTED = "admission: {namespaceSelector: {matchLabels: {team: shop}}}"
LABELS = {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/component": "webhook"}
READY = {"observedGeneration": 2, "updatedReplicas": 2, "readyReplicas": 2}


def installed(text: str = "", *, replicas: int = 2, status: dict[str, int] = READY) -> FakeApi:
    """Create an API with the webhook's Deployment and a configuration."""
    api = FakeApi()
    pod = {"containers": [], "volumes": [{"configMap": {"name": "config"}}]}
    spec = {"replicas": replicas, "template": {"spec": pod}}
    api.put(WEBHOOK, {"metadata": {"generation": 2}, "spec": spec, "status": status})
    data = {"holdfast.yaml": HEAD + text}
    api.put(f"/api/v1/namespaces/{OWN}/configmaps/config", {"metadata": {}, "data": data})
    return api


def with_waiting_container(api: FakeApi, reason: str, restarts: int) -> FakeApi:
    """Add a pod with a waiting container."""
    state = {"waiting": {"reason": reason}}
    container = {"name": "webhook", "restartCount": restarts, "state": state}
    pod = make_pod(name="webhook-1", namespace=OWN, labels=LABELS)
    api.put_pod({**pod, "status": {"containerStatuses": [container]}})
    return api


def check_deployment(api: FakeApi) -> tuple[Finding, str]:
    """Return the finding for the Deployment, and the remedy for its outage."""
    states: list[DeploymentState] = []
    (finding,) = deployments.judged(api, OWN, states)
    return finding, states[0].remedy


def test_ready_deployment() -> None:
    finding, remedy = check_deployment(with_waiting_container(installed(), "ContainerCreating", 0))
    assert (finding.level, remedy) == (Level.OK, "")


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(READY | {"readyReplicas": 1}, id="replica not ready"),
        pytest.param(READY | {"updatedReplicas": 1}, id="outdated replica"),
        pytest.param(READY | {"observedGeneration": 1}, id="not observed"),
        pytest.param({}, id="new"),
    ],
)
def test_unfinished_rollout(status: dict[str, int]) -> None:
    finding, remedy = check_deployment(installed(status=status))
    assert (finding.level, remedy) == (Level.WARNING, "")
    assert "kubectl -n apart rollout status deployment/holdfast-webhook" in finding.cure


@pytest.mark.parametrize(
    ("reason", "restarts", "command"),
    [
        ("CrashLoopBackOff", 3, "kubectl -n apart logs --previous webhook-1 -c webhook"),
        ("ImagePullBackOff", 0, "kubectl -n apart describe pod webhook-1"),
    ],
)
def test_failing_container_is_a_problem(reason: str, restarts: int, command: str) -> None:
    finding, remedy = check_deployment(with_waiting_container(installed(), reason, restarts))
    assert finding.level is Level.PROBLEM
    assert f"container webhook of pod webhook-1 is in {reason}" in finding.text
    assert command in remedy


def test_deployment_without_replicas() -> None:
    finding, remedy = check_deployment(installed(replicas=0, status={}))
    assert finding.level is Level.PROBLEM
    assert "kubectl -n apart scale deployment/holdfast-webhook --replicas=2" in remedy


def registered(text: str) -> list[tuple[str, Document]]:
    """Return the configurations that the controller registers."""
    registration = configurations.Registration("holdfast", lambda _path: {"caBundle": "x"})
    documents = registration.configurations(make_profiles(text)).values()
    return list(zip(("mutating", "validating"), documents, strict=True))


def check_configuration(text: str, live: str) -> Any:
    findings = [*deployments.configuration(installed(text), OWN, registered(live), [])]
    return [
        (finding.level, finding.text) for finding in findings if "characters" not in finding.text
    ]


def test_registered_configuration() -> None:
    source = f"ConfigMap {OWN}/config"
    assert check_configuration(SELECTED, SELECTED) == [
        (Level.OK, f"the webhooks are registered as in {source}")
    ]
    ((level, text),) = check_configuration(SELECTED, "")
    assert (level, text) == (
        Level.WARNING,
        f"not yet registered: the webhooks differ from {source}",
    )


def test_invalid_configuration() -> None:
    ((level, text),) = check_configuration("admission: {nameSpaceSelector: {}}", "")
    assert level is Level.PROBLEM
    assert "unknown field 'nameSpaceSelector'" in text


def test_plugin_not_installed_locally_is_unknown() -> None:
    ((level, _),) = check_configuration("profiles: [{plugins: {enabled: [{name: billing}]}}]", "")
    assert level is Level.UNKNOWN
