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


def judged(api: Api, own: str, states: list[DeploymentState]) -> Iterator[Finding]:
    """Check the Deployments, and append their states to `states`. Raises ClusterError."""
    for name in (rollouts.WEBHOOK, installation.CONTROLLER):
        found = inspection.deployment(api, own, name)
        if found is not None:
            states.append(_state(api, own, name, found))
            yield from rollouts.judge(states[-1])


def _state(api: Api, own: str, name: str, found: Document) -> DeploymentState:
    status, wanted = found.get("status") or {}, found["spec"].get("replicas", 1)
    is_observed = status.get("observedGeneration") == found["metadata"].get("generation")
    selector = f"app.kubernetes.io/name=holdfast,app.kubernetes.io/component={name[9:]}"
    pods = listing.objects(api, listing.pods_path(own), Document, {"labelSelector": selector})
    return DeploymentState(
        own,
        name,
        wanted,
        status.get("updatedReplicas", 0) if is_observed else 0,
        status.get("readyReplicas", 0),
        [one for pod in pods for one in _failing(pod)],
    )


def _failing(pod: Document) -> Iterator[FailingContainer]:
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp") or status.get("phase") in {"Succeeded", "Failed"}:
        return
    kinds = ("initContainerStatuses", "containerStatuses")
    for one in (each for kind in kinds for each in status.get(kind) or ()):
        reason = ((one.get("state") or {}).get("waiting") or {}).get("reason", "")
        if reason and reason not in _STARTING:
            has_run = bool(one.get("restartCount"))
            yield FailingContainer(pod["metadata"]["name"], one["name"], reason, has_run)


def configuration(
    api: Api,
    own: str,
    registered: Sequence[tuple[str, Document]],
    read: list[Profiles],
) -> Iterator[Finding]:
    """Check size, content and webhooks of the installed configuration. Raises ClusterError.

    Appends its profiles to `read`.
    """
    yield from inspection.size(api, own, registered)
    setup = configured.read(api, own)
    if setup is None:
        return
    try:
        profiles = pipelines.load_profiles(setup)
    except ConfigurationError as exc:
        yield installation.invalid(str(exc))
        return
    read.append(profiles)
    # an empty clientConfig: other checks cover the server and its certificate
    made = configurations.Registration(configurations.NAME, lambda _path: {})
    wanted = dict(
        zip(("mutating", "validating"), made.configurations(profiles).values(), strict=True)
    )
    live = [
        (kind, one)
        for kind, one in registered
        if one.get("webhooks") and one["metadata"]["name"] != dev.NAME
    ]
    if live:
        same = all(
            drift.holds(one["webhooks"], wanted[kind]["webhooks"], longer=True)
            for kind, one in live
        )
        yield installation.registered(setup.source, same=same)
