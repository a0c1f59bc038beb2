"""Preview manifests: run the pipeline on a file's pods and templates. Pure.

A pod is reviewed as at creation. A workload is reviewed as at `kubectl apply`, then the pod that
its controller would create from the template.
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
    """The preview of an object; `before` and `after` are its pod or template."""

    what: str
    steps: Sequence[trace.PluginStep] = ()
    refusals: Sequence[str] = ()
    warnings: Sequence[str] = ()
    before: Document | None = None
    after: Document | None = None
    unserved: str = ""
    """Why pods that do not use it are not sent to Holdfast."""

    @property
    def diff(self) -> list[str]:
        """The changes as a diff of YAML."""
        if self.before is None or self.after is None:
            return []
        lines = difflib.unified_diff(_yaml(self.before), _yaml(self.after), lineterm="", n=2)
        return list(lines)[2:]  # without the file names


@dataclass(frozen=True, slots=True)
class OfflinePreview:
    """Previews pods and workloads as if created now."""

    pipeline: AdmissionPipeline
    namespace: str
    """That of objects that name none."""
    now_ms: int
    scope: AdmissionScope = field(default_factory=AdmissionScope)

    def preview(self, document: Document) -> Preview:
        """Preview a pod or a workload."""
        what = described(document, self.namespace)
        namespace = str(metadata_of(document).get("namespace") or self.namespace)
        try:
            if why := self.scope.why_not_served(namespace):
                return self._unserved(Preview(what), document, why)
            made = self._workload(what, document, namespace)
            if made.refusals or document.get("kind") in workloads.VM_KINDS:
                return made
            if why := self.scope.why_not_served(namespace, Pod.of(template(document)).labels):
                return self._unserved(made, document, why)
            return self._pod(made, document, namespace)
        except (ReviewError, msgspec.ValidationError) as exc:
            # the API server rejects such an object as well
            detail = str(exc).rpartition(": ")[2].replace("`", "")
            cure = 'annotation values must be strings, such as "15"'
            return Preview(what, refusals=[f"the object is invalid: {detail}; {cure}"])

    def _unserved(self, made: Preview, document: Document, why: str) -> Preview:
        """Say why its pods are not sent to Holdfast, with a warning if they ask for something."""
        pod = Pod.of(template(document))
        if any(plugin.concerns(pod) for plugin in self.pipeline.profiles.plugins):
            return replace(made, warnings=[*made.warnings, f"not sent to Holdfast: {why}"])
        return replace(made, unserved=why)

    def _workload(self, what: str, document: Document, namespace: str) -> Preview:
        path = _template_path(document) or ""
        if path and not is_known(document):
            return Preview(what, warnings=[unknown_kind(document)])
        warnings = [*unknown_fields.warnings(document, path)]
        if not path:
            return Preview(what, warnings=warnings)
        verdict = self.pipeline.validate(reviewed(document, namespace), now_ms=self.now_ms)
        return Preview(what, (), verdict.reasons, [*warnings, *verdict.warnings])

    def _pod(self, made: Preview, document: Document, namespace: str) -> Preview:
        """Add to the preview of a workload what becomes of its pods."""
        before, warnings = template(document), [*made.warnings]
        pod = pod_of(document) if _template_path(document) else before
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
                # those of a template are there already
                of_pod = () if is_known(document) else checked.warnings
                warnings += [one for one in of_pod if one not in warnings]
            except PluginFailedError as exc:
                refusals.append(str(exc))
        return Preview(made.what, steps, refusals, warnings, before, _after(before, operations))

    def _with_openings(self, seen: trace.Trace, pod: Pod) -> Iterator[trace.PluginStep]:
        """Add the next opening of its window to the step that holds a pod until then."""
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
    return _template_path(document) is not None


def described(document: Document, namespace: str) -> str:
    """Name an object: `Deployment default/web`."""
    metadata = metadata_of(document)
    name = metadata.get("name") or f"{metadata.get('generateName', '')}*"
    return f"{document.get('kind')} {metadata.get('namespace') or namespace}/{name}"


def metadata_of(document: Document) -> Document:
    """Return an object's metadata; empty if it is not a mapping."""
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def template(document: Document) -> Document:
    """Return the pod or the first pod template of an object."""
    found: Any = document
    for step in (_template_path(document) or "").split("."):
        found = (
            found.get(step.removesuffix("[]")) or {} if step and isinstance(found, dict) else found
        )
        found = found[0] if isinstance(found, list) and found else found
    found = found if isinstance(found, dict) else {}
    return {**found, "metadata": found.get("metadata") or {}}


def _template_path(document: Document) -> str | None:
    group, kind = _kind(document)
    if (group, kind) == ("", "Pod"):
        return ""
    known = workloads.template_path(group, kind)
    return known or (workloads.TEMPLATE if _has_template(document) else None)


def is_known(document: Document) -> bool:
    """Return whether Holdfast checks the template of an object's kind at `kubectl apply`."""
    return workloads.template_path(*_kind(document)) is not None


def _kind(document: Document) -> tuple[str, str]:
    group, _, _ = str(document.get("apiVersion", "")).rpartition("/")
    return group, str(document.get("kind", ""))


def _has_template(document: Document) -> bool:
    """Return whether an object of an unknown kind has a pod template where most kinds have it."""
    found: Any = document
    for step in (*workloads.TEMPLATE.split("."), "spec", "containers"):
        found = found.get(step) if isinstance(found, dict) else None
    return isinstance(found, list)


def unknown_kind(document: Document) -> str:
    """Say what it means that Holdfast does not know a kind that has a pod template."""
    return (
        f"Holdfast does not know kind {document.get('kind')} of {document.get('apiVersion')}: its "
        "template is not checked at kubectl apply, only its pods when they are created"
    )


def _after(pod: Document, operations: Sequence[edits.Operation]) -> Document:
    """Apply a patch to a pod that may have no spec."""
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


def pod_of(document: Document) -> Document:
    """Build the pod that a workload's controller would create."""
    owner = {
        "apiVersion": document.get("apiVersion"),
        "kind": document.get("kind"),
        "name": metadata_of(document).get("name") or "",
        "uid": _UNKNOWN_UID,
        "controller": True,
    }
    made = template(document)
    metadata = {**(made.get("metadata") or {}), "ownerReferences": [owner]}
    return {**made, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def _yaml(document: Document) -> list[str]:
    return yaml.safe_dump(document, sort_keys=False, width=1_000).splitlines()
