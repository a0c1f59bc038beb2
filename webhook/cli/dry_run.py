"""Preview objects by a server-side dry run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube.client import APPLY_PATCH, Api, Query
from holdfast.webhook.model import workloads
from holdfast.webhook.report import preview
from holdfast.webhook.report.preview import Document, Preview

FIELD_MANAGER = "holdfast-preview"
DECIDED: Mapping[str, tuple[str, ...]] = {
    "metadata": ("annotations", "finalizers"),
    "spec": ("schedulerName", "schedulingGates", "nodeSelector", "affinity", "tolerations"),
}
"""The pod fields that Holdfast may write; others are omitted."""

_REFUSED = frozenset({400, 403, 422})


@dataclass(frozen=True, slots=True)
class DryRun:
    """Previews by the API server, including other webhooks; nothing is stored."""

    api: Api
    namespace: str

    def preview(self, document: Document) -> Preview:
        """Preview a pod or a workload. Raises ClusterError if the request fails."""
        what = preview.described(document, self.namespace)
        metadata = document.get("metadata") or {}
        namespace = str(metadata.get("namespace") or self.namespace)
        pod = document if document.get("kind") == "Pod" else preview.pod_of(document)
        try:
            if pod is not document:
                self._apply(document, namespace)
                if document.get("kind") in workloads.VM_KINDS:
                    return Preview(what)
            pods = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
            stored = msgspec.json.decode(self._send("POST", pods, _anonymous(pod), {}))
        except ApiStatusError as exc:
            if exc.status in _REFUSED:
                return Preview(what, refusals=[str(exc)])
            raise
        return Preview(what, before=decided(preview.template(document)), after=decided(stored))

    def _apply(self, document: Document, namespace: str) -> None:
        group, _, version = str(document.get("apiVersion", "")).rpartition("/")
        kind = document.get("kind")
        plural = next(
            one.name for one in workloads.RESOURCES if (one.group, one.kind) == (group, kind)
        )
        name = quote(str(preview.metadata_of(document).get("name") or "preview"), safe="")
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        path = f"{root}/namespaces/{quote(namespace, safe='')}/{plural}/{name}"
        self._send("PATCH", path, document, {"fieldManager": FIELD_MANAGER, "force": "true"})

    def _send(self, method: str, path: str, document: Document, query: Query) -> bytes:
        kind = APPLY_PATCH if method == "PATCH" else "application/json"
        body = msgspec.json.encode(document)
        return self.api.request(
            method, path, query={"dryRun": "All", **query}, body=body, content_type=kind
        )


def decided(pod: Document) -> Document:
    """Keep only the fields that Holdfast may write."""
    kept: dict[str, Any] = {}
    for part, fields in DECIDED.items():
        found = pod.get(part) or {}
        chosen = {field: found[field] for field in fields if found.get(field)}
        if chosen:
            kept[part] = chosen
    return kept


def _anonymous(pod: Document) -> Document:
    """Give the pod a generated name and no owner, in case it exists."""
    metadata = dict(preview.metadata_of(pod))
    for field in ("name", "ownerReferences", "namespace"):
        metadata.pop(field, None)
    return {**pod, "metadata": {**metadata, "generateName": "preview-"}}
