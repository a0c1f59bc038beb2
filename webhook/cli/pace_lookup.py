"""Lookup of held pods' places in the lines of their paces, as far as a user may list pods."""

from collections.abc import Callable, Iterable, Mapping

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api
from holdfast.webhook.model.freezes import Freeze
from holdfast.webhook.model.objects import ObjectKey, Pod
from holdfast.webhook.plugins.pace.args import KEY
from holdfast.webhook.plugins.pace.groups import PacedPod
from holdfast.webhook.report.pace_places import PaceLines, PacePlace


def pace_places(
    api: Api,
    pods: Iterable[Pod],
    decider: ReleaseDecider,
    now_ms: int,
    freeze_of: Callable[[str], Freeze | None],
) -> Mapping[ObjectKey, PacePlace]:
    """Return the places of held pods that have a pace. Raises ClusterError.

    Only a cluster-wide pace needs permission to list pods in all namespaces.
    """
    lines = PaceLines(decider, now_ms, lambda namespace: freeze_of(namespace) is not None)
    pods = list(pods)
    scopes = lines.scopes(pods)
    if "" in scopes:
        cluster_places = _places(api, lines, "")
        if cluster_places is not None:
            return cluster_places
        scopes = {pod.metadata.namespace for pod in pods}
    places: dict[ObjectKey, PacePlace] = {}
    for namespace in sorted(scopes):
        places |= _places(api, lines, namespace) or {}
    return places


def _places(api: Api, lines: PaceLines, namespace: str) -> Mapping[ObjectKey, PacePlace] | None:
    path = listing.pods_path(namespace)
    try:
        pods = listing.objects(api, path, PacedPod, {"labelSelector": KEY})
        return lines.places(pods, namespace)
    except ApiStatusError as exc:
        if not exc.is_refused:
            raise
        return None
