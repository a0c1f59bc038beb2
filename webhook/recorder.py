"""The recorder: writes on each VM the node where it landed, then lets its pods go.

It looks at one VMI at a time. What the watches tell is only where to look: what is done is decided
from what is read then. It keeps nothing that the API server does not have, so it can be killed at
any moment and started again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from urllib.parse import quote

import msgspec

from webhook import events, logs, node_trouble
from webhook.cluster import Api, boot_time
from webhook.errors import ApiStatusError, ClusterError
from webhook.events import Event
from webhook.fair_queue import FairQueue
from webhook.landings import Change
from webhook.metrics import ControllerMetrics
from webhook.objects import Names
from webhook.pool import Pool
from webhook.records import Records, Settings, Settled
from webhook.retries import Retries
from webhook.vm_watch import VmWatch
from webhook.vms import LauncherPod, StickyArgs, VirtualMachine
from webhook.work_queue import WorkQueue

WORKERS = 8
"""VMIs settled at once."""
WORKERS_OF_ONE = 6
"""How many of them may be of one namespace, or of all those in which that takes long."""
FIRST_OF_ONE = 3
"""With how many of them a namespace begins, before one of them is seen to succeed."""
LAST_WRITES_SECONDS = 3.0
"""How long the end waits for VMIs that are being settled: what hangs may fail its tests later."""
LONGEST_WAIT = 1.0
"""Seconds the loop sleeps at most: so soon it notices that it may write, or that a laptop slept."""
WAITING_SECONDS = 30.0
"""How often a pod is looked at again of which nobody tells, or whose node cannot take it."""
NODE_TIMEOUT = 5.0

_log = logging.getLogger("holdfast.recorder")


def always() -> bool:
    """Say yes."""
    return True


class LandingRecorder:
    """The loop, the threads that feed it, and those that settle VMIs.

    `may_write` is asked before each write: of several processes, one may.
    """

    def __init__(
        self,
        api: Api,
        settings: Settings,
        metrics: ControllerMetrics,
        *,
        enabled: bool = True,
        told: events.Events | None = None,
        may_write: Callable[[], bool] = always,
        may_sweep: Callable[[], bool] = always,
        now: Callable[[], float] = boot_time,
    ) -> None:
        self._api = api
        self._metrics = metrics
        self._told: events.Events = told or events.Silence()
        self._may_write = may_write
        self._now = now
        self._records = Records(api, settings, may_write)
        self._watch = VmWatch(
            api,
            settings,
            self._look,
            over=self._over,
            enabled=enabled,
            on_restart=lambda reason: metrics.watch_restarts.labels(reason).inc(),
            may_sweep=may_sweep,
        )
        self._queue = WorkQueue()
        self._retries = Retries()
        self._due = FairQueue(WORKERS_OF_ONE, first=FIRST_OF_ONE)
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        metrics.vm_pods_kept.set_function(self._watch.count)
        metrics.vm_pods_kept_back.set_function(self._watch.count_ended)

    @property
    def synced(self) -> bool:
        """True once all pods that wait for a record are known."""
        return self._watch.synced

    def run(self, stop: threading.Event) -> None:
        """Settle VMIs until told to stop; what nobody expected in a thread is raised here."""
        for name, work in self._watch.feeders():
            arguments = (work, stop)
            threading.Thread(target=self._feed, args=arguments, name=name, daemon=True).start()
        pool = Pool(WORKERS, "record")
        try:
            while not stop.is_set() and self._failure is None:
                self._turn(pool)
            with self._changed:
                self._changed.wait_for(self._has_ended, LAST_WRITES_SECONDS)
        finally:
            pool.close()
        if self._failure is not None:
            raise self._failure

    def wake(self) -> None:
        """Look at once at what there is to do: this process may write now."""
        with self._changed:
            self._changed.notify_all()

    # --- the loop ------------------------------------------------------------------------------

    def _look(self, key: Names) -> None:
        with self._changed:
            self._queue.put(key, self._now())  # first come, first served
            self._changed.notify_all()

    def _over(self, key: Names) -> None:
        with self._changed:
            self._queue.discard(key)
            self._retries.forget(key)

    def _turn(self, pool: Pool) -> None:
        """Hand out what there is to look at, then sleep until there may be more."""
        with self._changed:
            now = self._now()
            while (again := self._retries.pop_due(now)) is not None:
                self._queue.put(again, now)
            while self._has_hands() and (key := self._next(now)) is not None:
                pool.submit(partial(self._settle, key))
            wait = min(LONGEST_WAIT, self._retries.next_at() - now)
            if self._has_hands():
                wait = min(wait, self._queue.next_at() - now)
            self._changed.wait(max(wait, 0.0))

    def _next(self, now: float) -> Names | None:
        """Take what comes next of all there is to look at by now."""
        while (key := self._queue.take(now)) is not None:
            self._due.put(key, now, again=self._retries.has_failed(key))
        return self._due.take(now)

    def _has_hands(self) -> bool:
        return self._busy < WORKERS and self._may_write()

    def _has_ended(self) -> bool:
        return self._failure is not None or not self._busy

    @property
    def _busy(self) -> int:
        """Count the threads that settle a VMI."""
        return self._queue.under_way - len(self._due)

    def _feed(self, work: Callable[[threading.Event], None], stop: threading.Event) -> None:
        try:
            work(stop)
        except BaseException as exc:  # noqa: BLE001 - the process ends, to be started again
            self._failure = exc
            self.wake()

    # --- one VMI, in a thread of the pool ------------------------------------------------------

    def _settle(self, key: Names) -> None:
        began = self._now()
        try:
            with self._changed:
                patient = self._retries.has_failed(key) and self._due.is_slow(key[0], began)
            settled = settle(self._watch, self._records, key, patient=patient)
            self._report(key, settled)
        except Exception as exc:  # noqa: BLE001 - one VM must not keep all others
            _log.exception("VMI %s/%s", *key)
            settled = Settled(problem=f"{type(exc).__name__}: {exc}")
        now = self._now()
        with self._changed:
            self._due.took(key, now - began, now, worked=not settled.problem)
            if settled.problem:
                self._put_off(key, settled)
            else:
                self._retries.forget(key)
                if self._is_untold(key, settled):
                    self._queue.put(key, now + WAITING_SECONDS)
            self._queue.finish(key)
            self._changed.notify_all()

    def _is_untold(self, key: Names, settled: Settled) -> bool:
        """Tell whether a VMI has to be looked at again though nobody may tell of a change."""
        kept = bool(self._watch.strays_of(key))
        return kept or any(pod.is_unschedulable for pod in settled.waiting)

    def _put_off(self, key: Names, settled: Settled) -> None:
        at_least = settled.retry_after or 0.0
        wait = self._retries.failed(key, now=self._now(), at_least=at_least)
        self._metrics.vm_records.labels("retried").inc()
        about = logs.fields(namespace=key[0], name=key[1], reason=settled.problem)
        text = "VM of VMI %s/%s cannot be settled: %s; next try in %.1f s"
        _log.warning(text, *key, settled.problem, wait, extra=about)

    # --- telling -------------------------------------------------------------------------------

    def _report(self, key: Names, settled: Settled) -> None:
        vm, args = settled.vm, settled.args
        if settled.change is not Change.NONE:
            self._metrics.vm_records.labels(settled.change.value).inc()
        if vm is not None and settled.change in {Change.RECORDED, Change.FOLLOWED}:
            note = f"the VM has landed on node {settled.node}, and comes back there"
            if settled.change is Change.FOLLOWED:
                note = f"a migration took the VM to node {settled.node}, and it comes back there"
            about = logs.fields(
                namespace=vm.key[0], name=vm.key[1], uid=vm.metadata.uid, node=settled.node
            )
            _log.info("VM %s/%s: %s", *vm.key, note, extra=about)
            self._tell(vm, settled.freed, events.NODE_RECORDED, note, warning=False)
        if settled.problem:
            note = f"{settled.problem}; it is tried again until it succeeds"
            pods = self._watch.pods_of(key)
            self._tell(vm, pods, events.NODE_NOT_RECORDED, note, warning=True)
        if settled.remark and settled.freed:
            _log.warning("VMI %s/%s: %s", *key, settled.remark)
            self._tell(None, settled.freed, events.NODE_NOT_RECORDED, settled.remark, warning=True)
        stuck = [pod for pod in settled.waiting if pod.is_unschedulable and not pod.spec.node_name]
        if vm is not None and args is not None and settled.node and stuck:
            self._report_node(vm, args, settled.node, stuck)

    def _report_node(
        self, vm: VirtualMachine, args: StickyArgs, name: str, pods: list[LauncherPod]
    ) -> None:
        """Say why a VM's node cannot take it, where it is the node's fault."""
        if args.affinity != "required":
            return
        try:
            problem = node_trouble.trouble(name, self._node(name))
        except (ClusterError, msgspec.DecodeError, UnicodeDecodeError) as exc:
            _log.warning("node %s of VM %s/%s cannot be read: %s", name, *vm.key, exc)
            return
        if problem:
            note = node_trouble.advice(vm.key, name, problem, args.node_annotation)
            _log.warning("VM %s/%s: %s", *vm.key, note)
            self._tell(vm, pods, events.NODE_UNAVAILABLE, note, warning=True)

    def _node(self, name: str) -> node_trouble.Node | None:
        path = f"/api/v1/nodes/{quote(name, safe='')}"
        try:
            answer = self._api.request("GET", path, timeout=NODE_TIMEOUT)
        except ApiStatusError as exc:
            if exc.is_not_found:
                return None
            raise
        return msgspec.json.decode(answer, type=node_trouble.Node)

    def _tell(
        self,
        vm: VirtualMachine | None,
        pods: list[LauncherPod],
        reason: str,
        note: str,
        *,
        warning: bool,
    ) -> None:
        if vm is not None:
            uid = vm.metadata.uid
            self._told.record(Event(vm.key, uid, reason, note, warning, events.VM))
        for pod in pods:
            self._told.record(Event(pod.key, pod.metadata.uid, reason, note, warning))


def settle(watch: VmWatch, records: Records, key: Names, *, patient: bool = False) -> Settled:
    """Settle a VMI by what is known of its pods, and note what became of them."""
    for stray in watch.strays_of(key):
        try:
            watch.found(stray, records.read_pod(stray))
        except (ClusterError, msgspec.DecodeError, UnicodeDecodeError) as exc:
            return Settled(problem=f"pod {'/'.join(stray)}: {exc}")
    settled = records.settle(key, watch.pods_of(key), patient=patient)
    for pod in settled.freed:
        watch.freed(pod)
    return settled
