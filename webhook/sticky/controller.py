"""The controller that queues VMs whose node may have to be recorded, and reports the results.

For each VMI in the queue it runs `reconciler.py`, which records the VM's node and then releases its
pods. Watches only select the VMI: the reconciler reads everything that it needs again. All state is
in the API server, so the controller can be killed and restarted at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube import events
from holdfast.webhook.kube.api import Api, boot_time
from holdfast.webhook.kube.events import Event, EventRecorder
from holdfast.webhook.model.kubevirt import LauncherPod, VirtualMachine
from holdfast.webhook.model.objects import ObjectKey
from holdfast.webhook.plugins import sticky_policy
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.sticky import node_problems
from holdfast.webhook.sticky.decision import RecordChange
from holdfast.webhook.sticky.reconciler import ArgsForPod, ReconcileResult, VmReconciler
from holdfast.webhook.sticky.watches import VmWatch
from holdfast.webhook.telemetry import logs
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.threads import ThreadGroup
from holdfast.webhook.workqueue.controller import GRACE_SECONDS, Controller, Task, TaskResult
from holdfast.webhook.workqueue.queue import WorkQueue

WORKERS = 8
"""Maximum number of VMIs reconciled concurrently."""
WORKERS_OF_ONE = 6
"""Maximum number of workers for one namespace, or for all slow namespaces together."""
FIRST_OF_ONE = 3
"""Workers of a namespace until its first VMI is reconciled."""
RECHECK_SECONDS = 30.0
"""Seconds between checks of orphaned pods, of pods whose node cannot take them, and of VMs that
have not run yet. A dead node is reported as not ready only after a while."""

_log = logging.getLogger("holdfast.sticky")


class StickyController:
    """Watches the pods of VMs, and reconciles their VMIs.

    `may_write` is called before each write, because only the leader may write. The sweep for
    orphaned pods waits for `may_sweep`.
    """

    def __init__(
        self,
        api: Api,
        args_for: ArgsForPod,
        metrics: ControllerMetrics,
        *,
        enabled: bool,
        recorder: EventRecorder,
        may_write: Callable[[], bool],
        may_sweep: Callable[[], bool],
        now: Callable[[], float] = boot_time,
    ) -> None:
        self._api = api
        self._metrics = metrics
        self._recorder = recorder
        self._now = now
        self._reconciler = VmReconciler(api, args_for, may_write)
        self._watch = VmWatch(
            api,
            args_for,
            self.enqueue,
            drop=self._drop,
            enabled=enabled,
            on_restart=lambda reason: metrics.watch_restarts.labels(reason).inc(),
            may_sweep=may_sweep,
        )
        self._queue = WorkQueue[float](float, WORKERS_OF_ONE, first=FIRST_OF_ONE)
        self._loop = Controller(
            "record",
            self._queue,
            self._reconcile,
            workers=WORKERS,
            enabled=may_write,
            on_retry=self._report_retry,
            now=now,
        )
        self._changed = self._loop.changed
        metrics.vm_pods_kept.set_function(self._watch.count)
        metrics.vm_pods_kept_back.set_function(self._watch.count_ended)

    @property
    def synced(self) -> bool:
        """Whether all pods that wait for a record are known."""
        return self._watch.synced

    def add_to(self, threads: ThreadGroup) -> None:
        """Add the controller's threads to those of the process."""
        threads.add("record", self._loop.run, grace=GRACE_SECONDS)
        for name, work in self._watch.feeders().items():
            threads.add(name, work, grace=0)  # a watch may be silent for long

    def wake(self) -> None:
        """Check the queue at once, because this process has become the leader."""
        self._loop.wake()

    def enqueue(self, key: ObjectKey, seconds: float = 0.0) -> None:
        """Enqueue a VMI to reconcile in `seconds`, or earlier if that was already requested."""
        with self._changed:
            at, scheduled_at = self._now() + seconds, self._queue.get(key)
            if scheduled_at is None or at < scheduled_at or not self._queue.waits(key):
                self._queue.put(key, at)
                self._queue.schedule(key)
                self._changed.notify_all()

    def _drop(self, key: ObjectKey) -> None:
        with self._changed:
            self._queue.discard(key)

    # --- one VMI, in a worker thread -----------------------------------------------------------

    def _reconcile(self, task: Task) -> TaskResult:
        key = task.key
        try:
            result = reconcile(
                self._watch, self._reconciler, key, needs_long_timeout=task.needs_long_timeout
            )
            self._report(key, result)
        except Exception as exc:  # noqa: BLE001 - one VM must not block all others
            _log.exception("VMI %s/%s", *key)
            return TaskResult(f"{type(exc).__name__}: {exc}")
        if not result.problem and self._needs_recheck(key, result):
            self.enqueue(key, RECHECK_SECONDS)
        return TaskResult(result.problem, result.retry_after or 0.0)

    def _needs_recheck(self, key: ObjectKey, result: ReconcileResult) -> bool:
        """Return whether to reconcile a VMI again even if no watch reports a change."""
        is_unwatched = bool(self._watch.orphans_of(key))
        is_starting = bool(result.starting and result.node)
        return is_unwatched or is_starting or any(pod.is_unschedulable for pod in result.waiting)

    # --- reports -------------------------------------------------------------------------------

    def _report_retry(self, key: ObjectKey, result: TaskResult, wait: float) -> None:
        self._metrics.vm_records.labels("retried").inc()
        fields = logs.fields(namespace=key[0], name=key[1], reason=result.error)
        text = "VMI %s/%s cannot be reconciled: %s; next try in %.1f s"
        _log.warning(text, *key, result.error, wait, extra=fields)

    def _report(self, key: ObjectKey, result: ReconcileResult) -> None:
        vm = result.vm
        if result.change is not RecordChange.NONE:
            self._metrics.vm_records.labels(result.change.value).inc()
        if vm is not None and result.change in {RecordChange.RECORDED, RecordChange.FOLLOWED}:
            self._report_record(vm, result)
        if result.problem:
            note = f"{result.problem}; it is retried until it succeeds"
            pods = self._watch.pods_of(key)
            self._record_events(vm, pods, events.NODE_NOT_RECORDED, note, warning=True)
        if result.remark and result.freed:
            _log.warning("VMI %s/%s: %s", *key, result.remark)
            reason = events.NODE_NOT_RECORDED
            self._record_events(None, result.freed, reason, result.remark, warning=True)
        if vm is not None and result.args is not None and result.differs:
            self._report_difference(vm, result.args, result.node, result.differs)
        stuck = [pod for pod in result.waiting if pod.is_unschedulable and not pod.spec.node_name]
        stuck += self._watch.provisioners_of(key, result.starting)
        # A pod bound to a dead node does not start its VM either, and is no longer held.
        bound = result.starting and not (result.waiting or result.freed)
        if vm is not None and result.args is not None and result.node and (stuck or bound):
            self._report_node(vm, result.args, result.node, stuck)

    def _report_record(self, vm: VirtualMachine, result: ReconcileResult) -> None:
        note = f"recorded node {result.node}: the VM starts there again"
        if result.args is not None and not sticky_policy.is_sticky(vm, result.args):
            note = f"recorded node {result.node}: the VM starts there again once it is sticky"
        elif result.change is RecordChange.FOLLOWED:
            note = f"recorded node {result.node} after a migration: the VM starts there again"
        namespace, name = vm.key
        fields = logs.fields(namespace=namespace, name=name, uid=vm.metadata.uid, node=result.node)
        _log.info("VM %s/%s: %s", namespace, name, note, extra=fields)
        self._record_events(vm, result.freed, events.NODE_RECORDED, note, warning=False)

    def _report_difference(
        self, vm: VirtualMachine, args: StickyArgs, node: str, runs_on: str
    ) -> None:
        note = node_problems.difference(vm.key, node, runs_on, args.node_annotation)
        _log.warning("VM %s/%s: %s", *vm.key, note)
        self._record_events(vm, (), events.NODE_DIFFERS, note, warning=True)

    def _report_node(
        self, vm: VirtualMachine, args: StickyArgs, name: str, pods: Sequence[LauncherPod]
    ) -> None:
        """Report why the node of a VM cannot take it, if the node is at fault."""
        if args.affinity != "required":
            return
        try:
            problem = node_problems.find(self._api, name, pods[0] if pods else None)
        except ClusterError as exc:
            _log.warning("node %s of VM %s/%s cannot be read: %s", name, *vm.key, exc)
            return
        if problem:
            note = node_problems.advice(vm.key, name, problem, args.node_annotation)
            _log.warning("VM %s/%s: %s", *vm.key, note)
            self._record_events(vm, pods, events.NODE_UNAVAILABLE, note, warning=True)

    def _record_events(
        self,
        vm: VirtualMachine | None,
        pods: Sequence[LauncherPod],
        reason: str,
        note: str,
        *,
        warning: bool,
    ) -> None:
        if vm is not None:
            uid = vm.metadata.uid
            self._recorder.record(Event(vm.key, uid, reason, note, warning, events.VM))
        for pod in pods:
            self._recorder.record(Event(pod.key, pod.metadata.uid, reason, note, warning))


def reconcile(
    watch: VmWatch, reconciler: VmReconciler, key: ObjectKey, *, needs_long_timeout: bool = False
) -> ReconcileResult:
    """Reconcile a VMI after reading its orphans, and drop the pods that were freed."""
    for orphan in watch.orphans_of(key):
        try:
            watch.refresh(orphan, reconciler.read_pod(orphan))
        except ClusterError as exc:
            return ReconcileResult(problem=f"pod {'/'.join(orphan)}: {exc}")
    result = reconciler.reconcile(key, watch.pods_of(key), needs_long_timeout=needs_long_timeout)
    for pod in result.freed:
        watch.forget(pod)
    return result
