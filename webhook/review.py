"""AdmissionReview in and out: parsing requests, answering them, and the patch made of edits.

Pure: no I/O, no clock. The wire format is `admission.k8s.io/v1`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from webhook import workloads
from webhook.errors import ReviewError
from webhook.objects import Pod
from webhook.workloads import Workload

API_VERSION = "admission.k8s.io/v1"
WARNING_LENGTH = 240
"""Bytes of one warning; the API server cuts at 256."""

_MESSAGE_LENGTH, _DETAIL_LENGTH = 2_000, 200


class UserInfo(msgspec.Struct, frozen=True):
    """Who sent the request to the API server."""

    username: str = ""


class GroupVersionKind(msgspec.Struct, frozen=True):
    """The kind of the object under review."""

    kind: str
    group: str = ""
    version: str = ""


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """The request part of an AdmissionReview; the objects are left as JSON until asked for."""

    uid: str
    kind: GroupVersionKind
    operation: Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
    name: str = ""
    namespace: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")
    dry_run: bool | None = None
    user_info: UserInfo = UserInfo()


class _AdmissionReview(msgspec.Struct, frozen=True, rename="camel"):
    api_version: Literal["admission.k8s.io/v1"]
    kind: Literal["AdmissionReview"]
    request: Request


@dataclass(frozen=True, slots=True)
class PodReview:
    """A pod under review, and the pod as it was before an update.

    Where a workload is reviewed, `workload` says which, and the pod is its template.
    """

    request: Request
    pod: Pod
    old: Pod | None
    workload: Workload | None = None

    @property
    def described(self) -> str:
        """Name the pod for a log line; at creation it may have no name yet."""
        metadata = self.pod.metadata
        name = self.request.name or metadata.name or f"{metadata.generate_name}*"
        kind = f"{self.workload.kind} " if self.workload else ""
        return f"{kind}{self.request.namespace}/{name}"

    def whole_pod(self) -> Any:
        """Decode the pod with all its fields, for a plugin that needs more than `pod` has."""
        return msgspec.json.decode(self.request.object)


_REVIEW = msgspec.json.Decoder(_AdmissionReview)
_POD = msgspec.json.Decoder(Pod | None)


def parse(body: bytes) -> PodReview:
    """Parse a review of a pod or of a workload. Raises ReviewError when the body is none."""
    try:
        request = _REVIEW.decode(body).request
        review = _review(request)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        detail = ascii(str(exc)[:_DETAIL_LENGTH])[1:-1]  # it may quote the body
        raise ReviewError(f"the body is no AdmissionReview of {API_VERSION}: {detail}") from None
    if review is None:
        raise ReviewError("request.object is null; register only CREATE and UPDATE")
    return review


def _review(request: Request) -> PodReview | None:
    kind = request.kind
    if (kind.group, kind.kind) == ("", "Pod"):
        pod = _POD.decode(request.object)
        return pod and PodReview(request, pod, _POD.decode(request.old_object))
    path = workloads.template_path(kind.group, kind.kind)
    if path is None:
        raise ReviewError(
            f"a review of kind {kind.kind[:40]!a} came; register only pods and workloads"
        )
    found = workloads.read(kind.kind, path, request.object)
    old = workloads.read(kind.kind, path, request.old_object)
    return found and PodReview(request, found[1], old and old[1], found[0])


# --- edits -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddGate:
    """Add a scheduling gate behind those that are there; nothing when it is there already."""

    name: str


@dataclass(frozen=True, slots=True)
class SetAnnotation:
    """Set an annotation of the pod."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class RemoveAnnotation:
    """Take an annotation off; nothing when it is not there."""

    key: str


@dataclass(frozen=True, slots=True)
class SetSchedulerName:
    """Say which scheduler profile is to place the pod."""

    name: str


Edit = AddGate | SetAnnotation | RemoveAnnotation | SetSchedulerName
Operation = dict[str, Any]


def patch(pod: Pod, edits: Iterable[Edit]) -> list[Operation]:
    """Make the smallest JSON Patch (RFC 6902) that does what the edits say; later edits win."""
    gates: list[str] = []
    annotations: dict[str, str | None] = {}
    scheduler = pod.spec.scheduler_name
    for edit in edits:
        match edit:
            case AddGate(name):
                if name not in gates and name not in pod.gates:
                    gates.append(name)
            case SetAnnotation(key, value):
                annotations[key] = value
            case RemoveAnnotation(key):
                annotations[key] = None
            case SetSchedulerName(name):
                scheduler = name
    operations = [*_gate_operations(pod, gates), *_annotation_operations(pod, annotations)]
    if scheduler != pod.spec.scheduler_name:
        operations.append({"op": "add", "path": "/spec/schedulerName", "value": scheduler})
    return operations


def _gate_operations(pod: Pod, names: Sequence[str]) -> list[Operation]:
    added = [{"name": name} for name in names]
    if added and pod.spec.scheduling_gates is None:
        return [{"op": "add", "path": "/spec/schedulingGates", "value": added}]
    return [{"op": "add", "path": "/spec/schedulingGates/-", "value": gate} for gate in added]


def _annotation_operations(pod: Pod, changes: dict[str, str | None]) -> list[Operation]:
    present = pod.metadata.annotations
    if present is None:
        added = {key: value for key, value in changes.items() if value is not None}
        return [{"op": "add", "path": "/metadata/annotations", "value": added}] if added else []
    operations: list[Operation] = []
    for key, value in changes.items():
        path = "/metadata/annotations/" + pointer(key)
        if value is None:
            if key in present:
                operations.append({"op": "remove", "path": path})
        elif present.get(key) != value:
            operations.append({"op": "add", "path": path, "value": value})
    return operations


def pointer(key: str) -> str:
    """Escape a key for a JSON Pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


# --- answers -----------------------------------------------------------------------------------


def allowed(
    request: Request, operations: Sequence[Operation] = (), warnings: Sequence[str] = ()
) -> bytes:
    """Answer that the object may be stored, changed by the operations."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(operations)).decode()
    return _answer(response, warnings)


def refused(request: Request, message: str, warnings: Sequence[str] = ()) -> bytes:
    """Answer that the object may not be stored, as the API server answers an invalid value."""
    status = {"code": 422, "reason": "Invalid", "message": message[:_MESSAGE_LENGTH]}
    return _answer({"uid": request.uid, "allowed": False, "status": status}, warnings)


def _answer(response: dict[str, Any], warnings: Sequence[str]) -> bytes:
    if warnings:
        response["warnings"] = [_cut(warning) for warning in warnings]
    return msgspec.json.encode(
        {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}
    )


def _cut(warning: str) -> str:
    encoded = warning.encode()
    if len(encoded) <= WARNING_LENGTH:
        return warning
    return encoded[: WARNING_LENGTH - 3].decode(errors="ignore") + "…"
