"""The sets of Go programs that can be built, each from a go.mod."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from controlplane import cache

_HERE = Path(__file__).resolve().parent
_RECIPE = b"2"  # increment when the same inputs must produce a different build


@dataclass(frozen=True, slots=True)
class ModuleSet:
    """A go.mod folder and what to build from it."""

    name: str
    """The prefix of the cache folder's name."""
    folder: Path
    """Contains go.mod and go.sum."""
    packages: Mapping[str, str]
    """Binary name to main package."""
    landmark: str
    """A large module of the set: if Go's module cache has it, it is assumed to have the rest."""
    tags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    cgo: bool = False
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Path of a file alongside `bin`, to its module and its path in that module."""
    sources: tuple[str, ...] = ()
    """The project's Go files below `folder`."""
    printed: Mapping[str, str] = field(default_factory=dict)
    """Path of a file alongside `bin`, to the project's binary that prints it."""

    def alongside(self) -> list[str]:
        """Return the paths of all files alongside `bin`."""
        return [*self.files, *self.printed]

    def flags(self) -> list[str]:
        """Return the flags that `go list` and `go install` share."""
        return [
            "-mod=readonly",
            "-buildvcs=false",
            "-trimpath",
            f"-tags={','.join(self.tags)}",
            f"-ldflags={' '.join(self.ldflags)}",
        ]

    def key(self) -> str:
        """Return the cache folder's name, which changes with every input of the build."""
        parts = [
            _RECIPE,
            (self.folder / "go.mod").read_bytes(),
            (self.folder / "go.sum").read_bytes(),
            *((self.folder / path).read_bytes() for path in self.sources),
            repr((self.flags(), self.cgo)).encode(),
            repr((sorted(self.packages.items()), sorted(self.files.items()))).encode(),
            *(f"{path} {name}".encode() for path, name in sorted(self.printed.items())),
            repr((platform.system(), platform.machine())).encode(),
        ]
        return f"{self.name}-{cache.digest(parts)}"

    def only(self, names: Collection[str]) -> ModuleSet:
        """Return the same set with only the named binaries."""
        return replace(
            self,
            packages={name: package for name, package in self.packages.items() if name in names},
        )


def version_flags(version: str) -> tuple[str, ...]:
    """Return the linker flags that set the version of a Kubernetes program."""
    major, minor, _ = version.split(".")
    base = "k8s.io/component-base/version"
    values = {
        f"{base}.gitVersion": f"v{version}",
        f"{base}.gitMajor": major,
        f"{base}.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": f"v{version}",
    }
    return ("-s", "-w", *(f"-X {name}={value}" for name, value in values.items()))


_KWOK = "sigs.k8s.io/kwok"
_STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
    "pod/fast/pod-ready.yaml",
)

KUBERNETES = ModuleSet(
    name="kubernetes",
    folder=_HERE / "kubernetes",
    packages=MappingProxyType(
        {
            "etcd": "go.etcd.io/etcd/server/v3",
            "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
            "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
            "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
            "kubectl": "k8s.io/kubernetes/cmd/kubectl",
            "kwok": f"{_KWOK}/cmd/kwok",
        }
    ),
    landmark="k8s.io/kubernetes",
    tags=("selinux", "notest"),
    ldflags=version_flags("1.36.3"),
    files=MappingProxyType(
        {f"stages/{Path(path).name}": (_KWOK, f"kustomize/stage/{path}") for path in _STAGES}
    ),
)
"""Kubernetes 1.36.3 with etcd and kwok. Go names etcd's binary `server`."""

KUBEVIRT = ModuleSet(
    name="kubevirt",
    folder=_HERE / "kubevirt",
    packages=MappingProxyType(
        {
            "virt-controller": "kubevirt.io/kubevirt/cmd/virt-controller",
            "virt-api": "kubevirt.io/kubevirt/cmd/virt-api",
            "kubevirt-objects": "kubevirt-tools/objects",
        }
    ),
    landmark="kubevirt.io/kubevirt",
    tags=("selinux", "notest"),
    ldflags=("-s", "-w"),
    sources=("objects/main.go",),
    printed=MappingProxyType({"objects.json": "kubevirt-objects"}),
)
"""KubeVirt 1.8.0's virt-controller and virt-api, and the objects that KubeVirt installs."""


NODE = ModuleSet(
    name="node",
    folder=_HERE / "kubernetes",
    packages=MappingProxyType(
        {
            "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
            "kubelet": "k8s.io/kubernetes/cmd/kubelet",
        }
    ),
    landmark="k8s.io/kubernetes",
    tags=KUBERNETES.tags,
    ldflags=KUBERNETES.ldflags,
)
"""The additional programs of a real node, from the same Kubernetes."""

_CONTAINERD = "github.com/containerd/containerd/v2"
_CNI = "github.com/containernetworking/plugins/plugins"

CONTAINERD = ModuleSet(
    name="containerd",
    folder=_HERE / "containerd",
    packages=MappingProxyType(
        {
            "bridge": f"{_CNI}/main/bridge",
            "containerd": f"{_CONTAINERD}/cmd/containerd",
            "containerd-shim-runc-v2": f"{_CONTAINERD}/cmd/containerd-shim-runc-v2",
            "ctr": f"{_CONTAINERD}/cmd/ctr",
            "host-local": f"{_CNI}/ipam/host-local",
            "loopback": f"{_CNI}/main/loopback",
        }
    ),
    landmark=_CONTAINERD,
    tags=("no_btrfs", "no_devmapper", "no_zfs"),
    ldflags=("-s", "-w"),
)
"""containerd, and the CNI plugins that connect containers."""

RUNC = ModuleSet(
    name="runc",
    folder=_HERE / "runc",
    packages=MappingProxyType({"runc": "github.com/opencontainers/runc"}),
    landmark="github.com/opencontainers/runc",
    tags=("seccomp",),
    ldflags=("-s", "-w"),
    cgo=True,
)
"""runc, which starts a container. It links libseccomp, whose headers must be installed."""

HELM = ModuleSet(
    name="helm",
    folder=_HERE / "helm",
    packages=MappingProxyType({"helm": "helm.sh/helm/v4/cmd/helm"}),
    landmark="helm.sh/helm/v4",
    ldflags=("-s", "-w", "-X helm.sh/helm/v4/internal/version.version=v4.3.1"),
)
"""Helm 4.3.1, which renders and installs the chart."""

KREW = ModuleSet(
    name="krew",
    folder=_HERE / "krew",
    packages=MappingProxyType(
        {"validate-krew-manifest": "sigs.k8s.io/krew/cmd/validate-krew-manifest"}
    ),
    landmark="sigs.k8s.io/krew",
    ldflags=("-s", "-w"),
)
"""Krew 0.4.3's validator of plugin manifests."""

ACTIONLINT = ModuleSet(
    name="actionlint",
    folder=_HERE / "actionlint",
    packages=MappingProxyType({"actionlint": "github.com/rhysd/actionlint/cmd/actionlint"}),
    landmark="github.com/rhysd/actionlint",
    ldflags=("-s", "-w"),
)
"""actionlint 1.7.12, which checks .github/workflows."""

GLUA = ModuleSet(
    name="glua",
    folder=_HERE / "glua",
    packages=MappingProxyType({"glua": "github.com/yuin/gopher-lua/cmd/glua"}),
    landmark="github.com/yuin/gopher-lua",
    ldflags=("-s", "-w"),
)
"""GopherLua 1.1.1, which Argo CD uses for health checks."""

SETS = MappingProxyType(
    {
        each.name: each
        for each in (KUBERNETES, KUBEVIRT, NODE, CONTAINERD, RUNC, HELM, KREW, ACTIONLINT, GLUA)
    }
)
"""All module sets by name."""
