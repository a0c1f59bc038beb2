"""Change an object with a JSON Patch that only applies to the version that was read.

The patch tests uid and resourceVersion first. A late write from a paused leader fails, and so does
a write for an earlier object with the same name.
"""

from collections.abc import Sequence

import msgspec

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube.api import JSON_PATCH, Api
from holdfast.webhook.model.edits import Operation

FIELD_MANAGER = "holdfast-controller"
"""The controller's field manager. It distinguishes the controller's writes from other writes."""

REFUSED = frozenset({400, 403, 409, 422})
"""The HTTP statuses of a failed test, and of rejections by other webhooks and policies."""


def guarded(uid: str, resource_version: str, operations: Sequence[Operation]) -> list[Operation]:
    """Return the patch with tests that restrict it to one version of one object."""
    tests: list[Operation] = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": resource_version},
    ]
    return [*tests, *operations]


def write(
    api: Api, path: str, operations: Sequence[Operation], *, timeout: float, manager: str = ""
) -> ApiStatusError | None:
    """Send a guarded patch; return None on success, or the error if it was rejected.

    A failed test, another webhook and a missing object cause the same response, so the caller has
    to read the object to find out which it was. Raises ClusterError for all other errors.
    """
    body = msgspec.json.encode(operations)
    try:
        api.request(
            "PATCH",
            path,
            query={"fieldManager": manager} if manager else None,
            body=body,
            content_type=JSON_PATCH,
            timeout=timeout,
        )
    except ApiStatusError as exc:
        # another webhook may also pass on a 404 that it received
        if exc.status in REFUSED or exc.is_not_found:
            return exc
        raise
    return None
