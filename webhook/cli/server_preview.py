"""Previews of pods and workloads by the API server, for `holdfast preview --dry-run=server`."""

from collections.abc import Mapping, Sequence
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
DECIDED: Mapping[str, tuple[str, ...]] = {
    "metadata": ("annotations", "labels", "finalizers"),
    "spec": ("schedulerName", "schedulingGates", "nodeSelector", "affinity", "tolerations"),
}
"""The pod fields that Holdfast may write; others are omitted."""

_DEFAULTED = [json_patch.write_toleration(one) for one in json_patch.DEFAULT_TOLERATIONS]
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
        made = Preview(previews.described(document, self.namespace))
        namespace = str((document.get("metadata") or {}).get("namespace") or self.namespace)
        if previews.is_known(document):
            made = self._workload(made, document, namespace)
            if made.refusals or document.get("kind") in workloads.VM_KINDS:
                return [made]
        elif document.get("kind") != "Pod":
            made = replace(made, warnings=[previews.unknown_kind(document)])
        found, shown = previews.templates(document), []
        for path, before in found:
            of_template = replace(made, what=previews.named(made.what, path, found))
            shown.append(self._pod(of_template, document, before, namespace))
            made = replace(made, warnings=[])
        return shown

    def _workload(self, made: Preview, document: Document, namespace: str) -> Preview:
        self.warned.clear()
        try:
            self._apply(document, namespace)
        except ApiStatusError as exc:
            return _refused(replace(made, warnings=self.warned[:]), exc)
        return replace(made, warnings=[*dict.fromkeys(self.warned)])

    def _pod(self, made: Preview, document: Document, before: Document, namespace: str) -> Preview:
        self.warned.clear()
        pod = before if document.get("kind") == "Pod" else previews.pod_of(document, before)
        path = api_path("v1", "pods", namespace)
        try:
            stored = safe_json.decode(safe_json.ANY, self._send("POST", path, _anonymous(pod), {}))
        except ApiStatusError as exc:
            return _refused(replace(made, warnings=made.warnings or self.warned[:]), exc)
        if not previews.is_known(document):  # else the workload's are included
            made = replace(made, warnings=[*made.warnings, *dict.fromkeys(self.warned)])
        return replace(made, before=decided(before), after=decided(stored))

    def _apply(self, document: Document, namespace: str) -> None:
        version, kind = str(document.get("apiVersion", "")), document.get("kind")
        group = version.rpartition("/")[0]
        plural = next(
            one.name for one in workloads.RESOURCES if (one.group, one.kind) == (group, kind)
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


def _refused(made: Preview, exc: ApiStatusError) -> Preview:
    """Return the preview with the API server's rejection. Re-raises any other error."""
    if exc.status in {400, 403, 422} or _BAD_PATCH in str(exc):
        return replace(made, refusals=[str(exc)])
    raise exc


def decided(pod: Document) -> Document:
    """Return the fields that Holdfast may write, sorted, without the defaults of every pod."""
    kept: dict[str, Any] = {}
    for part, fields in DECIDED.items():
        found = pod.get(part) or {}
        chosen = {field: _ordered(found[field]) for field in fields if found.get(field)}
        if chosen.get("schedulerName") == DEFAULT_SCHEDULER:
            del chosen["schedulerName"]
        tolerations = [one for one in chosen.pop("tolerations", ()) if one not in _DEFAULTED]
        chosen |= {"tolerations": tolerations} if tolerations else {}
        if chosen:
            kept[part] = chosen
    return kept


def _ordered(value: Any) -> Any:
    """Return the value with sorted keys, as the API server sorts annotations."""
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value, key=str)}
    return [_ordered(one) for one in value] if isinstance(value, list) else value


def _anonymous(pod: Document) -> Document:
    """Return the pod with a generated name and without owners, in case it exists.

    A DaemonSet stays its owner, because Holdfast does not place the pods of DaemonSets.
    """
    metadata = dict(previews.metadata_of(pod))
    owners = metadata.get("ownerReferences") or ()
    for field in ("name", "ownerReferences", "namespace"):
        metadata.pop(field, None)
    if kept := [one for one in owners if one.get("kind") == "DaemonSet"]:
        metadata["ownerReferences"] = kept
    return {**pod, "metadata": {**metadata, "generateName": "preview-"}}
