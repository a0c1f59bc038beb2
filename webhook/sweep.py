"""Finding kept pods of which no watch tells: they lost KubeVirt's label while nobody looked.

No selector finds finalizers. A pod that waits for us has not begun or has ended, so the pods that
run, most of a cluster's, are not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from webhook.cluster import Api
from webhook.reflector import PAGE
from webhook.vms import LauncherPod

PODS = "/api/v1/pods"
SELECTION = {
    "labelSelector": "kubevirt.io!=virt-launcher",
    "fieldSelector": "status.phase!=Running",
}


class _PageMeta(msgspec.Struct, rename="camel"):
    continue_: str = msgspec.field(default="", name="continue")


class _Pods(msgspec.Struct):
    metadata: _PageMeta = msgspec.field(default_factory=_PageMeta)
    items: list[LauncherPod] | None = None


def kept_pods(api: Api) -> Iterator[LauncherPod]:
    """List them, page by page. Raises ClusterError, DecodeError."""
    query: dict[str, str | int] = {**SELECTION, "limit": PAGE}
    while True:
        page = msgspec.json.decode(api.request("GET", PODS, query=query), type=_Pods)
        yield from (pod for pod in page.items or () if pod.is_held)
        if not page.metadata.continue_:
            return
        query["continue"] = page.metadata.continue_
