"""Workloads with a pod template, reduced to the fields that Holdfast reads.

They are reviewed to reject an invalid value at `kubectl apply`, not later in a ReplicaSet's Events.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from holdfast.webhook.model.objects import ApiObject, Pod

TEMPLATE = "spec.template"
CRON_TEMPLATE = "spec.jobTemplate.spec.template"
POOL_TEMPLATE = "spec.virtualMachineTemplate.spec.template"
WORKER_TEMPLATE = "spec.leaderWorkerTemplate.workerTemplate"
LEADER_TEMPLATE = "spec.leaderWorkerTemplate.leaderTemplate"
JOB_SET_TEMPLATES = "spec.replicatedJobs[].template.spec.template"
UNSTABLE = frozenset({"pool.kubevirt.io", "jobset.x-k8s.io"})
"""API groups without a v1: all their versions are registered."""
VM_KINDS = frozenset({"VirtualMachine", "VirtualMachineInstanceReplicaSet", "VirtualMachinePool"})
"""Kinds whose template is not a pod template: KubeVirt creates pods from it."""


_MAX_TEMPLATES = 100
"""Maximum number of templates of a workload that are checked; its pods are checked in any case."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource with pod templates, and their paths; `[]` stands for any item of a list."""

    group: str
    name: str
    kind: str
    paths: tuple[str, ...] = (TEMPLATE,)

    @property
    def path(self) -> str:
        """The path of the first template."""
        return self.paths[0]


RESTORED = Resource("kubevirt.io", "virtualmachines", "VirtualMachine")
"""The workload whose annotations are restored when its controller erases them."""
RESOURCES: Sequence[Resource] = (
    Resource("apps", "deployments", "Deployment"),
    Resource("apps", "statefulsets", "StatefulSet"),
    Resource("apps", "replicasets", "ReplicaSet"),
    Resource("apps", "daemonsets", "DaemonSet"),
    Resource("batch", "jobs", "Job"),
    Resource("batch", "cronjobs", "CronJob", (CRON_TEMPLATE,)),
    Resource("", "replicationcontrollers", "ReplicationController"),
    RESTORED,
    Resource(
        "kubevirt.io", "virtualmachineinstancereplicasets", "VirtualMachineInstanceReplicaSet"
    ),
    Resource("pool.kubevirt.io", "virtualmachinepools", "VirtualMachinePool", (POOL_TEMPLATE,)),
    Resource(
        "leaderworkerset.x-k8s.io",
        "leaderworkersets",
        "LeaderWorkerSet",
        (WORKER_TEMPLATE, LEADER_TEMPLATE),
    ),
    Resource("jobset.x-k8s.io", "jobsets", "JobSet", (JOB_SET_TEMPLATES,)),
)
"""A webhook rule for a kind that is not served has no effect."""

_BY_KIND = {(resource.group, resource.kind): resource for resource in RESOURCES}


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload of a template, with the fields that matter for held pods.

    `own` has the workload's metadata; it is empty for all templates but the first, to check it only
    once. `outer` has the metadata of the object that contains the template, such as the Job of a
    CronJob. `deadline` is the field that may end the workload while its pods are held, and its
    value in seconds. `ordered` is the number of pods that start one at a time. `rounds` is the
    number of sets of pods that a Job starts one after another. `deletes_first` is the field that
    makes an update delete a pod before its successor starts, and `waits_for` the field that makes
    pods start after others of the workload; both are empty if there is none. `schedule` and
    `concurrency` are a CronJob's.
    """

    kind: str
    name: str
    path: str
    deadline: tuple[str, int] | None = None
    ordered: int = 1
    rounds: int = 1
    deletes_first: str = ""
    waits_for: str = ""
    schedule: str = ""
    concurrency: str = ""
    own: ApiObject = field(default=ApiObject(), compare=False)
    outer: ApiObject = field(default=ApiObject(), compare=False)


class _JobSpec(msgspec.Struct, frozen=True, rename="camel"):
    template: Pod | None = None
    active_deadline_seconds: int | None = None
    completions: int | None = None
    parallelism: int | None = None


class _JobTemplate(ApiObject, frozen=True):
    spec: _JobSpec = _JobSpec()


class _GroupTemplate(msgspec.Struct, frozen=True, rename="camel"):
    worker_template: Pod | None = None
    leader_template: Pod | None = None


class _ReplicatedJob(msgspec.Struct, frozen=True):
    template: _JobTemplate = _JobTemplate()


class _InOrder(msgspec.Struct, frozen=True, rename="camel"):
    startup_policy_order: str = ""


class _RollingUpdate(msgspec.Struct, frozen=True, rename="camel"):
    max_surge: int | str | None = None


class _Strategy(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    rolling_update: _RollingUpdate | None = None
    rolling_update_configuration: _RollingUpdate | None = None


class _Spec(_JobSpec, frozen=True, rename="camel"):
    job_template: _JobTemplate | None = None
    virtual_machine_template: _JobTemplate | None = None
    leader_worker_template: _GroupTemplate | None = None
    replicated_jobs: list[_ReplicatedJob] | None = None
    startup_policy: _InOrder | str | None = None
    rollout_strategy: _Strategy | None = None
    replicas: int | None = None
    progress_deadline_seconds: int | None = None
    pod_management_policy: str | None = None
    strategy: _Strategy | None = None
    update_strategy: _Strategy | None = None
    schedule: str = ""
    concurrency_policy: str = ""


class _TemplateOwner(ApiObject, frozen=True):
    spec: _Spec = _Spec()


_TEMPLATE_OWNER = msgspec.json.Decoder(_TemplateOwner | None)


def resource_of(group: str, kind: str) -> Resource | None:
    """Return the resource of a kind, or None for a kind without a known pod template."""
    return _BY_KIND.get((group, kind))


def read(resource: Resource, source: bytes | msgspec.Raw) -> Sequence[tuple[Workload, Pod]]:
    """Return the decoded workload for each template, with the template as a pod.

    Returns nothing for JSON null. Raises msgspec.DecodeError if the object has another structure.
    """
    owner = _TEMPLATE_OWNER.decode(source)
    if owner is None:
        return ()
    kind, spec, metadata = resource.kind, owner.spec, owner.metadata
    in_order = kind == "StatefulSet" and spec.pod_management_policy != "Parallel"
    return [
        (
            Workload(
                kind,
                metadata.name or metadata.generate_name,
                path,
                None if in_order else _deadline(spec, outer.spec, path),
                spec.replicas if in_order and spec.replicas is not None else 1,
                _rounds(outer.spec),
                _deletes_first(kind, spec),
                _waits_for(spec, path),
                spec.schedule,
                spec.concurrency_policy,
                ApiObject() if index else owner,
                outer,
            ),
            _without_namespace(outer.spec.template or Pod()),
        )
        for index, (path, outer) in enumerate(_templates(spec, resource.path))
    ]


def _without_namespace(template: Pod) -> Pod:
    """Drop a template's namespace: the API server stores any, and controllers ignore it."""
    if not template.metadata.namespace:
        return template
    return replace(template, metadata=replace(template.metadata, namespace=""))


def _templates(spec: _Spec, path: str) -> Sequence[tuple[str, _JobTemplate]]:
    """Return the path of each template, and the object that contains it."""
    if path == WORKER_TEMPLATE:
        group = spec.leader_worker_template or _GroupTemplate()
        workers = [(path, _JobTemplate(spec=_JobSpec(group.worker_template)))]
        leader = [(LEADER_TEMPLATE, _JobTemplate(spec=_JobSpec(group.leader_template)))]
        return workers + leader if group.leader_template else workers
    if path == JOB_SET_TEMPLATES:
        jobs = [job.template for job in spec.replicated_jobs or ()][:_MAX_TEMPLATES]
        indexed_jobs = enumerate(jobs or [_JobTemplate()])
        return [(path.replace("[]", f"[{index}]"), job) for index, job in indexed_jobs]
    outer_by_path = {CRON_TEMPLATE: spec.job_template, POOL_TEMPLATE: spec.virtual_machine_template}
    return [(path, outer_by_path.get(path, _JobTemplate(spec=spec)) or _JobTemplate())]


def _deadline(spec: _Spec, job: _JobSpec, path: str) -> tuple[str, int] | None:
    if spec.progress_deadline_seconds is not None:
        return "spec.progressDeadlineSeconds", spec.progress_deadline_seconds
    if job.active_deadline_seconds is not None:
        return f"{path.removesuffix('template')}activeDeadlineSeconds", job.active_deadline_seconds
    return None


def _rounds(job: _JobSpec) -> int:
    """Return how many sets of pods a Job starts; both fields are 1 by default."""
    parallelism = 1 if job.parallelism is None else job.parallelism
    return max(1, -(-(job.completions or 1) // parallelism)) if parallelism > 0 else 1


def _deletes_first(kind: str, spec: _Spec) -> str:
    """Return the field that makes an update delete pods first; empty if there is none.

    The default surge is 25% for a Deployment, and 0 for other kinds.
    """
    rollout = spec.rollout_strategy or _Strategy()
    path, strategy, surge = {
        "Deployment": ("spec.strategy", spec.strategy, 1),
        "StatefulSet": ("spec.updateStrategy", spec.update_strategy, 0),
        "DaemonSet": ("spec.updateStrategy", spec.update_strategy, 0),
        "LeaderWorkerSet": ("spec.rolloutStrategy", rollout, 0),
    }.get(kind, ("", None, 1))
    update = strategy or _Strategy()
    rolling_update = update.rolling_update or update.rolling_update_configuration
    if (
        kind != "StatefulSet"
        and rolling_update is not None
        and rolling_update.max_surge is not None
    ):
        surge = 0 if rolling_update.max_surge in {0, "0%"} else 1
    keeps_pods = update.type == "OnDelete" or (surge and update.type != "Recreate")
    return "" if keeps_pods else path


def _waits_for(spec: _Spec, path: str) -> str:
    if spec.startup_policy == "LeaderReady" and path == WORKER_TEMPLATE:
        return "spec.startupPolicy: LeaderReady"
    policy = spec.startup_policy
    in_order = isinstance(policy, _InOrder) and policy.startup_policy_order == "InOrder"
    return "spec.startupPolicy" if in_order and "[0]" not in path else ""
