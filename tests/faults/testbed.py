"""The cluster that all rows run in: the real control plane, KubeVirt, and Holdfast as installed.

Two admission servers behind the real Service, two controllers that elect a leader. All of them act
by their own accounts, and reach the API server through a proxy. The tests do the work of a kubelet:
a replica that is not ready leaves the Service, and a component that ends is started again.
"""

import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml

from bench.world import SLOW_PODS
from controlplane.components import API_SERVER, ETCD
from controlplane.errors import ControlPlaneError
from controlplane.kubevirt import VIRT_API
from controlplane.kubevirt import install as install_kubevirt
from controlplane.launcher import ControlPlane
from demo.command import Command
from tests.e2e import installed
from tests.e2e.accounts import controller_kubeconfig, kubevirt_rights, token_kubeconfig
from tests.e2e.installed import Installation
from tests.faults.audit import POLICY, Audit
from tests.faults.broken import SLOW, VARIABLE
from tests.faults.load import ROLE
from tests.faults.proxy import Proxy
from tests.faults.relay import Relay
from tests.faults.vm_load import VmLoad

BROKEN = "tests.faults.broken"
REPLICAS = CONTROLLERS = 2
PROBE_SECONDS, PROBE_FAILURES = 2.0, 2
"""How often readiness is asked for, and how often in vain before a replica gets no more calls: as
in the manifests."""
DELETING = 8
"""Deletions at once where many pods are deleted: one after the other does not keep up with the
load, and the nodes fill up."""
PODS_PER_NODE = "20000"
"""More than pile up on one node where kwok, which waits for the API server as everybody does, comes
behind with having them run: of the 22,000 pods of the largest row but the soak, at most half."""
REPLICA_AHEAD = 3_600.0
"""The most seconds by which a replica's clock is ahead: weeks later its certificate expires."""
PRE_STOP_SECONDS = 3.0
"""How long a replica serves on when it has left the Service: endpoints reach the API server in
moments here, and in the manifests' ten seconds elsewhere."""


@dataclass
class Testbed:
    """Everything that a row may harm."""

    plane: ControlPlane
    installed: Installation
    proxy: Proxy
    audit: Audit
    vm_load: VmLoad
    configuration: Path
    """The configuration file of every process."""
    generation: int = 0
    """How many configurations have been rolled out."""
    resting: set[int] = field(default_factory=set)
    """Replicas that a row has taken down, and that are not restarted."""

    @property
    def controllers(self) -> Sequence[Command]:
        return self.installed.controllers[:CONTROLLERS]

    @property
    def replicas(self) -> Sequence[Command]:
        """The admission servers, dead or alive."""
        return self.installed.replicas[:REPLICAS]

    def leader(self) -> Command:
        """Return the controller that leads according to the Lease and its own metrics."""

        def look() -> Command | None:
            return next((one for one in self.controllers if leads(one)), None)

        found = self.installed.ns.eventually(look)
        assert found is not None
        return found

    def revive(self, number: int) -> None:
        """Start a replica again that has ended, and let it be called."""
        command = self.replicas[number]
        command.start()
        self.installed.join(number, installed.port(command))
        self.resting.discard(number)

    def roll_out(self) -> str:
        """Have the replicas serve another configuration, and give the annotation that it adds.

        One after the other leaves the Service, ends, and comes back, as in a rollout.
        """
        self.generation += 1
        annotation = configure(self.configuration, self.generation)
        for number, command in enumerate(self.replicas):
            self.resting.add(number)
            self.installed.join(number, installed.port(command), ready=False)
            time.sleep(PRE_STOP_SECONDS)
            command.terminate()
            self.revive(number)
        self.installed.apply(installed.deployment(f"generation-{self.generation}"))
        return annotation

    def shift_clocks(self, seconds: float) -> None:
        """Set the wall clock of every process this much ahead; of replicas, at most an hour.

        Processes that run see it at once. Replicas may be behind by any time.
        """
        for number in range(CONTROLLERS):
            (self.installed.folder / f"ahead-{number}").write_text(str(seconds))
        for number in range(REPLICAS):
            ahead = self.installed.folder / f"ahead-replica-{number}"
            ahead.write_text(str(min(seconds, REPLICA_AHEAD)))

    def slow_reviews(self, seconds: float) -> None:
        """Let each request of a replica take this much longer."""
        Path(self.installed.environment[SLOW]).write_text(str(seconds))

    def processes(self) -> dict[str, psutil.Process]:
        found = {}
        for kind, commands in (("controller", self.controllers), ("replica", self.replicas)):
            for number, command in enumerate(commands):
                process = psutil.Process(command.pid)
                found[f"{kind}-{number}"] = process
                for child in process.children():
                    found[f"{kind}-{number}-worker"] = child
        return found


def configure(path: Path, generation: int) -> str:
    """Write the configuration of that number, and give the annotation that only it knows."""
    annotation = f"example.com/generation-{generation}"
    require = [{"key": ROLE, "operator": "In", "values": ["edge"]}]
    rules = [
        {"name": "space", "when": {"annotation": "type", "equals": "space"}, "require": require},
        {"name": "new", "when": {"annotation": annotation, "equals": "yes"}, "require": require},
    ]
    placement = {"name": "placement", "args": {"rules": rules}}
    content = {
        "apiVersion": "holdfast.dev/v1beta1",
        "kind": "HoldfastConfiguration",
        "profiles": [{"schedulerName": "*", "pluginConfig": [placement]}],
    }
    path.write_text(json.dumps(content))
    return annotation


def leads(command: Command) -> bool:
    """Ask a controller whether it leads; one that does not answer does not."""
    url = f"http://127.0.0.1:{installed.port(command)}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return "\nholdfast_leader 1.0" in answer.read().decode()
    except OSError:
        return False


@contextmanager
def running_testbed(folder: Path, *, broken: str = "") -> Iterator[Testbed]:
    """Start everything; `broken` names what is broken on purpose (tests.faults.broken)."""
    policy = folder / "audit-policy.yaml"
    policy.write_text(yaml.safe_dump(POLICY))
    plane = ControlPlane(
        nodes=3,
        audit=True,
        stages=[SLOW_PODS],
        node_labels=lambda index: {ROLE: "edge"} if index == 3 else {},
        node_capacity={"cpu": "32", "memory": "256Gi", "pods": PODS_PER_NODE},
        extra_args={
            API_SERVER: [
                *installed.DIALS[API_SERVER],
                f"--audit-policy-file={policy}",
                "--audit-log-maxbackup=1",
                f"--delete-collection-workers={DELETING}",
            ],
            ETCD: ["--quota-backend-bytes=4294967296"],
        },
    )
    with plane, ExitStack() as stack:
        install_kubevirt(plane)
        stack.enter_context(_virt_api(plane))
        proxy = stack.enter_context(Proxy(plane))
        kubeconfig = controller_kubeconfig(plane, folder / "controller.kubeconfig", proxy.url)
        replicas = token_kubeconfig(
            plane, folder / "holdfast.webhook.kube.kubeconfig", "holdfast-webhook", proxy.url
        )
        for process in ("controller", "webhook"):
            plane.kubectl("apply", "-f", str(kubevirt_rights(process)))
        configuration = folder / "holdfast.yaml"
        configure(configuration, 0)
        made = installed.install(plane, kubeconfig, folder, stack)
        made.module = made.server_module = BROKEN
        made.environment = {VARIABLE: broken, SLOW: str(folder / "slow")}
        (folder / "slow").write_text("0")
        for _ in range(REPLICAS):
            made.replica("--config", str(configuration), "--kubeconfig", str(replicas))
        for _ in range(CONTROLLERS):
            made.controller("--config", str(configuration))
        made.ready()
        audit = Audit(plane.audit_log)
        stack.enter_context(audit.followed())
        vm_load = VmLoad(made.ns, stack)
        harmed = Testbed(plane, made, proxy, audit, vm_load, configuration)
        stack.enter_context(_kubelet(harmed))
        vm_load.create()
        yield harmed


@contextmanager
def _virt_api(plane: ControlPlane) -> Iterator[None]:
    """Give virt-api's Service an endpoint: one that is a name is not dialled with the others."""
    name, space = VIRT_API, ("--namespace", "kubevirt")
    configuration = json.loads(
        plane.kubectl("get", "validatingwebhookconfiguration", "virt-api-validator", "-o", "json")
    )
    at = int(configuration["webhooks"][0]["clientConfig"]["service"]["port"])
    with Relay(("127.0.0.1", at)) as relay:
        endpoint = installed.endpoint(0, relay.port)
        endpoint["metadata"] = {"name": name, "labels": {"kubernetes.io/service-name": name}}
        service = installed.service()
        service["metadata"] = {"name": name}
        service["spec"]["ports"] = [{"name": "webhook", "port": at}]
        plane.kubectl(*space, "delete", "service", name)
        plane.kubectl(*space, "apply", "-f", "-", stdin=yaml.safe_dump_all([service, endpoint]))
        yield


@contextmanager
def _kubelet(testbed: Testbed) -> Iterator[None]:
    stop = threading.Event()
    threads = [
        threading.Thread(target=_probe, args=(testbed, number, stop)) for number in range(REPLICAS)
    ]
    threads.append(threading.Thread(target=_restart, args=(testbed.plane, stop)))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _probe(testbed: Testbed, number: int, stop: threading.Event) -> None:
    failures, ready = 0, True
    while not stop.wait(PROBE_SECONDS):
        if number in testbed.resting:
            failures = 0
            continue
        at = testbed.installed.ports[number]
        failures = 0 if _answers(at) else failures + 1
        wanted = failures < PROBE_FAILURES if ready else failures == 0
        if wanted != ready:
            with suppress(ControlPlaneError):
                testbed.installed.join(number, at, ready=wanted)
                ready = wanted


def _answers(at: int) -> bool:
    context = ssl._create_unverified_context()
    url = f"https://127.0.0.1:{at}/readyz"
    try:
        with urllib.request.urlopen(url, context=context, timeout=PROBE_SECONDS) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def _restart(plane: ControlPlane, stop: threading.Event) -> None:
    """Start again what ends when the API server is away; the API server itself is the rows'."""
    while not stop.wait(1.0):
        for name in plane.names:
            process = plane.process(name)
            if name not in {API_SERVER, ETCD} and not process.running:
                with suppress(ControlPlaneError):
                    process.start()
                time.sleep(1.0)
