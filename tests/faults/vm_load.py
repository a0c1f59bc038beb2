"""The sticky part of the load: a few real VMs that are restarted again and again."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field

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
from tests.e2e.test_sticky_storm import Seen, Storm, watching

BY_NAME = ("metadata.name", "In", True)
"""The key and operator of a requirement that names nodes, and that it is of a field."""
COUNT = 3
STILL = "vm-still"
"""One more, which is left alone: its instance is there to be looked up at any time."""
PAUSE = (2.0, 4.0)
"""Seconds between two restarts."""
AGAIN = 0.5
"""Seconds after which a restart that failed, or found its VM not running, is tried again."""
AT_LAST = 60.0
"""Seconds after a row's load in which a VM is restarted where the harm left no moment for it."""
SETTLED = 330.0
"""Seconds in which all VMs run again: KubeVirt itself lets one whose start failed wait for up to
five minutes."""
RECHECK_SECONDS = 20.0
"""Seconds before the simulated kubelets and virt-handler are made to retry VMs that do not run:
kwok does not retry after HTTP 500. The wait doubles each time: kwok starts again with all pods,
and with thousands of them it would never reach those of the VMs."""


@dataclass
class Sent(Seen):
    """Likewise, and which node each pod was sent to."""

    to: dict[str, str] = field(default_factory=dict)
    """By UID; empty where a pod may go to any."""

    def on_update(self, pod: LauncherPod) -> None:
        self.to[pod.metadata.uid] = required_node(pod)
        super().on_update(pod)


class VmLoad:
    """VMs in their own namespace, and where their pods were bound."""

    def __init__(self, ns: Namespace, stack: ExitStack) -> None:
        self._ns = Namespace.create_new(ns.plane, "machines")
        cluster = stack.enter_context(closing(Cluster.connect(ns.plane.kubeconfig)))
        self._restarted = [f"vm-{number}" for number in range(COUNT)]
        self._storm = Storm(cluster, self._ns.namespace, [*self._restarted, STILL])
        self._storm.seen = self._sent = Sent()
        self._first: frozenset[str] = frozenset()
        """The UIDs of the pods that were there before each VM had landed, or the row began."""
        self._homes: dict[str, str] = {}
        """Where each VM landed first."""
        self._landed: dict[str, int] = {}
        """How often each VM had landed when the row began."""
        stack.enter_context(watching(self._storm))
        self.restarts = 0

    def create(self) -> None:
        """Make the VMs, and wait until each has landed once."""
        self._storm.create()
        self.settle()
        self._ns.eventually(lambda: {vms.uid(pod) for pod in self._storm.pods()} <= self._uids())
        self._homes = {name: nodes[0] for name, nodes in self._landings()}
        self._begin()

    def _begin(self) -> None:
        """Count from here: what was wrong before is not held against another row."""
        self._first, self.restarts = self._uids(), 0
        self._landed = {name: len(nodes) for name, nodes in self._landings()}

    @contextmanager
    def restarting(self, source: random.Random) -> Iterator[None]:
        """Restart one after another until the block ends: so a row begins."""
        self._begin()
        stop = threading.Event()
        thread = threading.Thread(target=self._restart, args=(source, stop))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    @contextmanager
    def kept_down(self) -> Iterator[None]:
        """Let no pod of a VM be made while the block lasts; KubeVirt tries again after it."""
        self._ns.kubectl("create", "quota", "none", "--hard=pods=0")
        try:
            self._ns.eventually(self._is_refused)
            yield
        finally:
            self._ns.kubectl("delete", "quota", "none")

    def settle(self) -> float:
        """Wait until each VM runs in one pod, and return how many seconds that took."""
        began, patience = time.monotonic(), RECHECK_SECONDS
        end = began + SETTLED
        while not self._is_settled_within(min(patience, end - time.monotonic())):
            patience *= 2
            if time.monotonic() >= end:
                left = self._storm.unsettled()
                raise AssertionError(f"VMs that do not run after {SETTLED:.0f} s: {left}")
            for name in (KWOK, KWOK_VMI):  # the testbed starts again what has ended
                process = self._ns.plane.process(name)
                if process.running:
                    process.kill()
        return time.monotonic() - began

    def astray(self) -> list[str]:
        """Name the VMs that have landed elsewhere than at first, since the row began."""
        seen = {name: nodes[self._landed.get(name, 0) :] for name, nodes in self._landings()}
        return sorted(name for name, nodes in seen.items() if set(nodes) - {self._homes[name]})

    def unbidden(self) -> list[str]:
        """Return the UIDs of pods that were sent to no node although their VM had landed.

        Only pods that were created since the row began count.
        """
        sent = dict(self._sent.to)
        return sorted(uid for uid, node in sent.items() if not node and uid not in self._first)

    def ask(self) -> str:
        """Ask for a pod of a VM as KubeVirt does, in a dry run, and name the node it is sent to.

        Empty where it may go to any. Raises ControlPlaneError where the pod is refused.
        """
        manifest = launcher(self._ns.get("vmi", STILL))
        manifest["metadata"]["name"] += "-asked"
        seen = create_as_kubevirt(self._ns, manifest, "--dry-run=server")
        return required_node(Pod.of(seen))

    def _is_refused(self) -> bool:
        try:
            self.ask()
        except ControlPlaneError as exc:
            return "exceeded quota" in str(exc)
        return False

    def _landings(self) -> list[tuple[str, list[str]]]:
        return list(self._storm.seen.nodes.items())

    def _uids(self) -> frozenset[str]:
        return frozenset(self._sent.to)

    def _is_settled_within(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(ClusterError):
                if not self._storm.unsettled():
                    return True
            time.sleep(0.1)
        return False

    def _restart(self, source: random.Random, stop: threading.Event) -> None:
        pause = source.uniform(*PAUSE)
        while not stop.wait(pause):
            pause = source.uniform(*PAUSE) if self._restart_one(source) else AGAIN
        end = time.monotonic() + AT_LAST
        while not self.restarts and time.monotonic() < end:
            self._restart_one(source)
            time.sleep(AGAIN)

    def _restart_one(self, source: random.Random) -> bool:
        """Delete the VMI of a running VM; return whether that succeeded."""
        name = source.choice(self._restarted)
        try:
            if not self._storm.runs(name):
                return False
            self._storm.cluster.request("DELETE", vmi_path(self._ns.namespace, name))
        except ClusterError:
            return False
        self.restarts += 1
        return True


def required_node(pod: Pod) -> str:
    """Name the one node that a pod may go to; empty where it names none."""
    named = [
        {one.values for one in term if (one.key, one.operator, one.is_field) == BY_NAME}
        for term in node_affinity.terms(pod) or ()
    ]
    common = set.intersection(*named) if named else set()
    return next((values[0] for values in common if len(values) == 1), "")
