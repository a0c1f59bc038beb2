"""Preview manifests: run the pipeline on a file's pods and templates. Pure.

A pod is reviewed as on creation. A workload is reviewed as on `kubectl apply`, and then the pod
that its controller would create from the template.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
        if self.before is None or self.after is None:
            return []
        lines = difflib.unified_diff(_yaml(self.before), _yaml(self.after), lineterm="", n=2)
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
        what = described(document, self.namespace)
        namespace = str(metadata_of(document).get("namespace") or self.namespace)
        found = templates(document)
        try:
            if why := self.scope.why_not_served(namespace):
                return [self._unserved(Preview(what), [one for _, one in found], why)]
            made = self._workload(what, document, namespace)
            if made.refusals or document.get("kind") in workloads.VM_KINDS:
                return [made]
            previews = []
            for path, before in found:
                of_template = replace(made, what=named(what, path, found))
                previews.append(self._template(of_template, document, before, namespace))
                made = replace(made, warnings=[])
        except (ReviewError, msgspec.ValidationError) as exc:
            # the API server rejects such an object as well
            detail = str(exc).rpartition(": ")[2].replace("`", "")
            cure = 'annotation values must be strings, such as "15"'
            return [Preview(what, refusals=[f"the object is invalid: {detail}; {cure}"])]
        return previews

    def _unserved(self, made: Preview, found: Sequence[Document], why: str) -> Preview:
        """Return the preview of pods that are not sent to Holdfast; warn if they use it."""
        pods = [Pod.of(each) for each in found]
        if any(plugin.concerns(pod) for plugin in self.pipeline.profiles.plugins for pod in pods):
            return replace(made, warnings=[*made.warnings, f"not sent to Holdfast: {why}"])
        return replace(made, unserved=why)

    def _workload(self, what: str, document: Document, namespace: str) -> Preview:
        is_pod = _paths(document) == [""]
        if not (is_pod or is_known(document)):
            return Preview(what, warnings=[unknown_kind(document)])
        paths = [path for path, _ in templates(document)]
        warnings = [*unknown_fields.warnings(document, paths)]
        if is_pod:
            return Preview(what, warnings=warnings)
        verdict = self.pipeline.validate(reviewed(document, namespace), now_ms=self.now_ms)
        return Preview(what, (), verdict.reasons, [*warnings, *verdict.warnings])

    def _template(
        self, made: Preview, document: Document, before: Document, namespace: str
    ) -> Preview:
        """Add the review of the pod, or of a template's pod, to the preview of an object."""
        if why := self.scope.why_not_served(namespace, Pod.of(before).labels):
            return self._unserved(made, [before], why)
        warnings = [*made.warnings]
        pod = before if _paths(document) == [""] else pod_of(document, before)
        asked = reviewed(pod, namespace)
        seen = trace.mutate(self.pipeline.profiles, asked, now_ms=self.now_ms)
        steps = [*self._with_openings(seen, asked.pod)]
        failed = [step for step in steps if step.code is Code.ERROR]
        refusals = [f"plugin {step.plugin!r} cannot run here: {step.reason}" for step in failed]
        if seen.verdict is None:
            return Preview(made.what, steps, refusals, warnings)
        refusals += seen.verdict.reasons
        warnings += [one for one in seen.verdict.warnings if one not in warnings]
        operations = patch(asked.pod, seen.verdict.edits)
        if not refusals:
            stored = reviewed(_after(pod, operations), namespace)
            try:
                checked = self.pipeline.validate(stored, now_ms=self.now_ms)
                refusals += checked.reasons
                # the warnings of a template are already listed
                of_pod = () if is_known(document) else checked.warnings
                warnings += [one for one in of_pod if one not in warnings]
            except PluginFailedError as exc:
                refusals.append(str(exc))
        return Preview(made.what, steps, refusals, warnings, before, _after(before, operations))

    def _with_openings(self, seen: trace.Trace, pod: Pod) -> Iterator[trace.PluginStep]:
        """Yield the steps; a window step that holds the pod gets the next opening as its reason."""
        profile = self.pipeline.profiles.by_name.get(seen.profile)
        plugins = {one.name: one for one in profile.plugins} if profile else {}
        for step in seen.steps:
            plugin = plugins.get(step.plugin) if step.edits else None
            opens = plugin.opening(pod, self.now_ms) if isinstance(plugin, Window) else ""
            yield replace(step, reason=opens or step.reason)


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


def named(what: str, path: str, found: Sequence[Any]) -> str:
    """Return the name of an object's template, or of the object if it has only one."""
    return f"{what} ({path})" if len(found) > 1 else what


def templates(document: Document) -> Sequence[tuple[str, Document]]:
    """Return the pod or the pod templates of an object, with their paths.

    The first one is empty if it is missing.
    """
    found = [
        (at, part)
        for index, path in enumerate(_paths(document))
        for at, part in _parts(document, path)
        if index == 0 or isinstance(part, dict)
    ]
    parts = [(at, part if isinstance(part, dict) else {}) for at, part in found]
    return [(at, {**part, "metadata": part.get("metadata") or {}}) for at, part in parts]


def _parts(found: Any, path: str, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value at a path with its position; `[]` in the path stands for any list item."""
    step, _, rest = path.partition(".")
    if not step:
        yield at, found
        return
    key = step.removesuffix("[]")
    inner = found.get(key) if isinstance(found, dict) else None
    parts = [(key, inner)]
    if key != step:
        items = inner if isinstance(inner, list) and inner else [None]
        parts = [(f"{key}[{index}]", item) for index, item in enumerate(items)]
    for name, part in parts:
        yield from _parts(part, rest, f"{at}.{name}".removeprefix("."))


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
    found: Any = document
    for step in (*workloads.TEMPLATE.split("."), "spec", "containers"):
        found = found.get(step) if isinstance(found, dict) else None
    return isinstance(found, list)


def unknown_kind(document: Document) -> str:
    """Return the warning about an unknown kind that has a pod template."""
    return (
        f"Holdfast does not know kind {document.get('kind')} of {document.get('apiVersion')}: its "
        "template is not checked at kubectl apply, only its pods when they are created"
    )


def _after(pod: Document, operations: Sequence[edits.Operation]) -> Document:
    """Return a patched copy of a pod, which may lack a spec."""
    into_spec = any(operation["path"].startswith("/spec/") for operation in operations)
    whole = {**pod, "spec": pod.get("spec") or {}} if into_spec else pod
    made: Document = applied(whole, operations)
    return made


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
    return {**template, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def _yaml(document: Document) -> list[str]:
    return yaml.safe_dump(document, sort_keys=False, width=1_000).splitlines()
