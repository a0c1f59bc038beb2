"""Workloads that carry a pod template, as far as Holdfast reads them: where a value is written.

A value that cannot be followed is refused in the template, where its author is looking, and not
found later in the Events of a ReplicaSet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from webhook.objects import Metadata, Pod

TEMPLATE = "spec.template"
CRON_TEMPLATE = "spec.jobTemplate.spec.template"


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource whose objects carry a pod template, and the template's path in them."""

    group: str
    name: str
    kind: str
    path: str = TEMPLATE


RESOURCES: Sequence[Resource] = (
    Resource("apps", "deployments", "Deployment"),
    Resource("apps", "statefulsets", "StatefulSet"),
    Resource("apps", "replicasets", "ReplicaSet"),
    Resource("apps", "daemonsets", "DaemonSet"),
    Resource("batch", "jobs", "Job"),
    Resource("batch", "cronjobs", "CronJob", CRON_TEMPLATE),
    Resource("kubevirt.io", "virtualmachines", "VirtualMachine"),
)

_PATHS = {(resource.group, resource.kind): resource.path for resource in RESOURCES}


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload around a template, with what makes a held pod suffer there.

    `annotations` and `uid` are its own, not those of its template.

    `deadline` is the field that ends it while its pods are held, with its seconds; `ordered` is
    how many pods start one after the other, each when the one before it runs.
    """

    kind: str
    name: str
    path: str
    deadline: tuple[str, int] | None = None
    ordered: int = 1
    annotations: Mapping[str, str] = field(default_factory=dict)
    uid: str = ""


class _JobSpec(msgspec.Struct, frozen=True, rename="camel"):
    template: Pod | None = None
    active_deadline_seconds: int | None = None


class _JobTemplate(msgspec.Struct, frozen=True):
    spec: _JobSpec = _JobSpec()


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    template: Pod | None = None
    job_template: _JobTemplate | None = None
    replicas: int | None = None
    active_deadline_seconds: int | None = None
    progress_deadline_seconds: int | None = None
    pod_management_policy: str | None = None


class _Object(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    spec: _Spec = _Spec()


_OBJECT = msgspec.json.Decoder(_Object | None)


def template_path(group: str, kind: str) -> str | None:
    """Tell where a kind carries its pod template, or None when it carries none that we know."""
    return _PATHS.get((group, kind))


def read(kind: str, path: str, source: bytes | msgspec.Raw) -> tuple[Workload, Pod] | None:
    """Read a workload's template as the pod that will be made of it; None for a JSON null.

    Raises msgspec.DecodeError on an object of another shape.
    """
    found = _OBJECT.decode(source)
    if found is None:
        return None
    spec = found.spec
    template = spec.template
    if path == CRON_TEMPLATE:
        template = spec.job_template.spec.template if spec.job_template else None
    in_order = kind == "StatefulSet" and spec.pod_management_policy != "Parallel"
    workload = Workload(
        kind,
        found.metadata.name or found.metadata.generate_name,
        path,
        None if in_order else _deadline(spec),
        spec.replicas if in_order and spec.replicas is not None else 1,
        found.metadata.annotations or {},
        found.metadata.uid,
    )
    return workload, template or Pod()


def _deadline(spec: _Spec) -> tuple[str, int] | None:
    if spec.progress_deadline_seconds is not None:
        return "spec.progressDeadlineSeconds", spec.progress_deadline_seconds
    if spec.active_deadline_seconds is not None:
        return "spec.activeDeadlineSeconds", spec.active_deadline_seconds
    job = spec.job_template.spec if spec.job_template else None
    if job is not None and job.active_deadline_seconds is not None:
        return "spec.jobTemplate.spec.activeDeadlineSeconds", job.active_deadline_seconds
    return None
