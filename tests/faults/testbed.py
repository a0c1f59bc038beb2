"""The cluster that all rows run on: the real control plane, KubeVirt, and an installed Holdfast.

Two admission servers run behind the real Service, and two controllers elect a leader. All of them
use their own service accounts, and reach the API server through a proxy. The testbed does the work
of a kubelet: a replica that is not ready leaves the Service, and components that end are restarted.
"""

import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
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
from tests.support.background import in_background

BROKEN = "tests.faults.broken"
REPLICAS = CONTROLLERS = 2
PROBE_SECONDS, PROBE_FAILURES = 2.0, 2
"""The interval of readiness probes, and the failure threshold, as in the manifests."""
DELETING = 8
"""Parallel deletions in a collection: sequential ones do not keep up with the load, and the nodes
fill up."""
PODS_PER_NODE = "20000"
"""More pods than accumulate on one node while an overloaded kwok is slow to mark them as running:
at most half of the 22,000 pods of the largest row except the soak."""
REPLICA_AHEAD = 3_600.0
"""Most seconds by which a replica's clock is ahead: its certificate expires weeks later."""
PRE_STOP_SECONDS = 3.0
"""How long a replica still serves after it has left the Service. Endpoint changes reach the API
server quickly here; the manifests allow ten seconds for them."""


@dataclass
class Testbed:
    """Everything that a row can inject faults into."""

    plane: ControlPlane
    installed: Installation
    proxy: Proxy
    audit: Audit
    vm_load: VmLoad
    configuration: Path
    """The configuration file of every process."""
    generation: int = 0
    """The number of configurations that have been rolled out."""
    taken_down: set[int] = field(default_factory=set)
    """Replicas that a row has taken down, which are not probed."""

    @property
    def controllers(self) -> Sequence[Command]:
        return self.installed.controllers[:CONTROLLERS]

    @property
    def replicas(self) -> Sequence[Command]:
        """The admission servers, whether they run or not."""
        return self.installed.replicas[:REPLICAS]

    def leader(self) -> Command:
        """Wait for a controller that is the leader by its own metrics, and return it."""
        leader = self.installed.ns.eventually(
            lambda: next(filter(is_leader, self.controllers), None)
        )
        assert leader is not None
        return leader

    def restart(self, number: int) -> None:
        """Start a replica that has ended, and add it to the Service again."""
        command = self.replicas[number]
        command.start()
        self.installed.join(number, installed.port(command))
        self.taken_down.discard(number)

    def roll_out(self) -> str:
        """Roll out a new configuration to the replicas, and return the annotation that it adds.

        One replica after another leaves the Service, stops, and starts again.
        """
        self.generation += 1
        annotation = configure(self.configuration, self.generation)
        for number, command in enumerate(self.replicas):
            self.taken_down.add(number)
            self.installed.join(number, installed.port(command), ready=False)
            time.sleep(PRE_STOP_SECONDS)
            command.terminate()
            self.restart(number)
        self.installed.apply(installed.deployment(f"generation-{self.generation}"))
        return annotation

    def shift_clocks(self, seconds: float) -> None:
        """Set the wall clock of every process ahead; that of replicas by at most an hour.

        Running processes see it at once. Negative seconds set all clocks back.
        """
        for number in range(CONTROLLERS):
            (self.installed.folder / f"ahead-{number}").write_text(str(seconds))
        for number in range(REPLICAS):
            path = self.installed.folder / f"ahead-replica-{number}"
            path.write_text(str(min(seconds, REPLICA_AHEAD)))

    def slow_reviews(self, seconds: float) -> None:
        """Delay each request to the replicas by this many seconds."""
        Path(self.installed.environment[SLOW]).write_text(str(seconds))

    def processes(self) -> dict[str, psutil.Process]:
        """Return the processes of Holdfast by name, such as `replica-0-worker`."""
        processes = {}
        for kind, commands in (("controller", self.controllers), ("replica", self.replicas)):
            for number, command in enumerate(commands):
                process = psutil.Process(command.pid)
                processes[f"{kind}-{number}"] = process
                for child in process.children():
                    processes[f"{kind}-{number}-worker"] = child
        return processes


def configure(path: Path, generation: int) -> str:
    """Write the configuration of that generation, and return the annotation that only it has."""
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


def is_leader(command: Command) -> bool:
    """Return whether a controller reports that it is the leader; False if it does not respond."""
    url = f"http://127.0.0.1:{installed.port(command)}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return "\nholdfast_leader 1.0" in response.read().decode()
    except OSError:
        return False


@contextmanager
def running_testbed(folder: Path, *, broken: str = "") -> Iterator[Testbed]:
    """Start everything; `broken` names a break in `tests.faults.broken`."""
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
        installation = installed.install(plane, kubeconfig, folder, stack)
        installation.module = installation.server_module = BROKEN
        installation.environment = {VARIABLE: broken, SLOW: str(folder / "slow")}
        (folder / "slow").write_text("0")
        for _ in range(REPLICAS):
            installation.replica("--config", str(configuration), "--kubeconfig", str(replicas))
        for _ in range(CONTROLLERS):
            installation.controller("--config", str(configuration))
        installation.ready()
        audit = Audit(plane.audit_log)
        stack.enter_context(audit.followed())
        vm_load = VmLoad(installation.ns, stack)
        testbed = Testbed(plane, installation, proxy, audit, vm_load, configuration)
        probes = (partial(_probe, testbed, number) for number in range(REPLICAS))
        stack.enter_context(in_background(*probes, partial(_restart_components, plane)))
        vm_load.create()
        yield testbed


@contextmanager
def _virt_api(plane: ControlPlane) -> Iterator[None]:
    """Give virt-api's Service an endpoint: endpoint routing does not dial external names."""
    name, options = VIRT_API, ("--namespace", "kubevirt")
    configuration = json.loads(
        plane.kubectl("get", "validatingwebhookconfiguration", "virt-api-validator", "-o", "json")
    )
    port = int(configuration["webhooks"][0]["clientConfig"]["service"]["port"])
    with Relay(("127.0.0.1", port)) as relay:
        endpoint = installed.endpoint(0, relay.port)
        endpoint["metadata"] = {"name": name, "labels": {"kubernetes.io/service-name": name}}
        service = installed.service()
        service["metadata"] = {"name": name}
        service["spec"]["ports"] = [{"name": "webhook", "port": port}]
        plane.kubectl(*options, "delete", "service", name)
        plane.kubectl(*options, "apply", "-f", "-", stdin=yaml.safe_dump_all([service, endpoint]))
        yield


def _probe(testbed: Testbed, number: int, stop: threading.Event) -> None:
    failures, ready = 0, True
    while not stop.wait(PROBE_SECONDS):
        if number in testbed.taken_down:
            failures = 0
            continue
        port = testbed.installed.ports[number]
        failures = 0 if _is_ready(port) else failures + 1
        healthy = failures < PROBE_FAILURES if ready else failures == 0
        if healthy != ready:
            with suppress(ControlPlaneError):
                testbed.installed.join(number, port, ready=healthy)
                ready = healthy


def _is_ready(port: int) -> bool:
    context = ssl._create_unverified_context()
    url = f"https://127.0.0.1:{port}/readyz"
    try:
        with urllib.request.urlopen(url, context=context, timeout=PROBE_SECONDS) as response:
            return int(response.status) == 200
    except OSError:
        return False


def _restart_components(plane: ControlPlane, stop: threading.Event) -> None:
    """Restart components that end during an outage; rows restart the API server and etcd."""
    while not stop.wait(1.0):
        for name in plane.names:
            process = plane.process(name)
            if name not in {API_SERVER, ETCD} and not process.running:
                with suppress(ControlPlaneError):
                    process.start()
                time.sleep(1.0)
