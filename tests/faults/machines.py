"""The sticky part of the load: a few real VMs that are restarted again and again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

from tests.e2e.test_sticky_storm import Storm, watching
from tests.e2e.world import World
from webhook.cluster import Cluster
from webhook.errors import ClusterError
from webhook.vms import vmi_path

COUNT = 3
PAUSE = (2.0, 4.0)
"""Seconds between two restarts."""
SETTLED = 330.0
"""Seconds in which all VMs run again: KubeVirt itself lets one whose start failed wait for up to
five minutes."""


class Machines:
    """VMs in a namespace of their own, and where their pods were bound."""

    def __init__(self, world: World, stack: ExitStack) -> None:
        self._world = World.in_new_namespace(world.plane, "machines")
        cluster = stack.enter_context(closing(Cluster.connect(world.plane.kubeconfig)))
        names = [f"vm-{number}" for number in range(COUNT)]
        self._storm = Storm(cluster, self._world.namespace, names)
        stack.enter_context(watching(self._storm))
        self.restarts = 0

    def create(self) -> None:
        """Make the VMs, and wait until each has landed once."""
        self._storm.create()
        self.settle()

    @contextmanager
    def restarting(self, source: random.Random) -> Iterator[None]:
        """Restart one after another until the block ends."""
        stop = threading.Event()
        thread = threading.Thread(target=self._restart, args=(source, stop))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def settle(self) -> float:
        """Wait until each VM runs in one pod, and tell how many seconds that took."""
        began = time.monotonic()
        self._world.eventually(self._is_settled, SETTLED)
        return time.monotonic() - began

    def astray(self) -> list[str]:
        """Name the VMs that have run on more than one node."""
        seen = self._storm.seen.nodes
        return sorted(name for name, nodes in seen.items() if len(set(nodes)) > 1)

    def _is_settled(self) -> bool:
        try:
            return not self._storm.unsettled()
        except ClusterError:
            return False

    def _restart(self, source: random.Random, stop: threading.Event) -> None:
        while not stop.wait(source.uniform(*PAUSE)):
            name = source.choice(self._storm.names)
            with suppress(ClusterError):
                if self._storm.runs(name):
                    path = vmi_path(self._world.namespace, name)
                    self._storm.cluster.request("DELETE", path)
                    self.restarts += 1
