"""Pods and reviews as the API server sends them, with defaults for what a test does not set."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.webhook import plugins
from holdfast.webhook.config import config
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.framework.pipeline import AdmissionPipeline
from holdfast.webhook.framework.plugin import Context, Plugin, Result
from holdfast.webhook.framework.profiles import Profiles
from holdfast.webhook.framework.runner import Observe, Runner
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.review import PodReview, parse
from holdfast.webhook.plugins.delay import Delay, DelayArgs
from holdfast.webhook.runtime import pipelines

Document = dict[str, Any]

CREATED = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
CREATED_MS = 1_772_366_400_000
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
UID = "4f2b6f0e-98a7-4d4e-8f32-0a9d3a1b2c3d"
GATE = "holdfast.dev/delay"
HEAD = "apiVersion: holdfast.dev/v1beta1\nkind: HoldfastConfiguration\n"
DEPLOYMENT = {"group": "apps", "version": "v1", "kind": "Deployment"}
VM = {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachine"}


def instant(milliseconds: int) -> str:
    """Write an instant as a user might, in UTC."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    return moment.isoformat().replace("+00:00", "Z")


def make_pod(
    annotations: Mapping[str, str] | None = None,
    *,
    gates: Sequence[str] = (),
    name: str = "web-0",
    namespace: str = "default",
    uid: str = UID,
    version: str = "7",
    created: datetime | None = CREATED,
    labels: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    scheduler: str = "default-scheduler",
    node: str = "",
    owners: Sequence[Document] = (),
) -> Document:
    metadata: Document = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "resourceVersion": version,
        "creationTimestamp": created and created.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    spec: Document = {"schedulerName": scheduler, "containers": [{"name": "main", "image": "x"}]}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if labels is not None:
        metadata["labels"] = dict(labels)
    if owners:
        metadata["ownerReferences"] = list(owners)
    if finalizers:
        metadata["finalizers"] = list(finalizers)
    if gates:
        spec["schedulingGates"] = [{"name": gate} for gate in gates]
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def make_workload(
    annotations: Mapping[str, str] | None = None, template: Mapping[str, str] | None = None
) -> Document:
    """Make a workload with annotations, and annotations of its template."""
    spec = {"template": {"metadata": {"annotations": dict(template or {})}}}
    return {"metadata": {"name": "w", "annotations": dict(annotations or {})}, "spec": spec}


def held(annotations: Mapping[str, str] | None = None, **fields: Any) -> Document:
    """Make a pod with our gate."""
    return make_pod(annotations, gates=fields.pop("gates", [GATE]), **fields)


def read_pod(annotations: Mapping[str, str] | None = None, **fields: Any) -> Pod:
    return Pod.of(make_pod(annotations, **fields))


def make_review(
    pod: Any = None, *, operation: str = "CREATE", old: Any = None, **request: Any
) -> Document:
    """Make an AdmissionReview as a JSON object; keywords replace fields of its request."""
    fields: Document = {
        "uid": "c0ffee",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": operation,
        "namespace": "default",
        "object": make_pod() if pod is None else pod,
        "oldObject": old,
        "dryRun": False,
        "userInfo": {"username": "jane", "groups": ["system:authenticated"]},
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": fields | request,
    }


def body(pod: Any = None, **fields: Any) -> bytes:
    return json.dumps(make_review(pod, **fields)).encode()


def read_review(pod: Any = None, **fields: Any) -> PodReview:
    return parse(body(pod, **fields))


def call(plugin: Plugin, point: str, pod: Any, now_ms: int = CREATED_MS, **fields: Any) -> Result:
    """Call `mutate` or `validate` of a plugin with a review of a pod or a workload."""
    review = read_review(pod, **fields)
    result: Result = getattr(plugin, point)(review.pod, Context(review, "*", now_ms))
    return result


def handle_with(**connections: Any) -> Handle:
    handle = Handle()
    handle.connect(**connections)
    return handle


class Measured:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str, str]] = []
        self.seconds: list[float] = []

    def __call__(
        self, *, plugin: str, extension_point: str, status: str, profile: str, seconds: float
    ) -> None:
        self.seen.append((plugin, extension_point, status, profile))
        self.seconds.append(seconds)


def make_profiles(
    yaml: str = "", *, known: Mapping[str, type[Plugin]] | None = None, handle: Handle | None = None
) -> Profiles:
    """Build the profiles of a configuration, with the built-in plugins by default."""
    head = "" if yaml.lstrip().startswith("apiVersion") else HEAD
    return pipelines.build_profiles(
        config.parse((head + yaml).encode(), "test.yaml"),
        plugins.registry([]) if known is None else known,
        source="test.yaml",
        handle=handle,
    )


def make_pipeline(
    yaml: str = "", *, observe: Observe | None = None, **of: Any
) -> AdmissionPipeline:
    runner = Runner(lambda: 0.0, observe or Measured())
    return AdmissionPipeline(make_profiles(yaml, **of), runner)


def make_decider(yaml: str = "", *, observe: Observe | None = None, **of: Any) -> ReleaseDecider:
    runner = Runner(lambda: 0.0, observe or Measured())
    return ReleaseDecider(make_profiles(yaml, **of), runner)


def make_delay(**args: Any) -> Delay:
    return Delay(DelayArgs(**args))


def padded(size: int) -> bytes:
    """Make a review of this many bytes, with a long foreign annotation as padding."""
    pod = make_pod({"delay": "15", "other": ""})
    empty = json.dumps(make_review(pod)).encode()
    pod["metadata"]["annotations"]["other"] = "x" * (size - len(empty))
    return json.dumps(make_review(pod)).encode()
