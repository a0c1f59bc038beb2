"""Preview manifests: run the pipeline on a file's pods and templates. Pure.

A pod is reviewed as on creation. A workload is reviewed as on `kubectl apply`, and then the pod
that its controller would create from the template.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import msgspec
import yaml

from holdfast.webhook.errors import PluginFailedError, ReviewError
from holdfast.webhook.framework.json_patch import applied, patch
from holdfast.webhook.framework.pipeline import AdmissionPipeline
from holdfast.webhook.framework.plugin import Code
from holdfast.webhook.model import edits, review, workloads
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.review import PodReview
from holdfast.webhook.plugins.window import Window
from holdfast.webhook.report import trace, unknown_fields
from holdfast.webhook.report.scope import AdmissionScope

Document = Mapping[str, Any]

WRITABLE: Mapping[str, tuple[str, ...]] = {
    "metadata": ("annotations", "labels", "finalizers"),
    "spec": ("schedulerName", "schedulingGates", "nodeSelector", "affinity", "tolerations"),
}
"""The pod fields that Holdfast may write; a preview shows only these."""
_MAX_WARNINGS = 20
"""Maximum warnings about unknown fields, whose paths may be long."""
_UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Preview:
    """The preview of an object or one of its templates, with the template `before` and `after`."""

    what: str
    steps: Sequence[trace.PluginStep] = ()
    refusals: Sequence[str] = ()
    warnings: Sequence[str] = ()
    before: Document | None = None
    after: Document | None = None
    unserved: str = ""
    """Why the pods, which do not use Holdfast, are not sent to it; empty if they are."""

    @property
    def diff(self) -> list[str]:
        """The changes, as a YAML diff."""
        if self.before is None or self.after is None or self.before == self.after:
            return []
        lines = difflib.unified_diff(
            _yaml(_writable(self.before)), _yaml(_writable(self.after)), lineterm="", n=2
        )
        return list(lines)[2:]  # without the file names


@dataclass(frozen=True, slots=True)
class OfflinePreview:
    """Previews pods and workloads as if they were created now."""

    pipeline: AdmissionPipeline
    namespace: str
    """The namespace of objects that do not set one."""
    now_ms: int
    scope: AdmissionScope = field(default_factory=AdmissionScope)

    def preview(self, document: Document) -> Sequence[Preview]:
        """Preview a pod, or each template of a workload."""
        subject = described(document, self.namespace)
        namespace = str(metadata_of(document).get("namespace") or self.namespace)
        parts = templates(document)
        try:
            if reason := self.scope.why_not_served(namespace):
                return [
                    self._unserved(Preview(subject), [template for _, template in parts], reason)
                ]
            preview = self._workload(subject, document, namespace)
            if preview.refusals or document.get("kind") in workloads.VM_KINDS:
                return [preview]
            previews = []
            for path, template in parts:
                template_preview = replace(preview, what=named(subject, path, parts))
                previews.append(self._template(template_preview, document, template, namespace))
                preview = replace(preview, warnings=[])
        except (ReviewError, msgspec.ValidationError) as exc:
            # the API server rejects such an object as well
            detail = str(exc).rpartition(": ")[2].replace("`", "")
            cure = 'annotation values must be strings, such as "15"'
            return [Preview(subject, refusals=[f"the object is invalid: {detail}; {cure}"])]
        return previews

    def _unserved(self, preview: Preview, documents: Sequence[Document], reason: str) -> Preview:
        """Return the preview of pods that are not sent to Holdfast; warn if they use it."""
        pods = [Pod.of(document) for document in documents]
        if any(plugin.concerns(pod) for plugin in self.pipeline.profiles.plugins for pod in pods):
            return replace(preview, warnings=[*preview.warnings, f"not sent to Holdfast: {reason}"])
        return replace(preview, unserved=reason)

    def _workload(self, subject: str, document: Document, namespace: str) -> Preview:
        is_pod = _paths(document) == [""]
        if not (is_pod or is_known(document)):
            return Preview(subject, warnings=[unknown_kind(document)])
        paths = [path for path, _ in templates(document)]
        warnings = [*islice(unknown_fields.warnings(document, paths), _MAX_WARNINGS)]
        if is_pod:
            return Preview(subject, warnings=warnings)
        verdict = self.pipeline.validate(reviewed(document, namespace), now_ms=self.now_ms)
        return Preview(subject, (), verdict.reasons, [*warnings, *verdict.warnings])

    def _template(
        self, preview: Preview, document: Document, before: Document, namespace: str
    ) -> Preview:
        """Add the review of the pod, or of a template's pod, to the preview of an object."""
        if reason := self.scope.why_not_served(namespace, Pod.of(before).labels):
            return self._unserved(preview, [before], reason)
        warnings = [*preview.warnings]
        pod = before if _paths(document) == [""] else pod_of(document, before)
        pod_review = reviewed(pod, namespace)
        mutation = trace.mutate(self.pipeline.profiles, pod_review, now_ms=self.now_ms)
        steps = [*self._with_openings(mutation, pod_review.pod)]
        failures = [step for step in steps if step.code is Code.ERROR]
        refusals = [f"plugin {step.plugin!r} cannot run here: {step.reason}" for step in failures]
        if mutation.verdict is None:
            return Preview(preview.what, steps, refusals, warnings)
        refusals += mutation.verdict.reasons
        warnings += [warning for warning in mutation.verdict.warnings if warning not in warnings]
        operations = patch(pod_review.pod, mutation.verdict.edits)
        if not refusals:
            stored_review = reviewed(_after(pod, operations), namespace)
            try:
                verdict = self.pipeline.validate(stored_review, now_ms=self.now_ms)
                refusals += verdict.reasons
                # the warnings of a template are already listed
                pod_warnings = () if is_known(document) else verdict.warnings
                warnings += [warning for warning in pod_warnings if warning not in warnings]
            except PluginFailedError as exc:
                refusals.append(str(exc))
        return Preview(preview.what, steps, refusals, warnings, before, _after(before, operations))

    def _with_openings(self, mutation: trace.Trace, pod: Pod) -> Iterator[trace.PluginStep]:
        """Yield the steps; a window step that holds the pod gets the next opening as its reason."""
        profile = self.pipeline.profiles.by_name.get(mutation.profile)
        plugins = {plugin.name: plugin for plugin in profile.plugins} if profile else {}
        for step in mutation.steps:
            step_plugin = plugins.get(step.plugin) if step.edits else None
            opening = (
                step_plugin.opening(pod, self.now_ms) if isinstance(step_plugin, Window) else ""
            )
            yield replace(step, reason=opening or step.reason)


def objects(document: Any) -> Iterator[Document]:
    """Yield the document, or the items of a List."""
    if not isinstance(document, dict):
        return
    items = document.get("items")
    if str(document.get("kind", "")).endswith("List") and isinstance(items, list):
        for item in items:
            yield from objects(item)
    else:
        yield document


def concerns(document: Document) -> bool:
    """Return whether an object is a pod or has a pod template."""
    return bool(_paths(document))


def described(document: Document, namespace: str) -> str:
    """Return an object's kind, namespace and name: `Deployment default/web`."""
    metadata = metadata_of(document)
    name = metadata.get("name") or f"{metadata.get('generateName', '')}*"
    return f"{document.get('kind')} {metadata.get('namespace') or namespace}/{name}"


def metadata_of(document: Document) -> Document:
    """Return an object's metadata; empty if it is not a mapping."""
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def named(subject: str, path: str, parts: Sequence[Any]) -> str:
    """Return the name of an object's template, or of the object if it has only one."""
    return f"{subject} ({path})" if len(parts) > 1 else subject


def templates(document: Document) -> Sequence[tuple[str, Document]]:
    """Return the pod or the pod templates of an object, with their paths.

    The first one is empty if it is missing.
    """
    values = [
        (position, part)
        for index, path in enumerate(_paths(document))
        for position, part in _parts(document, path)
        if index == 0 or isinstance(part, dict)
    ]
    parts = [(position, part if isinstance(part, dict) else {}) for position, part in values]
    return [
        (position, {**part, "metadata": part.get("metadata") or {}}) for position, part in parts
    ]


def _parts(value: Any, path: str, position: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value at a path with its position; `[]` in the path stands for any list item."""
    step, _, subpath = path.partition(".")
    if not step:
        yield position, value
        return
    key = step.removesuffix("[]")
    inner = value.get(key) if isinstance(value, dict) else None
    parts = [(key, inner)]
    if key != step:
        items = inner if isinstance(inner, list) and inner else [None]
        parts = [(f"{key}[{index}]", item) for index, item in enumerate(items)]
    for name, part in parts:
        yield from _parts(part, subpath, f"{position}.{name}".removeprefix("."))


def _paths(document: Document) -> Sequence[str]:
    """Return the paths of an object's templates; for a pod, an empty path."""
    group, kind = _kind(document)
    if (group, kind) == ("", "Pod"):
        return [""]
    if resource := workloads.resource_of(group, kind):
        return resource.paths
    return [workloads.TEMPLATE] if _has_template(document) else []


def is_known(document: Document) -> bool:
    """Return whether Holdfast checks the template of this kind on `kubectl apply`."""
    return workloads.resource_of(*_kind(document)) is not None


def _kind(document: Document) -> tuple[str, str]:
    group, _, _ = str(document.get("apiVersion", "")).rpartition("/")
    return group, str(document.get("kind", ""))


def _has_template(document: Document) -> bool:
    """Return whether an object of an unknown kind has a pod template at the usual path."""
    value: Any = document
    for step in (*workloads.TEMPLATE.split("."), "spec", "containers"):
        value = value.get(step) if isinstance(value, dict) else None
    return isinstance(value, list)


def unknown_kind(document: Document) -> str:
    """Return the warning about an unknown kind that has a pod template."""
    return (
        f"Holdfast does not know kind {document.get('kind')} of {document.get('apiVersion')}: its "
        "template is not checked at kubectl apply, only its pods when they are created"
    )


def _after(pod: Document, operations: Sequence[edits.Operation]) -> Document:
    """Return a patched copy of a pod, which may lack a spec."""
    into_spec = any(operation["path"].startswith("/spec/") for operation in operations)
    document = {**pod, "spec": pod.get("spec") or {}} if into_spec else pod
    patched: Document = applied(document, operations)
    return patched


def reviewed(document: Document, namespace: str) -> PodReview:
    """Build the review of an object's creation. Raises ReviewError."""
    group, _, version = str(document.get("apiVersion", "")).rpartition("/")
    kind = {"group": group, "version": version, "kind": document.get("kind")}
    request = {
        "uid": "preview",
        "kind": kind,
        "operation": "CREATE",
        "name": metadata_of(document).get("name") or "",
        "namespace": namespace,
        "object": document,
    }
    body = {"apiVersion": review.API_VERSION, "kind": "AdmissionReview", "request": request}
    return review.parse(msgspec.json.encode(body, enc_hook=str))


def pod_of(document: Document, template: Document) -> Document:
    """Build the pod that a workload's controller would create from a template."""
    owner = {
        "apiVersion": document.get("apiVersion"),
        "kind": document.get("kind"),
        "name": metadata_of(document).get("name") or "preview",
        "uid": _UNKNOWN_UID,
        "controller": True,
    }
    metadata = {**template["metadata"], "ownerReferences": [owner]}
    metadata.pop("namespace", None)  # controllers ignore it
    return {**template, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def _writable(pod: Document) -> Document:
    """Return the part of a pod that Holdfast may write; comparing others may take hours."""
    parts = {
        part: {key: value for key, value in (pod.get(part) or {}).items() if key in fields}
        for part, fields in WRITABLE.items()
    }
    return {part: values for part, values in parts.items() if values}


def _yaml(document: Document) -> list[str]:
    return yaml.safe_dump(document, sort_keys=False, width=1_000).splitlines()
