"""The sticky part of the load: a few real VMs that are restarted repeatedly."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from controlplane.components import KWOK
from controlplane.errors import ControlPlaneError
from controlplane.kubevirt import KWOK_VMI
from holdfast.webhook.errors import ClusterError
from holdfast.webhook.framework import node_affinity
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.model.kubevirt import LauncherPod, vmi_path
from holdfast.webhook.model.objects import Pod
from tests.e2e import vms
from tests.e2e.fake_kubevirt import create_as_kubevirt, launcher
from tests.e2e.namespace import Namespace
from tests.e2e.vm_storm import Seen, Storm, watching
from tests.support.background import in_background

BY_NAME = ("metadata.name", "In", True)
"""The key, operator and `is_field` of a requirement that names nodes."""
COUNT = 3
UNTOUCHED = "vm-untouched"
"""Another VM, which is never restarted: its instance can be looked up at any time."""
PAUSE = (2.0, 4.0)
"""Seconds between two restarts."""
RETRY = 0.5
"""Seconds until a retry of a restart that failed, or whose VM was not running."""
LAST_RESTART = 60.0
"""Seconds after a row's load in which a VM is restarted, if the fault prevented all restarts."""
RUNNING_AGAIN = 330.0
"""Seconds in which all VMs run again: KubeVirt backs off for up to five minutes after a failed
start."""
RECHECK_SECONDS = 20.0
"""Seconds until the simulated kubelets and virt-handler are restarted if VMs do not run: kwok does
not retry after HTTP 500. The wait doubles each time, since kwok then handles all pods again, and
with thousands of pods it would never reach those of the VMs."""


@dataclass
class SeenWithNodes(Seen):
    """The history of the pods, with the node that each pod requires."""

    required: dict[str, str] = field(default_factory=dict)
    """By UID; empty if a pod may run on any node."""

    def on_update(self, pod: LauncherPod) -> None:
        self.required[pod.metadata.uid] = required_node(pod)
        super().on_update(pod)


class VmLoad:
    """VMs in their own namespace, and where their pods were bound."""

    def __init__(self, ns: Namespace, stack: ExitStack) -> None:
        self._ns = Namespace.create_new(ns.plane, "machines")
        cluster = stack.enter_context(closing(Cluster.connect(ns.plane.kubeconfig)))
        self._restarted = [f"vm-{number}" for number in range(COUNT)]
        self._storm = Storm(cluster, self._ns.namespace, [*self._restarted, UNTOUCHED])
        self._storm.seen = self._seen = SeenWithNodes()
        self._earlier: frozenset[str] = frozenset()
        """The UIDs of the pods that existed before the row started."""
        self._first_nodes: dict[str, str] = {}
        """The first node of each VM."""
        self._bound: dict[str, int] = {}
        """How often each VM had been bound when the row started."""
        stack.enter_context(watching(self._storm))
        self.restarts = 0

    def create(self) -> None:
        """Create the VMs, and wait until each has been bound once."""
        self._storm.create()
        self.wait_until_running()
        self._ns.eventually(lambda: {vms.uid(pod) for pod in self._storm.pods()} <= self._uids())
        self._first_nodes = {name: nodes[0] for name, nodes in self._nodes()}
        self._reset()

    def _reset(self) -> None:
        """Start counting from zero, so that a failure counts for one row only."""
        self._earlier, self.restarts = self._uids(), 0
        self._bound = {name: len(nodes) for name, nodes in self._nodes()}

    @contextmanager
    def restarting(self, rng: random.Random) -> Iterator[None]:
        """Start a row, and restart VMs one after another until the block ends."""
        self._reset()
        with in_background(partial(self._restart, rng)):
            yield

    @contextmanager
    def blocked_by_quota(self) -> Iterator[None]:
        """Prevent new pods of VMs while the block runs; KubeVirt retries afterwards."""
        self._ns.kubectl("create", "quota", "none", "--hard=pods=0")
        try:
            self._ns.eventually(self._is_over_quota)
            yield
        finally:
            self._ns.kubectl("delete", "quota", "none")

    def wait_until_running(self) -> None:
        """Wait until each VM runs in one pod."""
        end, recheck = time.monotonic() + RUNNING_AGAIN, RECHECK_SECONDS
        while not self._all_run_within(min(recheck, end - time.monotonic())):
            recheck *= 2
            if time.monotonic() >= end:
                unsettled = self._storm.unsettled()
                raise AssertionError(f"VMs not running after {RUNNING_AGAIN:.0f} s: {unsettled}")
            for name in (KWOK, KWOK_VMI):  # the testbed restarts them
                process = self._ns.plane.process(name)
                if process.running:
                    process.kill()

    def misplaced(self) -> list[str]:
        """Return the VMs that were bound to another node than their first since the row started."""
        bound_nodes = {name: nodes[self._bound.get(name, 0) :] for name, nodes in self._nodes()}
        return sorted(
            name for name, nodes in bound_nodes.items() if set(nodes) - {self._first_nodes[name]}
        )

    def without_required_node(self) -> list[str]:
        """Return the UIDs of pods that require no node although their VM has a first node.

        Only pods that were created since the row started count.
        """
        required_nodes = dict(self._seen.required)
        return sorted(
            uid for uid, node in required_nodes.items() if not node and uid not in self._earlier
        )

    def dry_run_pod(self) -> str:
        """Create a VM's pod as KubeVirt does, in a dry run, and return the node that it requires.

        Return "" if it may run on any node. Raises ControlPlaneError if the pod is rejected.
        """
        manifest = launcher(self._ns.get("vmi", UNTOUCHED))
        manifest["metadata"]["name"] += "-dry-run"
        pod = create_as_kubevirt(self._ns, manifest, "--dry-run=server")
        return required_node(Pod.of(pod))

    def _is_over_quota(self) -> bool:
        try:
            self.dry_run_pod()
        except ControlPlaneError as exc:
            return "exceeded quota" in str(exc)
        return False

    def _nodes(self) -> list[tuple[str, list[str]]]:
        return list(self._storm.seen.nodes.items())

    def _uids(self) -> frozenset[str]:
        return frozenset(self._seen.required)

    def _all_run_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(ClusterError):
                if not self._storm.unsettled():
                    return True
            time.sleep(0.1)
        return False

    def _restart(self, rng: random.Random, stop: threading.Event) -> None:
        pause = rng.uniform(*PAUSE)
        while not stop.wait(pause):
            pause = rng.uniform(*PAUSE) if self._restart_one(rng) else RETRY
        end = time.monotonic() + LAST_RESTART
        while not self.restarts and time.monotonic() < end:
            self._restart_one(rng)
            time.sleep(RETRY)

    def _restart_one(self, rng: random.Random) -> bool:
        """Delete the VMI of a running VM; return whether that succeeded."""
        name = rng.choice(self._restarted)
        try:
            if not self._storm.runs(name):
                return False
            self._storm.cluster.request("DELETE", vmi_path(self._ns.namespace, name))
        except ClusterError:
            return False
        self.restarts += 1
        return True


def required_node(pod: Pod) -> str:
    """Return the one node that a pod may run on; empty if it requires no single node."""
    names = [
        {
            requirement.values
            for requirement in term
            if (requirement.key, requirement.operator, requirement.is_field) == BY_NAME
        }
        for term in node_affinity.terms(pod) or ()
    ]
    common_values = set.intersection(*names) if names else set()
    return next((values[0] for values in common_values if len(values) == 1), "")
