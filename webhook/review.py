"""AdmissionReview in and out: parsing requests, answering them, and the edits plugins ask for.

Pure: no I/O, no clock. The wire format is `admission.k8s.io/v1`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from webhook import values, workloads
from webhook.errors import ReviewError
from webhook.objects import Pod
from webhook.workloads import Workload

API_VERSION = "admission.k8s.io/v1"
AUDIT_KEY = "review"
"""In the API server's audit log, `<webhook>/review` is the UID that our log has."""
WARNING_LENGTH = 240
"""Bytes of one warning; the API server cuts at 256."""

NAME_LENGTH = 253
"""Characters of a name or UID that a log line repeats; the API server stores none that is longer.

At creation it has not checked them yet.
"""

_ODD_LENGTH = 24
"""Characters that a log line repeats of what can be no name: escaped, each may take twelve."""

_PLAIN = re.compile(r"[-.:\w]*", re.ASCII)
MESSAGE_LENGTH = 2_000
"""Characters of a refusal: what an answer has of it, and a log line."""

_DETAIL_LENGTH = 300


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

    uid: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH)]
    """It is answered, twice."""
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

    Where a workload is reviewed, `workload` says which, and the pod is its template; `old_workload`
    is the workload before an update.
    """

    request: Request
    pod: Pod
    old: Pod | None
    workload: Workload | None = None
    old_workload: Workload | None = None

    @property
    def uid(self) -> str:
        """The request's UID, for a log line."""
        return _logged(self.request.uid)

    @property
    def namespace(self) -> str:
        """The namespace, for a log line."""
        return _logged(self.request.namespace)

    @property
    def name(self) -> str:
        """The name, for a log line; at creation there may be no more than its beginning."""
        metadata = self.pod.metadata
        name = self.request.name or metadata.name
        return _logged(name) or f"{_logged(metadata.generate_name)}*"

    @property
    def described(self) -> str:
        """Name the pod, or the workload, for a log line."""
        kind = f"{self.workload.kind} " if self.workload else ""
        return f"{kind}{self.namespace}/{self.name}"

    def whole_pod(self) -> Any:
        """Decode the pod with all its fields, for a plugin that needs more than `pod` has."""
        return msgspec.json.decode(self.request.object)


def _logged(name: str) -> str:
    cut = name[:NAME_LENGTH]
    return cut if _PLAIN.fullmatch(cut) else cut[:_ODD_LENGTH]


_REVIEW = msgspec.json.Decoder(_AdmissionReview)
_POD = msgspec.json.Decoder(Pod | None)


def parse(body: bytes) -> PodReview:
    """Parse a review of a pod or of a workload. Raises ReviewError when the body is none."""
    try:
        request = _REVIEW.decode(body).request
        review = _review(request)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        told = ascii(values.shortened(str(exc), _DETAIL_LENGTH))[1:-1]  # it may quote the body
        told = values.shortened(told, _DETAIL_LENGTH)
        raise ReviewError(f"the body is no AdmissionReview of {API_VERSION}: {told}") from None
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
    return found and PodReview(request, found[1], old and old[1], found[0], old and old[0])


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


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Add a finalizer behind those that are there; nothing when it is there already."""

    name: str


@dataclass(frozen=True, slots=True)
class Requirement:
    """What is required of a node: of a label of its, or, where `is_field` is true, of a field.

    The operators are Kubernetes': In, NotIn, Exists, DoesNotExist, Gt, Lt. The one field there is
    is `metadata.name`, with In or NotIn and exactly one value.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()
    is_field: bool = False

    def __str__(self) -> str:
        values = f" [{', '.join(self.values)}]" if self.values else ""
        return f"{self.key} {self.operator}{values}"


@dataclass(frozen=True, slots=True)
class RequireNodes:
    """Require this of the pod's node as well: it is ANDed into every term that the pod has."""

    requirements: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True)
class PreferNodes:
    """Prefer nodes that meet all of this, by a weight of 1 to 100."""

    weight: int
    requirements: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True)
class SelectNodes:
    """Require a label of the pod's node, in its nodeSelector.

    Where the pod selects another value of that label, that one stays, and this one is required by
    node affinity: nothing is overwritten, and nothing gets past it.
    """

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Tolerate:
    """Have the pod bear with a taint; nothing when it has an equal toleration already."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int | None = None


Edit = (
    AddGate
    | AddFinalizer
    | SetAnnotation
    | RemoveAnnotation
    | SetSchedulerName
    | RequireNodes
    | PreferNodes
    | SelectNodes
    | Tolerate
)

Operation = dict[str, Any]
"""One operation of a JSON Patch; `webhook.patch` makes them of the edits."""


# --- answers -----------------------------------------------------------------------------------


def allowed(
    request: Request, operations: Sequence[Operation] = (), warnings: Sequence[str] = ()
) -> bytes:
    """Answer that the object may be stored, changed by the operations."""
    response = _response(request, allowed=True)
    if operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(operations)).decode()
    return _answer(response, warnings)


def refused(request: Request, message: str, warnings: Sequence[str] = ()) -> bytes:
    """Answer that the object may not be stored, as the API server answers an invalid value."""
    status = {"code": 422, "reason": "Invalid", "message": message[:MESSAGE_LENGTH]}
    return _answer({**_response(request, allowed=False), "status": status}, warnings)


def turned_away(request: Request, message: str) -> bytes:
    """Answer that the object may not be stored now, since nobody could decide about it."""
    status = {"code": 429, "reason": "TooManyRequests", "message": message}
    return _answer({**_response(request, allowed=False), "status": status}, ())


def _response(request: Request, *, allowed: bool) -> dict[str, Any]:
    """Begin a response; the API server's audit log takes the annotation over, and so has the UID.

    The UID is the review's own, so without it no line of our log could be found there.
    """
    audit = {AUDIT_KEY: request.uid}
    return {"uid": request.uid, "allowed": allowed, "auditAnnotations": audit}


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
