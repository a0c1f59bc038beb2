"""Previews of pods and workloads by the API server, for `holdfast preview --dry-run=server`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from holdfast.webhook import safe_json
from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.framework import json_patch
from holdfast.webhook.framework.profiles import DEFAULT_SCHEDULER
from holdfast.webhook.kube.api import APPLY_PATCH, Api, Query
from holdfast.webhook.model import workloads
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.report import preview as previews
from holdfast.webhook.report.preview import Document, Preview

FIELD_MANAGER = "holdfast-preview"

_DEFAULTED = [
    json_patch.write_toleration(toleration) for toleration in json_patch.DEFAULT_TOLERATIONS
]
"""Tolerations that the admission plugin DefaultTolerationSeconds adds to every pod."""
_BAD_PATCH = "failed to create typed patch object"
"""The message of the API server's status 500 for an apply with an unknown field."""


@dataclass(frozen=True, slots=True)
class ServerPreview:
    """Server-side previews, including other webhooks; nothing is stored."""

    api: Api
    namespace: str
    warned: list[str]
    """The warnings of responses, appended by the connection."""

    def preview(self, document: Document) -> Sequence[Preview]:
        """Return previews of a pod or of each template of a workload. Raises ClusterError."""
        result = Preview(previews.described(document, self.namespace))
        namespace = str((document.get("metadata") or {}).get("namespace") or self.namespace)
        if previews.is_known(document):
            result = self._workload(result, document, namespace)
            if result.refusals or document.get("kind") in workloads.VM_KINDS:
                return [result]
        elif document.get("kind") != "Pod":
            result = replace(result, warnings=[previews.unknown_kind(document)])
        templates, results = previews.templates(document), []
        for path, template in templates:
            template_result = replace(result, what=previews.named(result.what, path, templates))
            results.append(self._pod(template_result, document, template, namespace))
            result = replace(result, warnings=[])
        return results

    def _workload(self, result: Preview, document: Document, namespace: str) -> Preview:
        self.warned.clear()
        try:
            self._apply(document, namespace)
        except ApiStatusError as exc:
            return _refused(replace(result, warnings=self.warned[:]), exc)
        return replace(result, warnings=[*dict.fromkeys(self.warned)])

    def _pod(
        self, result: Preview, document: Document, template: Document, namespace: str
    ) -> Preview:
        self.warned.clear()
        pod = template if document.get("kind") == "Pod" else previews.pod_of(document, template)
        path = api_path("v1", "pods", namespace)
        try:
            stored = safe_json.decode(safe_json.ANY, self._send("POST", path, _anonymous(pod), {}))
        except ApiStatusError as exc:
            return _refused(replace(result, warnings=result.warnings or self.warned[:]), exc)
        if not previews.is_known(document):  # else the workload's are included
            result = replace(result, warnings=[*result.warnings, *dict.fromkeys(self.warned)])
        return replace(result, before=decided(template), after=decided(stored))

    def _apply(self, document: Document, namespace: str) -> None:
        version, kind = str(document.get("apiVersion", "")), document.get("kind")
        group = version.rpartition("/")[0]
        plural = next(
            resource.name
            for resource in workloads.RESOURCES
            if (resource.group, resource.kind) == (group, kind)
        )
        name = str(previews.metadata_of(document).get("name") or "preview")
        path = api_path(version, plural, namespace, name)
        self._send("PATCH", path, document, {"fieldManager": FIELD_MANAGER, "force": "true"})

    def _send(self, method: str, path: str, document: Document, query: Query) -> bytes:
        kind = APPLY_PATCH if method == "PATCH" else "application/json"
        body = msgspec.json.encode(document)
        return self.api.request(
            method, path, query={"dryRun": "All", **query}, body=body, content_type=kind
        )


def _refused(result: Preview, exc: ApiStatusError) -> Preview:
    """Return the preview with the API server's rejection. Re-raises any other error."""
    if exc.status in {400, 403, 422} or _BAD_PATCH in str(exc):
        return replace(result, refusals=[str(exc)])
    raise exc


def decided(pod: Document) -> Document:
    """Return the fields that Holdfast may write, sorted, without the defaults of every pod."""
    result: dict[str, Any] = {}
    for part, fields in previews.WRITABLE.items():
        source = pod.get(part) or {}
        values = {field: _ordered(source[field]) for field in fields if source.get(field)}
        if values.get("schedulerName") == DEFAULT_SCHEDULER:
            del values["schedulerName"]
        tolerations = [
            toleration
            for toleration in values.pop("tolerations", ())
            if toleration not in _DEFAULTED
        ]
        values |= {"tolerations": tolerations} if tolerations else {}
        if values:
            result[part] = values
    return result


def _ordered(value: Any) -> Any:
    """Return the value with sorted keys, as the API server sorts annotations."""
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value, key=str)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value


def _anonymous(pod: Document) -> Document:
    """Return the pod with a generated name and without owners, in case it exists.

    A DaemonSet stays its owner, because Holdfast does not place the pods of DaemonSets.
    """
    metadata = dict(previews.metadata_of(pod))
    owners = metadata.get("ownerReferences") or ()
    for field in ("name", "ownerReferences", "namespace"):
        metadata.pop(field, None)
    if daemon_sets := [owner for owner in owners if owner.get("kind") == "DaemonSet"]:
        metadata["ownerReferences"] = daemon_sets
    return {**pod, "metadata": {**metadata, "generateName": "preview-"}}
