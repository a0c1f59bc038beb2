"""Random actions on VMs, and a history of where they ran."""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube.api import pod_path
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.kube.reflector import Reflector
from holdfast.webhook.model.kubevirt import (
    Instance,
    LauncherPod,
    controller_of,
    vm_path,
    vmi_path,
)
from tests.e2e import vms
from tests.e2e.namespace import Object
from tests.e2e.two_processes import TwoProcesses

PAUSE = (0.02, 0.3)
"""Seconds between two actions of a thread."""
UPTIME = (1.0, 8.0)
"""Seconds for which a process of Holdfast runs between two kills."""
DOWNTIME = (0.0, 4.0)
"""Seconds until it is started again."""
MERGE_PATCH = "application/merge-patch+json"


@dataclass
class Seen:
    """The history of the pods of each VMI (a `ResourceEventHandler`)."""

    nodes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    bound: set[str] = field(default_factory=set)

    def on_sync(self, pods: Iterable[LauncherPod]) -> None:
        for pod in pods:
            self.on_update(pod)

    def on_update(self, pod: LauncherPod) -> None:
        owner = controller_of(pod.metadata, "VirtualMachineInstance")
        if owner is not None and pod.spec.node_name and pod.metadata.uid not in self.bound:
            self.bound.add(pod.metadata.uid)
            self.nodes[owner.name].append(pod.spec.node_name)

    def on_delete(self, pod: LauncherPod) -> None:
        self.on_update(pod)


class Storm:
    """Random actions on the VMs of one namespace."""

    def __init__(self, cluster: Cluster, namespace: str, names: list[str]) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.names = names
        self.pods_path = pod_path(namespace, "").rstrip("/")
        self.lock = threading.Lock()
        self.halted: set[str] = set()
        self.ran: set[str] = set()
        self.seen = Seen()
        self.deeds: dict[str, int] = defaultdict(int)
        self.kills: dict[str, int] = defaultdict(int)

    def create(self) -> None:
        path = vm_path(self.namespace, "")

        def create(name: str) -> None:
            self.cluster.request("POST", path, body=msgspec.json.encode(vms.vm(name)))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(create, self.names))

    def act(self, source: random.Random, until: float) -> None:
        """Stop, start and delete VMs at random, mostly running ones.

        A VM is not touched until it has run: before that it has no node to return to.
        """
        while time.monotonic() < until:
            deed = source.choices(["delete VMI", "delete pods", "stop", "start"], [6, 2, 1, 2])[0]
            with self.lock:
                candidates = sorted(self.halted) if deed == "start" else self.names
                name = source.choice(candidates) if candidates else ""
            if name and (deed == "start" or self.is_next(name, source)):
                self.do(deed, name)
            time.sleep(source.uniform(*PAUSE))

    def is_next(self, name: str, source: random.Random) -> bool:
        runs = self.runs(name)
        with self.lock:
            self.ran |= {name} if runs else set()
            return runs or (name in self.ran and source.random() < 0.05)

    def runs(self, name: str) -> bool:
        try:
            response = self.cluster.request("GET", vmi_path(self.namespace, name))
        except ApiStatusError:
            return False
        return msgspec.json.decode(response, type=Instance).status.phase == "Running"

    def do(self, deed: str, name: str) -> None:
        with self.lock:
            self.deeds[deed] += 1
            if deed == "stop":
                self.halted.add(name)
            if deed == "start":
                self.halted.discard(name)
        try:
            if deed == "delete VMI":
                self.cluster.request("DELETE", vmi_path(self.namespace, name))
            elif deed == "delete pods":
                for pod in self.pods():
                    if _owner(pod) == name:
                        pod_name = str(pod["metadata"]["name"])
                        self.cluster.request("DELETE", pod_path(self.namespace, pod_name))
            else:
                self.run_strategy(name, "Always" if deed == "start" else "Halted")
        except ApiStatusError as exc:
            if exc.status != 404:  # already deleted
                raise

    def run_strategy(self, name: str, strategy: str) -> None:
        body = msgspec.json.encode({"spec": {"runStrategy": strategy}})
        path = vm_path(self.namespace, name)
        self.cluster.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    def pods(self) -> list[Object]:
        response = self.cluster.request("GET", self.pods_path)
        return list(msgspec.json.decode(response)["items"])

    def kill(self, processes: TwoProcesses, source: random.Random, until: float) -> None:
        while time.monotonic() < until:
            time.sleep(source.uniform(*UPTIME))
            victims = source.choice([["server"], ["controller"], ["server", "controller"]])
            for victim in victims:
                processes.kill(victim)
                self.kills[victim] += 1
            time.sleep(source.uniform(*DOWNTIME))
            for victim in victims:
                processes.start(victim)

    def unsettled(self) -> dict[str, str]:
        """Return the VMs that do not run in exactly one pod, with the state of their pods."""
        pods_by_vm = defaultdict(list)
        for pod in self.pods():
            pods_by_vm[_owner(pod)].append(pod)
        states = {}
        for name in self.names:
            pods = pods_by_vm[name]
            if len(pods) != 1 or not _is_living(pods[0]) or not self.runs(name):
                states[name] = ", ".join(
                    f"{vms.node_of(pod) or 'unbound'}{'' if _is_living(pod) else ' (ended)'}"
                    for pod in pods
                )
        return states


@contextmanager
def watching(storm: Storm) -> Iterator[None]:
    stop = threading.Event()
    reflector = Reflector(
        storm.cluster,
        storm.seen,
        LauncherPod,
        path=storm.pods_path,
        selection={},
        on_restart=lambda _: None,
    )
    threading.Thread(target=reflector.run, args=(stop,), daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def _owner(pod: Object) -> str:
    return str(vms.owner(pod).get("name", ""))


def _is_living(pod: Object) -> bool:
    return not vms.has_ended(pod) and not vms.is_going(pod)
