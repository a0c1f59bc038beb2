"""AdmissionReview requests and responses, in the format `admission.k8s.io/v1`. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from holdfast.webhook.errors import ReviewError
from holdfast.webhook.model import messages, workloads
from holdfast.webhook.model.edits import Operation
from holdfast.webhook.model.objects import Metadata, Pod
from holdfast.webhook.model.workloads import Workload

API_VERSION = "admission.k8s.io/v1"
AUDIT_KEY = "review"
"""The audit annotation `<webhook>/review` has the same UID as our log lines."""
WARNING_LENGTH = 240
"""Maximum bytes of a warning; the API server truncates at 256."""

NAME_LENGTH = 253
"""Maximum characters of a name or UID in a log line. The API server does not store longer ones, but
has not checked them yet at creation."""

_ODD_LENGTH = 24
"""Maximum characters of an invalid name in a log line: escaped, each may take twelve."""

_PLAIN = re.compile(r"[-.:\w]*", re.ASCII)
MESSAGE_LENGTH = 2_000
"""Maximum characters of a rejection, in the response and in a log line."""

_DETAIL_LENGTH = 300


class UserInfo(msgspec.Struct, frozen=True):
    """The user who sent the request to the API server."""

    username: str = ""


class GroupVersionKind(msgspec.Struct, frozen=True):
    """The kind of the object under review."""

    kind: str
    group: str = ""
    version: str = ""


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """The request of an AdmissionReview; its objects are decoded later."""

    uid: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH)]
    """Limited, because the response contains it twice."""
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


class PodReview(msgspec.Struct, frozen=True):
    """A pod under review, and the old pod of an update.

    For a workload, `workload` and `old_workload` are set, and the pods are its templates. `others`
    are the reviews of further templates.
    """

    request: Request
    pod: Pod
    old: Pod | None
    workload: Workload | None = None
    old_workload: Workload | None = None
    others: Sequence[PodReview] = ()

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
        """The name, for a log line; at creation there may only be a prefix."""
        metadata = self.pod.metadata
        name = self.request.name or metadata.name
        return _logged(name) or f"{_logged(metadata.generate_name)}*"

    @property
    def display_name(self) -> str:
        """The pod or the workload, for a log line."""
        kind = f"{self.workload.kind} " if self.workload else ""
        return f"{kind}{self.namespace}/{self.name}"

    @property
    def target(self) -> Pod:
        """The object that edits change: the pod, or the metadata of a workload."""
        if self.workload is None:
            return self.pod
        return Pod(Metadata(annotations=dict(self.workload.own.annotations) or None))


def _logged(name: str) -> str:
    prefix = name[:NAME_LENGTH]
    return prefix if _PLAIN.fullmatch(prefix) else prefix[:_ODD_LENGTH]


_REVIEW = msgspec.json.Decoder(_AdmissionReview)
_POD = msgspec.json.Decoder(Pod | None)


def parse(body: bytes) -> PodReview:
    """Parse a review of a pod or a workload. Raises ReviewError on any other body."""
    try:
        request = _REVIEW.decode(body).request
        review = _review(request)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        detail = ascii(messages.shorten(str(exc), _DETAIL_LENGTH))[1:-1]  # it may quote the body
        detail = messages.shorten(detail, _DETAIL_LENGTH)
        raise ReviewError(
            f"the body is not an AdmissionReview of {API_VERSION}: {detail}"
        ) from None
    if review is None:
        raise ReviewError("request.object is null: register CREATE and UPDATE only")
    return review


def _review(request: Request) -> PodReview | None:
    kind = request.kind
    if (kind.group, kind.kind) == ("", "Pod"):
        pod = _POD.decode(request.object)
        return pod and PodReview(request, pod, _POD.decode(request.old_object))
    resource = workloads.resource_of(kind.group, kind.kind)
    if resource is None:
        raise ReviewError(f"unsupported kind {kind.kind[:40]!a}: register pods and workloads only")
    old_templates = workloads.read(resource, request.old_object)
    reviews = [
        PodReview(
            request,
            pod,
            old_template and old_template[1],
            workload,
            old_template and old_template[0],
        )
        for index, (workload, pod) in enumerate(workloads.read(resource, request.object))
        for old_template in [old_templates[index] if index < len(old_templates) else None]
    ]
    return (
        msgspec.structs.replace(reviews[0], others=reviews[1:])
        if len(reviews) > 1
        else next(iter(reviews), None)
    )


def allowed(
    request: Request, operations: Sequence[Operation] = (), warnings: Sequence[str] = ()
) -> bytes:
    """Build the response that admits the object, with a patch."""
    response = _response(request, allowed=True)
    if operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(operations)).decode()
    return _answer(response, warnings)


def rejected(request: Request, message: str, warnings: Sequence[str] = ()) -> bytes:
    """Build the response that rejects the object, like the API server's for an invalid value."""
    status = {"code": 422, "reason": "Invalid", "message": message[:MESSAGE_LENGTH]}
    return _answer({**_response(request, allowed=False), "status": status}, warnings)


def retry_later(request: Request, message: str) -> bytes:
    """Build the response that asks the client to retry, because no decision was possible."""
    status = {"code": 429, "reason": "TooManyRequests", "message": message}
    return _answer({**_response(request, allowed=False), "status": status}, ())


def _response(request: Request, *, allowed: bool) -> dict[str, Any]:
    """Build the common part. The audit annotation links the API server's audit log to ours."""
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
    # `ignore` drops a character that was cut in half.
    return encoded[: WARNING_LENGTH - 3].decode(errors="ignore") + "…"
