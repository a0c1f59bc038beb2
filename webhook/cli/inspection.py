"""Checks of `holdfast doctor` for Holdfast's objects, and for pods that its finalizer keeps."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.registration import configurations
from holdfast.webhook.report.doctor import diagnosis, installation
from holdfast.webhook.report.doctor.diagnosis import Finding
from holdfast.webhook.report.doctor.installation import Runs
from holdfast.webhook.runtime import dev

Document = dict[str, Any]

PATIENCE_MS = 60_000
"""Time after a pod's deletionTimestamp for the controller to remove its finalizer."""


def attempt(about: str, objects: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of a check, or one that explains why it could not run."""
    try:
        return list(check())
    except ApiStatusError as exc:
        if exc.is_refused:
            return [diagnosis.unread(about, f"no permission to read {objects} ({exc})")]
        return [diagnosis.unread(about, f"cannot read {objects} ({exc})", "try again")]


def runs(api: Api, namespace: str, registered: Iterable[tuple[str, Document]]) -> Runs:
    """Return how the controller runs, based on the objects in the cluster. Raises ClusterError."""
    if deployment(api, namespace, installation.CONTROLLER) is not None:
        return Runs.DEPLOYMENT
    names = {configuration.get("metadata", {}).get("name") for _, configuration in registered}
    return Runs.DEV if dev.NAME in names else Runs.NOTHING


def deployment(api: Api, namespace: str, name: str) -> Document | None:
    """Return a Deployment of this namespace, or None. Raises ClusterError."""
    return listing.one(api, api_path("apps/v1", "deployments", namespace, name), Document)


def size(api: Api, namespace: str, registered: Iterable[tuple[str, Document]]) -> Iterator[Finding]:
    """Check the size of the installed configuration. Raises ClusterError."""
    lengths = [
        len(condition.get("expression", ""))
        for _, configuration in registered
        for webhook in configuration.get("webhooks") or ()
        for condition in webhook.get("matchConditions") or ()
    ]
    limit = configurations.MAX_EXPRESSION_CHARACTERS
    yield from installation.size(max(lengths, default=0), limit, "characters of a match condition")
    for volume in _volumes(deployment(api, namespace, installation.CONTROLLER) or {}):
        if name := (volume.get("configMap") or {}).get("name"):
            config_map = (
                listing.one(api, api_path("v1", "configmaps", namespace, name), Document) or {}
            )
            length = sum(len(text.encode()) for text in (config_map.get("data") or {}).values())
            yield from installation.size(length, installation.MAX_BYTES, f"bytes of {name}")


def _volumes(deployment: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    spec = deployment.get("spec", {}).get("template", {}).get("spec", {})
    return spec.get("volumes") or ()


def kept(api: Api, now_ms: int) -> Iterator[Finding]:
    """Find deleted VM pods that Holdfast's finalizer still keeps. Raises ClusterError."""
    pod_names: dict[str, list[str]] = {}
    query = {"labelSelector": kubevirt.LAUNCHERS}
    for pod in listing.objects(api, listing.pods_path(""), kubevirt.LauncherPod, query):
        deleted_at = pod.metadata.deletion_timestamp
        if (
            deleted_at
            and pod.has_finalizer
            and deleted_at.timestamp() * 1_000 + PATIENCE_MS < now_ms
        ):
            pod_names.setdefault(pod.metadata.namespace, []).append(pod.metadata.name)
    for namespace, names in pod_names.items():
        document = listing.one(api, api_path("v1", "namespaces", name=namespace), Document) or {}
        terminating = (document.get("status") or {}).get("phase") == "Terminating"
        yield installation.kept(namespace, names, terminating=terminating)
