"""The file layout of one control plane."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below one control plane's folder."""

    directory: Path

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.directory / "pki"

    @property
    def logs(self) -> Path:
        """One log for each component, and the audit log."""
        return self.directory / "logs"

    @property
    def etcd_data(self) -> Path:
        """The data folder of etcd, with the cluster's state."""
        return self.directory / "etcd"

    @property
    def users(self) -> Path:
        """A folder with a kubeconfig for each user."""
        return self.directory / "users"

    @property
    def kubeconfig(self) -> Path:
        """The admin's kubeconfig."""
        return self.directory / "kubeconfig"

    @property
    def scheduler_config(self) -> Path:
        """The configuration of kube-scheduler."""
        return self.directory / "scheduler.yaml"

    @property
    def audit_policy(self) -> Path:
        """The audit policy."""
        return self.directory / "audit-policy.yaml"

    @property
    def audit_log(self) -> Path:
        """The audit log, one JSON object per request, if auditing is on."""
        return self.logs / "audit.log"

    @property
    def volume_plugins(self) -> Path:
        """A folder that the controller manager would otherwise create under /usr/libexec."""
        return self.directory / "volume-plugins"

    def log(self, name: str) -> Path:
        """Return the path of the component's log."""
        return self.logs / f"{name}.log"


def write_private(path: Path, content: bytes) -> None:
    """Write a file with mode 0600; creates its folder with mode 0700 if missing."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
        os.fchmod(descriptor, 0o600)
        file.write(content)
