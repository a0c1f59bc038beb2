"""Check, with a dry run, that the guard rejects a forbidden request."""

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
    """Return whether the guard rejects a dry-run approval in another user's name.

    The dry run patches a pod in `namespace`, which is Holdfast's. Returns None if the namespace has
    no pods. Raises ClusterError.
    """
    pod = next(iter(listing.objects(api, listing.pods_path(namespace), Pod)), None)
    if pod is None:
        return None
    body = msgspec.json.encode({"metadata": {"annotations": {approvals.APPROVED_BY: _NOBODY}}})
    query = {"dryRun": "All"}
    try:
        api.request("PATCH", pod_path(*pod.key), query=query, body=body, content_type=MERGE_PATCH)
    except ApiStatusError as exc:
        # the policy for the controller's account rejects that account first
        if not any(policy in str(exc) for policy in (APPROVAL, CONTROLLER_PODS)):
            raise
        return True
    return False


def measure(api: Api, namespace: str, show: Callable[[float], None]) -> None:
    """Call `show` with 1 if the guard rejects the dry run, 0 if not, NaN if it is not possible."""
    try:
        is_refused = refuses(api, namespace)
    except ClusterError as exc:
        _log.warning("cannot try the guard: %s", exc)
        is_refused = None
    if is_refused is False:
        _log.warning("the guard is not installed, or is that of another installation")
    show(math.nan if is_refused is None else float(is_refused))
