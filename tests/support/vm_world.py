"""VMs on a fake API server, with the behaviour of KubeVirt and of the webhook.

KubeVirt creates a VM's next VMI when the old one is gone, and removes a VMI when its pods are gone.
The webhook adds our finalizer to each pod of a VM, and requires the VM's node.
"""

import copy
import itertools
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from holdfast.webhook.kube.api import pod_path
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.objects import ObjectKey, Pod
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.sticky.controller import reconcile
from holdfast.webhook.sticky.reconciler import ReconcileResult, VmReconciler
from holdfast.webhook.sticky.watches import VmWatch
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from tests.support.fakes import KUBEVIRT, Document, FakeApi

NAMESPACE = "default"


class Once(threading.Event):
    """Lets a loop run once: `is_set` is true from the second call on."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = False

    def is_set(self) -> bool:
        was_set, self._asked = self._asked, True
        return was_set

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - an Event's
        return False


class Killed(BaseException):
    """The controller was killed."""


class VmWorld:
    def __init__(self, args: StickyArgs | None = None, *names: str) -> None:
        self.api = FakeApi()
        self.args = args or StickyArgs()
        self._numbers = itertools.count(1)
        for name in names or ("vm",):
            self.create(name)

    # --- what is there -------------------------------------------------------------------------

    def vm(self, name: str = "vm") -> Document:
        return self.api.objects[vm_at(name)]

    def vmi(self, name: str = "vm") -> Document | None:
        return self.api.objects.get(vmi_at(name))

    def pod(self, name: str) -> Document | None:
        return self.api.objects.get(pod_at(name))

    def pods(self, vm: str = "vm") -> list[Document]:
        vmi = self.vmi(vm)
        owners = (pod["metadata"]["ownerReferences"][0]["uid"] for pod in self._all_pods())
        return [
            pod
            for pod, uid in zip(self._all_pods(), owners, strict=True)
            if vmi is not None and uid == vmi["metadata"]["uid"]
        ]

    def _all_pods(self) -> list[Document]:
        return self.api.all("/api/v1/pods")

    def kept(self, vm: str = "vm") -> list[str]:
        """Return the names of a VM's pods with our finalizer."""
        return [pod["metadata"]["name"] for pod in self.pods(vm) if is_kept(pod)]

    def annotations(self, name: str = "vm") -> Mapping[str, str]:
        annotations: Mapping[str, str] = self.vm(name)["metadata"].get("annotations") or {}
        return annotations

    def record(self, name: str = "vm") -> str:
        """Return the recorded node of a VM, as the webhook reads it."""
        annotations = dict(self.annotations(name))
        uid = annotations.get(kubevirt.STICKY_NODE_UID, "")
        counts = uid in {"", self.vm(name)["metadata"]["uid"]}
        return annotations.get(self.args.node_annotation, "") if counts else ""

    # --- what people do ------------------------------------------------------------------------

    def create(self, name: str) -> None:
        metadata = {"name": name, "namespace": NAMESPACE, "uid": f"vm-{next(self._numbers)}"}
        self.api.put(vm_at(name), {"kind": kubevirt.VM, "metadata": metadata})

    def write(
        self, name: str, changes: Mapping[str, str | None], *, manager: str = "kubectl-annotate"
    ) -> None:
        def act(vm: Document) -> None:
            before = copy.deepcopy(vm)
            annotations = vm["metadata"].setdefault("annotations", {})
            for key, value in changes.items():
                if value is None:
                    annotations.pop(key, None)
                else:
                    annotations[key] = value
            self.api.own_annotations(vm, before, manager)

        self.api.change(vm_at(name), act)

    # --- what KubeVirt does --------------------------------------------------------------------

    def start(self, vm: str = "vm", *, finalizer: bool = True) -> str:
        assert self.vmi(vm) is None
        owner = _owner(kubevirt.VM, vm, self.vm(vm)["metadata"]["uid"])
        metadata = _metadata(vm, f"vmi-{next(self._numbers)}", owner)
        document = {"kind": kubevirt.VMI, "metadata": metadata, "spec": {}, "status": {}}
        self.api.put(vmi_at(vm), document)
        return self._new_pod(vm, {}, {}, finalizer=finalizer)

    def _new_pod(
        self, vm: str, labels: Document, annotations: Document, *, finalizer: bool = True
    ) -> str:
        vmi = self.vmi(vm)
        assert vmi is not None
        number = next(self._numbers)
        name = f"virt-launcher-{vm}-{number}"
        metadata = _metadata(
            name, f"pod-{number}", _owner(kubevirt.VMI, vm, vmi["metadata"]["uid"])
        )
        metadata["labels"] = {"kubevirt.io": "virt-launcher", **labels}
        metadata["annotations"] = annotations
        metadata["creationTimestamp"] = f"2026-03-01T12:00:{number % 60:02}Z"
        if finalizer:
            metadata["finalizers"] = ["example.com/other", kubevirt.STICKY]
        self.api.put(pod_at(name), {"kind": "Pod", "metadata": metadata, "spec": {}, "status": {}})
        return name

    def bind(self, pod: str, node: str) -> None:
        self.api.change(pod_at(pod), lambda document: document["spec"].update(nodeName=node))

    def unschedulable(self, pod: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        self.api.change(
            pod_at(pod), lambda document: document["status"].update(conditions=[condition])
        )

    def ready(self, vm: str = "vm", node: str | None = None) -> None:
        """Mark the VMI as running, on the node of its first pod."""
        node = node or self.pods(vm)[0]["spec"]["nodeName"]
        self.status(vm, phase="Running", nodeName=node)

    def status(self, vm: str = "vm", **status: Any) -> None:
        def act(vmi: Document) -> None:
            vmi["status"].update(status)
            if "phase" in status:
                phases = vmi["status"].setdefault("phaseTransitionTimestamps", [])
                phases.append({"phase": status["phase"]})

        self.api.change(vmi_at(vm), act)

    def migrate(self, vm: str = "vm") -> tuple[str, str]:
        number = next(self._numbers)
        name, uid = f"job-{number}", f"uid-of-job-{number}"
        metadata = {"name": name, "namespace": NAMESPACE, "uid": uid}
        document = {"metadata": metadata, "spec": {"vmiName": vm}, "status": {"phase": "Pending"}}
        self.api.put(job_at(name), document)
        pod = self._new_pod(vm, {kubevirt.MIGRATION_JOB: uid}, {kubevirt.MIGRATION_NAME: name})
        return name, pod

    def migrated(self, job: str, pod: str, vm: str = "vm") -> None:
        """Complete a migration: the VMI reports its new node before the migration succeeds."""
        self.moved(job, pod, vm)
        self.end(job, "Succeeded")

    def moved(self, job: str, pod: str, vm: str = "vm") -> None:
        vmi, target = self.vmi(vm), self.pod(pod)
        assert vmi is not None
        assert target is not None
        state = {
            "migrationUid": self.api.objects[job_at(job)]["metadata"]["uid"],
            "sourceNode": vmi["status"]["nodeName"],
            "targetNode": target["spec"]["nodeName"],
            "completed": True,
            "endTimestamp": self.api.clock(),
        }
        self.status(vm, nodeName=target["spec"]["nodeName"], migrationState=state)

    def end(self, job: str, phase: str) -> None:
        def act(migration: Document) -> None:
            vmi = self.vmi(migration["spec"]["vmiName"])
            state = (vmi or {"status": {}})["status"].get("migrationState", {})
            if state.get("migrationUid") == migration["metadata"]["uid"]:
                migration["status"]["migrationState"] = state
            migration["status"]["phase"] = phase

        self.api.change(job_at(job), act)

    def end_pod(self, pod: str) -> None:
        if self.pod(pod) is not None:
            self.api.change(
                pod_at(pod), lambda document: document["status"].update(phase="Succeeded")
            )
            self.drop_others(pod)
            self.api.delete(pod_at(pod))

    def drop_others(self, pod: str) -> None:
        """Remove the finalizers that are not ours."""

        def act(document: Document) -> None:
            finalizers = document["metadata"].get("finalizers", ())
            document["metadata"]["finalizers"] = [
                name for name in finalizers if name == kubevirt.STICKY
            ]

        self.api.change(pod_at(pod), act)

    def stop(self, vm: str = "vm") -> None:
        """Delete the VMI: its pods end, its migrations fail, and it is removed after its pods."""
        for job in self.api.all(f"{KUBEVIRT}/virtualmachineinstancemigrations"):
            if job["spec"]["vmiName"] == vm and job["status"]["phase"] not in kubevirt.ENDS:
                self.end(job["metadata"]["name"], "Failed")
        self.api.change(
            vmi_at(vm),
            lambda vmi: vmi["metadata"].update(
                deletionTimestamp="2026-03-01T12:00:00Z", finalizers=["kubevirt.io/foreground"]
            ),
        )
        self.status(vm, phase="Succeeded")
        for pod in self.pods(vm):
            self.end_pod(pod["metadata"]["name"])
        self.collect(vm)

    def collect(self, vm: str = "vm") -> None:
        """Remove a deleted VMI once its pods are gone."""
        vmi = self.vmi(vm)
        if vmi is not None and vmi["metadata"].get("deletionTimestamp") and not self.pods(vm):
            self.api.vanish(vmi_at(vm))


class Driver:
    def __init__(self, world: VmWorld) -> None:
        self.world = world
        self.metrics = ControllerMetrics()
        self.restart()

    def restart(self) -> None:
        """Start again without any state."""
        self.looks: deque[ObjectKey] = deque()
        self.restarts: list[str] = []
        self.asked: list[Pod] = []
        self.watch = VmWatch(
            self.world.api,
            self.settings,
            self.looks.append,
            drop=self.drop,
            enabled=True,
            on_restart=self.restarts.append,
            may_sweep=lambda: True,
        )
        self.reconciler = VmReconciler(self.world.api, self.settings, self.may_write)
        self.leads = True

    def drop(self, key: ObjectKey) -> None:
        self.looks = deque(look for look in self.looks if look != key)

    def settings(self, pod: Pod) -> StickyArgs:
        self.asked.append(pod)
        return self.world.args

    def may_write(self) -> bool:
        return self.leads

    def see(self) -> None:
        for feeder in self.watch.feeders().values():
            feeder(Once())

    def settle(self, key: str = "vm") -> ReconcileResult:
        return reconcile(self.watch, self.reconciler, (NAMESPACE, key))

    def work(self) -> list[ReconcileResult]:
        """Process all watch events, and reconcile the VMs that they concern."""
        self.see()
        results = [reconcile(self.watch, self.reconciler, key) for key in dict.fromkeys(self.looks)]
        self.looks.clear()
        return results


def is_kept(pod: Document) -> bool:
    return kubevirt.STICKY in pod["metadata"].get("finalizers", ())


def vm_at(name: str) -> str:
    return kubevirt.vm_path(NAMESPACE, name)


def vmi_at(name: str) -> str:
    return kubevirt.vmi_path(NAMESPACE, name)


def job_at(name: str) -> str:
    return kubevirt.migration_path(NAMESPACE, name)


def pod_at(name: str) -> str:
    return pod_path(NAMESPACE, name)


def _metadata(name: str, uid: str, owner: Document) -> Document:
    return {"name": name, "namespace": NAMESPACE, "uid": uid, "ownerReferences": [owner]}


def _owner(kind: str, name: str, uid: str) -> Document:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
    }
