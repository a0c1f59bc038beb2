"""The table of what can be built: one row for each go.mod."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from controlplane import cache

_HERE = Path(__file__).resolve().parent
_RECIPE = b"2"  # raise it when the same inputs are to be built into something else


@dataclass(frozen=True, slots=True)
class ModuleSet:
    """A go.mod folder and what to make of it."""

    name: str
    """Begins the cache folder's name."""
    folder: Path
    """Holds go.mod and go.sum."""
    packages: Mapping[str, str]
    """The binary's name to the main package it is built from."""
    landmark: str
    """A large module of the set: if it is in Go's module cache, the rest is taken to be."""
    tags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    cgo: bool = False
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """A file's path beside `bin` to its module and its path in that module."""

    def flags(self) -> list[str]:
        """Tell the flags that `go list` and `go install` share."""
        return [
            "-mod=readonly",
            "-buildvcs=false",
            "-trimpath",
            f"-tags={','.join(self.tags)}",
            f"-ldflags={' '.join(self.ldflags)}",
        ]

    def key(self) -> str:
        """Tell the cache folder's name: it changes with everything that the build reads."""
        parts = [
            _RECIPE,
            (self.folder / "go.mod").read_bytes(),
            (self.folder / "go.sum").read_bytes(),
            repr((self.flags(), self.cgo)).encode(),
            repr((sorted(self.packages.items()), sorted(self.files.items()))).encode(),
            repr((platform.system(), platform.machine())).encode(),
        ]
        return f"{self.name}-{cache.digest(parts)}"

    def only(self, names: Collection[str]) -> ModuleSet:
        """Give the same set with fewer binaries."""
        return replace(self, packages={n: p for n, p in self.packages.items() if n in names})


def _version_flags(version: str) -> tuple[str, ...]:
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
    ldflags=_version_flags("1.36.3"),
    files=MappingProxyType(
        {f"stages/{Path(path).name}": (_KWOK, f"kustomize/stage/{path}") for path in _STAGES}
    ),
)
"""Kubernetes 1.36.3 with etcd and kwok. `server` is what Go names etcd's binary."""
