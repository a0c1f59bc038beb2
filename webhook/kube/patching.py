"""The one way in which an object is changed: a JSON Patch of exactly the version that was read.

The patch tests uid and resourceVersion before anything else. So a late write of a leader that was
paused, or one meant for an earlier object of that name, fails.
"""

from collections.abc import Sequence

import msgspec

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube.api import JSON_PATCH, Api
from holdfast.webhook.model.edits import Operation

FIELD_MANAGER = "holdfast-controller"
"""The controller's field manager. It marks what the controller has written, and people have not."""

REFUSED = frozenset({400, 403, 409, 422})
"""How a failed test of ours is answered, and the rejections of other webhooks and policies."""


def guarded(uid: str, resource_version: str, operations: Sequence[Operation]) -> list[Operation]:
    """Prepend the tests that tie a patch to one version of one object."""
    tests: list[Operation] = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": resource_version},
    ]
    return [*tests, *operations]


def write(
    api: Api, path: str, operations: Sequence[Operation], *, timeout: float, manager: str = ""
) -> ApiStatusError | None:
    """Send a guarded patch; return None when written, or the response that rejected it.

    Our own tests, others' webhooks and a missing object answer alike, so the caller has to read the
    object to know which it was. Raises ClusterError for everything else.
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
        # another webhook may also pass on a 404 that it got itself
        if exc.status in REFUSED or exc.is_not_found:
            return exc
        raise
    return None
