"""Checks of `holdfast doctor` for Holdfast's Deployments and configuration."""

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.webhook.cli import configured, inspection
from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.framework.profiles import Profiles
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api
from holdfast.webhook.registration import configurations, drift
from holdfast.webhook.report.doctor import installation, rollouts
from holdfast.webhook.report.doctor.diagnosis import Finding
from holdfast.webhook.report.doctor.rollouts import DeploymentState, FailingContainer
from holdfast.webhook.runtime import dev, pipelines

Document = dict[str, Any]

_STARTING = frozenset({"ContainerCreating", "PodInitializing"})


def judged(api: Api, namespace: str, states: list[DeploymentState]) -> Iterator[Finding]:
    """Check the Deployments, and append their states to `states`. Raises ClusterError."""
    for name in (rollouts.WEBHOOK, installation.CONTROLLER):
        deployment = inspection.deployment(api, namespace, name)
        if deployment is not None:
            states.append(_state(api, namespace, name, deployment))
            yield from rollouts.judge(states[-1])


def _state(api: Api, namespace: str, name: str, deployment: Document) -> DeploymentState:
    status, replicas = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    is_observed = status.get("observedGeneration") == deployment["metadata"].get("generation")
    selector = f"app.kubernetes.io/name=holdfast,app.kubernetes.io/component={name[9:]}"
    pods = listing.objects(api, listing.pods_path(namespace), Document, {"labelSelector": selector})
    return DeploymentState(
        namespace,
        name,
        replicas,
        status.get("updatedReplicas", 0) if is_observed else 0,
        status.get("readyReplicas", 0),
        [container for pod in pods for container in _failing(pod)],
    )


def _failing(pod: Document) -> Iterator[FailingContainer]:
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp") or status.get("phase") in {"Succeeded", "Failed"}:
        return
    kinds = ("initContainerStatuses", "containerStatuses")
    for container in (
        container_status for kind in kinds for container_status in status.get(kind) or ()
    ):
        reason = ((container.get("state") or {}).get("waiting") or {}).get("reason", "")
        if reason and reason not in _STARTING:
            has_run = bool(container.get("restartCount"))
            yield FailingContainer(pod["metadata"]["name"], container["name"], reason, has_run)


def configuration(
    api: Api,
    namespace: str,
    registered: Sequence[tuple[str, Document]],
    loaded_profiles: list[Profiles],
) -> Iterator[Finding]:
    """Check size, content and webhooks of the installed configuration. Raises ClusterError.

    Appends its profiles to `loaded_profiles`.
    """
    yield from inspection.size(api, namespace, registered)
    setup = configured.read(api, namespace)
    if setup is None:
        return
    try:
        profiles = pipelines.load_profiles(setup)
    except ConfigurationError as exc:
        yield installation.invalid(str(exc))
        return
    loaded_profiles.append(profiles)
    # an empty clientConfig: other checks cover the server and its certificate
    registration = configurations.Registration(configurations.NAME, lambda _path: {})
    expected = dict(
        zip(("mutating", "validating"), registration.configurations(profiles).values(), strict=True)
    )
    live = [
        (kind, document)
        for kind, document in registered
        if document.get("webhooks") and document["metadata"]["name"] != dev.NAME
    ]
    if live:
        same = all(
            drift.holds(document["webhooks"], expected[kind]["webhooks"], longer=True)
            for kind, document in live
        )
        yield installation.registered(setup.source, same=same)
