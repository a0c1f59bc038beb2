"""Whether the guard refuses what it forbids, tried as a dry run."""

import logging
import math
from collections.abc import Callable

import msgspec

from holdfast.webhook.errors import ApiStatusError, ClusterError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import MERGE_PATCH, Api, pod_path
from holdfast.webhook.model import approvals
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.policies.pods import APPROVAL, CONTROLLER_PODS

_NOBODY = "system:holdfast:nobody"

_log = logging.getLogger("holdfast.guard")


def refuses(api: Api, namespace: str) -> bool | None:
    """Try, without storing it, what no user may do: approve in the name of another one.

    It is tried on a pod in this namespace, Holdfast's own; None if there is none. Raises
    ClusterError.
    """
    pod = next(iter(listing.objects(api, listing.pods_path(namespace), Pod)), None)
    if pod is None:
        return None
    body = msgspec.json.encode({"metadata": {"annotations": {approvals.APPROVED_BY: _NOBODY}}})
    query = {"dryRun": "All"}
    try:
        api.request("PATCH", pod_path(*pod.key), query=query, body=body, content_type=MERGE_PATCH)
    except ApiStatusError as exc:
        # a user who has the controller's account meets its policy first
        if not any(policy in str(exc) for policy in (APPROVAL, CONTROLLER_PODS)):
            raise
        return True
    return False


def measure(api: Api, namespace: str, show: Callable[[float], None]) -> None:
    """Show 1 if the guard refuses it, 0 if not, and NaN if it cannot be tried."""
    try:
        found = refuses(api, namespace)
    except ClusterError as exc:
        _log.warning("cannot try the guard: %s", exc)
        found = None
    if found is False:
        _log.warning("the guard is not installed, or is that of another installation")
    show(math.nan if found is None else float(found))
