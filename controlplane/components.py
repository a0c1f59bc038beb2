"""The command of each component, and its configuration file if it has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from controlplane import nodes
from controlplane.layout import Layout
from controlplane.pki import Files

ETCD = "etcd"
API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
KWOK = "kwok"
FRONT_PROXY = "front-proxy-client"
"""Not a component, but a name in a certificate: the API server as client of aggregated ones."""
API_SERVER_CLIENT = "kube-apiserver-kubelet-client"
"""Likewise: the API server as client of kubelets."""
NAMES = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KWOK)
"""In start order; they stop in reverse order."""

ONE_PROCESSOR = ("env", "GOMAXPROCS=1")
"""The prefix of kwok's command, which runs it on one processor.

On several, kwok 0.8.0 can crash with concurrent map writes when it handles its first objects (seen
once in some thousand starts).
"""

LOOPBACK = "127.0.0.1"
SERVICE_RANGE = "10.0.0.0/16"
_POD_RANGE = "10.128.0.0/12"
_LEASE_SECONDS = 40  # the kubelet's default; if much shorter, nodes flap on a busy machine
_CLIENT_QPS = 500  # the default limits suit large shared clusters; tests come in bursts


@dataclass(frozen=True, slots=True)
class Ports:
    """The loopback port of each component."""

    api: int
    etcd: int
    etcd_peer: int
    controller_manager: int
    scheduler: int
    kwok: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The inputs of the commands."""

    bin: Path
    layout: Layout
    ports: Ports
    ca: Files
    etcd_ca: Files
    front_ca: Files
    token_key: Path
    token_public: Path
    pairs: Mapping[str, Files]
    """Each component's certificate and key for serving; etcd's is for clients, too."""
    kubeconfigs: Mapping[str, Path]
    address: str = LOOPBACK
    stages: Sequence[Path] = ()
    audit: bool = False
    durable: bool = False
    extra_args: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def command(self, name: str) -> list[str]:
        """Return the command of a component; the caller's flags come last and override the rest."""
        flags = _FLAGS[name](self)
        prefix = ONE_PROCESSOR if name == KWOK else ()
        return [*prefix, str(self.bin / name), *flags, *self.extra_args.get(name, ())]


def _etcd(plan: Plan) -> list[str]:
    client = f"https://127.0.0.1:{plan.ports.etcd}"
    peer = f"https://127.0.0.1:{plan.ports.etcd_peer}"
    pair, ca = plan.pairs[ETCD], plan.etcd_ca.certificate
    flags = [
        "--name=default",
        f"--data-dir={plan.layout.etcd_data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=warn",
    ]
    for prefix in ("", "peer-"):
        flags += [
            f"--{prefix}cert-file={pair.certificate}",
            f"--{prefix}key-file={pair.key}",
            f"--{prefix}trusted-ca-file={ca}",
            f"--{prefix}client-cert-auth=true",
        ]
    return flags if plan.durable else [*flags, "--unsafe-no-fsync=true"]


def _api_server(plan: Plan) -> list[str]:
    flags = [
        *_serving(plan, API_SERVER, plan.ports.api),
        f"--etcd-servers=https://127.0.0.1:{plan.ports.etcd}",
        f"--etcd-cafile={plan.etcd_ca.certificate}",
        f"--etcd-certfile={plan.pairs[ETCD].certificate}",
        f"--etcd-keyfile={plan.pairs[ETCD].key}",
        f"--client-ca-file={plan.ca.certificate}",
        f"--requestheader-client-ca-file={plan.front_ca.certificate}",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={plan.pairs[FRONT_PROXY].certificate}",
        f"--proxy-client-key-file={plan.pairs[FRONT_PROXY].key}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={plan.token_public}",
        f"--service-account-signing-key-file={plan.token_key}",
    ]
    if plan.address == LOOPBACK:  # a loopback endpoint is rejected, and not needed
        flags += [f"--advertise-address={LOOPBACK}", "--endpoint-reconciler-type=none"]
    else:
        flags += [
            "--bind-address=0.0.0.0",
            f"--advertise-address={plan.address}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={plan.pairs[API_SERVER_CLIENT].certificate}",
            f"--kubelet-client-key={plan.pairs[API_SERVER_CLIENT].key}",
        ]
    if plan.audit:
        flags += [
            f"--audit-policy-file={plan.layout.audit_policy}",
            f"--audit-log-path={plan.layout.audit_log}",
            # MB; the default of 100 rotates the log, and its readers miss earlier entries
            "--audit-log-maxsize=100000",
        ]
    return flags


def _controller_manager(plan: Plan) -> list[str]:
    kubeconfig = plan.kubeconfigs[CONTROLLER_MANAGER]
    return [
        *_serving(plan, CONTROLLER_MANAGER, plan.ports.controller_manager),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--controllers=*",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={plan.token_key}",
        f"--root-ca-file={plan.ca.certificate}",
        f"--cluster-signing-cert-file={plan.ca.certificate}",
        f"--cluster-signing-key-file={plan.ca.key}",
        f"--flex-volume-plugin-dir={plan.layout.volume_plugins}",
        f"--kube-api-qps={_CLIENT_QPS}",
        f"--kube-api-burst={_CLIENT_QPS * 2}",
    ]


def _scheduler(plan: Plan) -> list[str]:
    kubeconfig = plan.kubeconfigs[SCHEDULER]
    return [
        *_serving(plan, SCHEDULER, plan.ports.scheduler),
        f"--config={plan.layout.scheduler_config}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
    ]


def _kwok(plan: Plan) -> list[str]:
    return [
        f"--kubeconfig={plan.kubeconfigs[KWOK]}",
        *(f"--config={stage}" for stage in plan.stages),
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={'='.join(nodes.FAKE)}",
        f"--node-lease-duration-seconds={_LEASE_SECONDS}",
        "--node-ip=127.0.0.1",
        f"--cidr={_POD_RANGE}",
        f"--server-address=127.0.0.1:{plan.ports.kwok}",
    ]


def _serving(plan: Plan, name: str, port: int) -> list[str]:
    return [
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={plan.pairs[name].certificate}",
        f"--tls-private-key-file={plan.pairs[name].key}",
        "--profiling=false",
    ]


_FLAGS = {
    ETCD: _etcd,
    API_SERVER: _api_server,
    CONTROLLER_MANAGER: _controller_manager,
    SCHEDULER: _scheduler,
    KWOK: _kwok,
}


def scheduler_configuration(kubeconfig: Path, profiles: Sequence[str]) -> bytes:
    """Return kube-scheduler's configuration, with the default plugins in each profile."""
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(kubeconfig),
            "qps": _CLIENT_QPS,
            "burst": _CLIENT_QPS * 2,
        },
        "profiles": [{"schedulerName": name} for name in profiles],
    }
    return yaml.safe_dump(content, sort_keys=False).encode()


def audit_policy() -> bytes:
    """Return an audit policy that logs each request and its result, without objects."""
    content = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    }
    return yaml.safe_dump(content, sort_keys=False).encode()
