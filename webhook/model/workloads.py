"""Workloads with a pod template, reduced to the fields that Holdfast reads.

An invalid value is rejected in the template at `kubectl apply`, not later in a ReplicaSet's Events.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.webhook.model.objects import Metadata, Pod

TEMPLATE = "spec.template"
CRON_TEMPLATE = "spec.jobTemplate.spec.template"
POOL_TEMPLATE = "spec.virtualMachineTemplate.spec.template"
WORKER_TEMPLATE = "spec.leaderWorkerTemplate.workerTemplate"
UNSTABLE = frozenset({"pool.kubevirt.io"})
"""API groups without a v1: all their versions are registered."""
VM_KINDS = frozenset({"VirtualMachine", "VirtualMachineInstanceReplicaSet", "VirtualMachinePool"})
"""Kinds whose template is not a pod template: KubeVirt makes pods of it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource with a pod template, and the template's path."""

    group: str
    name: str
    kind: str
    path: str = TEMPLATE


RESTORED = Resource("kubevirt.io", "virtualmachines", "VirtualMachine")
"""The workload whose annotations are restored when its controller erases them."""
RESOURCES: Sequence[Resource] = (
    Resource("apps", "deployments", "Deployment"),
    Resource("apps", "statefulsets", "StatefulSet"),
    Resource("apps", "replicasets", "ReplicaSet"),
    Resource("apps", "daemonsets", "DaemonSet"),
    Resource("batch", "jobs", "Job"),
    Resource("batch", "cronjobs", "CronJob", CRON_TEMPLATE),
    Resource("", "replicationcontrollers", "ReplicationController"),
    RESTORED,
    Resource(
        "kubevirt.io", "virtualmachineinstancereplicasets", "VirtualMachineInstanceReplicaSet"
    ),
    Resource("pool.kubevirt.io", "virtualmachinepools", "VirtualMachinePool", POOL_TEMPLATE),
    Resource("leaderworkerset.x-k8s.io", "leaderworkersets", "LeaderWorkerSet", WORKER_TEMPLATE),
)
"""A rule that names a kind that is not served matches nothing."""

_PATHS = {(resource.group, resource.kind): resource.path for resource in RESOURCES}


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload of a template, with the fields that matter for held pods.

    `annotations` and `uid` are the workload's own. `deadline` is the field that may end it while
    its pods are held, with its seconds. `ordered` is the number of pods that start one at a time.
    `rounds` is how many times a Job starts pods, one set after another. `deletes_first` is the
    field whose value makes an update delete a pod before its successor starts; empty if none does.
    `schedule` and `concurrency` are a CronJob's.
    """

    kind: str
    name: str
    path: str
    deadline: tuple[str, int] | None = None
    ordered: int = 1
    rounds: int = 1
    deletes_first: str = ""
    schedule: str = ""
    concurrency: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    uid: str = ""


class _JobSpec(msgspec.Struct, frozen=True, rename="camel"):
    template: Pod | None = None
    active_deadline_seconds: int | None = None
    completions: int | None = None
    parallelism: int | None = None


class _JobTemplate(msgspec.Struct, frozen=True):
    spec: _JobSpec = _JobSpec()


class _WorkerTemplate(msgspec.Struct, frozen=True, rename="camel"):
    worker_template: Pod | None = None


class _RollingUpdate(msgspec.Struct, frozen=True, rename="camel"):
    max_surge: int | str | None = None


class _Strategy(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    rolling_update: _RollingUpdate | None = None


class _Spec(_JobSpec, frozen=True, rename="camel"):
    job_template: _JobTemplate | None = None
    virtual_machine_template: _JobTemplate | None = None
    leader_worker_template: _WorkerTemplate | None = None
    replicas: int | None = None
    progress_deadline_seconds: int | None = None
    pod_management_policy: str | None = None
    strategy: _Strategy | None = None
    update_strategy: _Strategy | None = None
    schedule: str = ""
    concurrency_policy: str = ""


class _TemplateOwner(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    spec: _Spec = _Spec()


_TEMPLATE_OWNER = msgspec.json.Decoder(_TemplateOwner | None)


def template_path(group: str, kind: str) -> str | None:
    """Return the path of a kind's pod template, or None for an unknown kind."""
    return _PATHS.get((group, kind))


def read(kind: str, path: str, source: bytes | msgspec.Raw) -> tuple[Workload, Pod] | None:
    """Decode a workload, and its template as a pod; None for a JSON null.

    Raises msgspec.DecodeError on an object of another shape.
    """
    found = _TEMPLATE_OWNER.decode(source)
    if found is None:
        return None
    spec = found.spec
    job = _with_template(spec, path)
    in_order = kind == "StatefulSet" and spec.pod_management_policy != "Parallel"
    workload = Workload(
        kind,
        found.metadata.name or found.metadata.generate_name,
        path,
        None if in_order else _deadline(spec, job, path),
        spec.replicas if in_order and spec.replicas is not None else 1,
        _rounds(job),
        _deletes_first(kind, spec),
        spec.schedule,
        spec.concurrency_policy,
        found.metadata.annotations or {},
        found.metadata.uid,
    )
    return workload, job.template or Pod()


def _with_template(spec: _Spec, path: str) -> _JobSpec:
    """Return the part of a spec that has the template."""
    if path == WORKER_TEMPLATE:
        workers = spec.leader_worker_template or _WorkerTemplate()
        return _JobSpec(template=workers.worker_template)
    nested = {CRON_TEMPLATE: spec.job_template, POOL_TEMPLATE: spec.virtual_machine_template}
    if path in nested:
        return (nested[path] or _JobTemplate()).spec
    return spec


def _deadline(spec: _Spec, job: _JobSpec, path: str) -> tuple[str, int] | None:
    if spec.progress_deadline_seconds is not None:
        return "spec.progressDeadlineSeconds", spec.progress_deadline_seconds
    if job.active_deadline_seconds is not None:
        return f"{path.removesuffix('template')}activeDeadlineSeconds", job.active_deadline_seconds
    return None


def _rounds(job: _JobSpec) -> int:
    """Return how many sets of pods a Job starts; both numbers are 1 by default."""
    at_once = 1 if job.parallelism is None else job.parallelism
    return max(1, -(-(job.completions or 1) // at_once)) if at_once > 0 else 1


def _deletes_first(kind: str, spec: _Spec) -> str:
    if kind == "Deployment" and spec.strategy is not None and spec.strategy.type == "Recreate":
        return "spec.strategy"
    update = spec.update_strategy or _Strategy()
    surge = update.rolling_update.max_surge if update.rolling_update else None
    keeps = update.type == "OnDelete" or (kind == "DaemonSet" and surge not in {None, 0, "0%"})
    return "spec.updateStrategy" if kind in {"StatefulSet", "DaemonSet"} and not keeps else ""
