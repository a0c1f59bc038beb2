"""What Holdfast would make of manifests: the pipeline, run on a file's pods and templates. Pure.

A pod is reviewed as at its creation; of a workload the object first, as at `kubectl apply`, then
the pod that its controller would make of the template.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from webhook import review, trace, workloads
from webhook.errors import PluginFailedError, ReviewError
from webhook.framework import Code
from webhook.patch import applied, patch
from webhook.pipeline import Pipeline
from webhook.review import PodReview

Document = Mapping[str, Any]

_UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"
_NOT_PODS = frozenset({"VirtualMachine"})
"""Kinds whose template is no pod's: others make the pods of it."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What becomes of one object.

    `before` and `after` are the pod or template, without and with what Holdfast writes into it.
    """

    what: str
    steps: Sequence[trace.Step] = ()
    refusals: Sequence[str] = ()
    warnings: Sequence[str] = ()
    before: Document | None = None
    after: Document | None = None

    @property
    def diff(self) -> list[str]:
        """The difference that Holdfast makes, as lines of YAML."""
        if self.before is None or self.after is None:
            return []
        lines = difflib.unified_diff(_yaml(self.before), _yaml(self.after), lineterm="", n=2)
        return list(lines)[2:]  # without the names of two files that are none


def objects(document: Any) -> Iterator[Document]:
    """Go through the objects of a document: itself, or the items of a List."""
    if not isinstance(document, dict):
        return
    items = document.get("items")
    if str(document.get("kind", "")).endswith("List") and isinstance(items, list):
        for item in items:
            yield from objects(item)
    else:
        yield document


def concerns(document: Document) -> bool:
    """Tell whether an object is a pod, or carries the template of one."""
    return _template_path(document) is not None


def preview(document: Document, pipeline: Pipeline, *, namespace: str, now_ms: int) -> Preview:
    """Preview a pod or a workload, created now."""
    what = described(document, namespace)
    try:
        return _preview(document, pipeline, what, namespace, now_ms)
    except (ReviewError, msgspec.ValidationError) as exc:
        # the API server takes no such object either
        detail = str(exc).rpartition(": ")[2].replace("`", "")
        reason = (
            f'the object is not as its kind has it: {detail}; annotations are texts: write "15"'
        )
        return Preview(what, refusals=[reason])


def described(document: Document, namespace: str) -> str:
    """Name an object: `Deployment default/web`."""
    metadata = metadata_of(document)
    name = metadata.get("name") or f"{metadata.get('generateName', '')}*"
    return f"{document.get('kind')} {metadata.get('namespace') or namespace}/{name}"


def metadata_of(document: Document) -> Document:
    """Give an object's metadata; nothing where that is no mapping."""
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def template(document: Document) -> Document:
    """Give the pod or the pod template in an object that `concerns`."""
    found: Any = document
    for step in (_template_path(document) or "").split("."):
        found = found.get(step) or {} if step and isinstance(found, dict) else found
    found = found if isinstance(found, dict) else {}
    return {**found, "metadata": found.get("metadata") or {}}


def _template_path(document: Document) -> str | None:
    group, _, _ = str(document.get("apiVersion", "")).rpartition("/")
    kind = str(document.get("kind", ""))
    return "" if (group, kind) == ("", "Pod") else workloads.template_path(group, kind)


def _preview(
    document: Document, pipeline: Pipeline, what: str, namespace: str, now_ms: int
) -> Preview:
    is_pod = _template_path(document) == ""
    refusals: list[str] = []
    warnings: list[str] = []
    if not is_pod:
        verdict = pipeline.validate(reviewed(document, namespace), now_ms=now_ms)
        refusals, warnings = list(verdict.reasons), list(verdict.warnings)
        if refusals or document.get("kind") in _NOT_PODS:
            return Preview(what, (), refusals, warnings)
    before = template(document)
    pod = before if is_pod else pod_of(document)
    made = reviewed(pod, namespace)
    seen = trace.mutate(pipeline, made, now_ms=now_ms)
    failed = [step for step in seen.steps if step.code is Code.ERROR]
    refusals += [f"plugin {step.plugin!r} cannot decide here: {step.reason}" for step in failed]
    if seen.verdict is None:
        return Preview(what, seen.steps, refusals, warnings)
    refusals += seen.verdict.reasons
    warnings += [one for one in seen.verdict.warnings if one not in warnings]
    operations = patch(made.pod, seen.verdict.edits)
    if not refusals:
        refusals += _validated(_after(pod, operations), pipeline, namespace, now_ms)
    return Preview(what, seen.steps, refusals, warnings, before, _after(before, operations))


def _after(pod: Document, operations: Sequence[review.Operation]) -> Document:
    """Apply a patch to a pod that a person may have written in part, without its spec."""
    into_spec = any(operation["path"].startswith("/spec/") for operation in operations)
    whole = {**pod, "spec": pod.get("spec") or {}} if into_spec else pod
    made: Document = applied(whole, operations)
    return made


def _validated(pod: Document, pipeline: Pipeline, namespace: str, now_ms: int) -> Sequence[str]:
    try:
        return pipeline.validate(reviewed(pod, namespace), now_ms=now_ms).reasons
    except PluginFailedError as exc:
        return [str(exc)]


def reviewed(document: Document, namespace: str) -> PodReview:
    """Make the review of an object's creation. Raises ReviewError."""
    group, _, version = str(document.get("apiVersion", "")).rpartition("/")
    metadata = metadata_of(document)
    kind = {"group": group, "version": version, "kind": document.get("kind")}
    request = {
        "uid": "preview",
        "kind": kind,
        "operation": "CREATE",
        "name": metadata.get("name") or "",
        "namespace": metadata.get("namespace") or namespace,
        "object": document,
    }
    body = {"apiVersion": review.API_VERSION, "kind": "AdmissionReview", "request": request}
    return review.parse(msgspec.json.encode(body, enc_hook=str))


def pod_of(document: Document) -> Document:
    """Make the pod that a workload's controller would make of its template."""
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
