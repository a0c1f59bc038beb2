"""The configuration of a real node. Pure: turns paths into file contents and commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

NAME = "real-1"
"""The node's name."""
BRIDGE = "holdfast0"
GATEWAY = "10.64.0.1"
"""The bridge's address, which is the node's; pods reach the API server at it."""
POD_RANGE = "10.64.0.0/16"
PAUSE_IMAGE = "holdfast.test/pause:1"
CONTAINERD = "containerd"
KUBELET = "kubelet"
KUBE_PROXY = "kube-proxy"
NAMES = (CONTAINERD, KUBELET, KUBE_PROXY)
"""In start order."""

_MOST_PODS = 250


@dataclass(frozen=True, slots=True)
class Programs:
    """The folders of the built programs."""

    node: Path
    containerd: Path
    runc: Path


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The inputs of a node's files and commands."""

    programs: Programs
    directory: Path
    """Holds everything that the node writes; a short path, because sockets are in it."""
    cgroup: str
    """The control group that holds all pods."""
    ca: Path
    """The CA certificate for the kubelet's clients, PEM."""
    kubeconfigs: Mapping[str, Path]

    @property
    def socket(self) -> Path:
        """The socket that containerd listens on."""
        return self.directory / "containerd.sock"

    def command(self, name: str) -> list[str]:
        """Return the command of a program."""
        return {
            CONTAINERD: [
                str(self.programs.containerd / CONTAINERD),
                f"--config={self.directory / 'containerd.toml'}",
            ],
            KUBELET: [
                str(self.programs.node / KUBELET),
                f"--config={self.directory / 'kubelet.yaml'}",
                f"--kubeconfig={self.kubeconfigs[KUBELET]}",
                f"--hostname-override={NAME}",
                f"--node-ip={GATEWAY}",  # logs and exec do not work with a loopback address
                f"--root-dir={self.directory / 'kubelet'}",
                f"--cert-dir={self.directory / 'kubelet-pki'}",
            ],
            KUBE_PROXY: [
                str(self.programs.node / KUBE_PROXY),
                f"--config={self.directory / 'kube-proxy.yaml'}",
            ],
        }[name]

    def files(self) -> dict[Path, str]:
        """Return the content of each file that the programs read."""
        return {
            self.directory / "containerd.toml": _containerd(self),
            self.directory / "cni" / "10-bridge.conflist": json.dumps(_cni(self)),
            self.directory / "kubelet.yaml": yaml.safe_dump(_kubelet(self)),
            self.directory / "kube-proxy.yaml": yaml.safe_dump(_kube_proxy(self)),
            self.directory / "resolv.conf": "",
        }


def _containerd(plan: NodePlan) -> str:
    folder, programs = plan.directory, plan.programs
    return f"""\
version = 3
root = "{folder}/containerd"
state = "{folder}/containerd-state"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{plan.socket}"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{programs.containerd}"]
conf_dir = "{folder}/cni"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = "{programs.containerd}/containerd-shim-runc-v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{programs.runc}/runc"
SystemdCgroup = false
"""


def _cni(plan: NodePlan) -> dict[str, Any]:
    ipam = {
        "type": "host-local",
        "dataDir": str(plan.directory / "addresses"),
        "ranges": [[{"subnet": POD_RANGE, "gateway": GATEWAY}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": ipam,
    }
    return {"cniVersion": "1.0.0", "name": "holdfast", "plugins": [bridge]}


def _kubelet(plan: NodePlan) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(plan.ca)},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{plan.cgroup}",
        "containerRuntimeEndpoint": f"unix://{plan.socket}",
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "maxPods": _MOST_PODS,
        "podLogsDir": str(plan.directory / "pod-logs"),
        "resolvConf": str(plan.directory / "resolv.conf"),
        "syncFrequency": "10s",  # limits how late a changed Secret reaches a pod; default 1m
        "volumePluginDir": str(plan.directory / "volume-plugins"),
    }


def _kube_proxy(plan: NodePlan) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(plan.kubeconfigs[KUBE_PROXY])},
        "clusterCIDR": POD_RANGE,
        "conntrack": {"maxPerCore": 0, "min": 0},
        "hostnameOverride": NAME,
        "mode": "iptables",
    }
