"""The settings of a control plane."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from controlplane import nodes
from controlplane.components import LOOPBACK, NAMES
from controlplane.errors import ControlPlaneError


def _no_labels(_: int) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A control plane's settings, validated on creation."""

    nodes: int = 3
    """Number of kwok nodes, named node-1, node-2 and so on."""
    address: str = LOOPBACK
    """The API server's address for clients other than local processes, such as a node's pods."""
    audit: bool = False
    """Whether the API server writes an audit log (level Metadata)."""
    port: int | None = None
    """The API server's port; None chooses a free one."""
    durable: bool = False
    """Whether etcd syncs to disk; if not, a crash of the machine loses the cluster."""
    node_labels: Callable[[int], Mapping[str, str]] = _no_labels
    """Returns additional labels for the node with that index, from 1."""
    node_capacity: Mapping[str, str] = field(default_factory=lambda: nodes.CAPACITY)
    """Capacity and allocatable of each node."""
    scheduler_profiles: Sequence[str] = ("default-scheduler",)
    """The names of kube-scheduler's profiles, each with the default plugins."""
    stages: Sequence[Path] = ()
    """Additional kwok Stage files."""
    extra_args: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Additional flags by component name; they override the launcher's."""

    def __post_init__(self) -> None:
        if self.nodes < 0:
            raise ControlPlaneError(f"nodes is {self.nodes}; it must be 0 or more")
        unknown = sorted(self.extra_args.keys() - set(NAMES))
        if unknown:
            raise ControlPlaneError(
                f"extra_args names {unknown[0]!r}, which is not a component; components are "
                f"{', '.join(NAMES)}"
            )
