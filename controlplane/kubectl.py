"""Run kubectl against a control plane."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.errors import ControlPlaneError

TIMEOUT = 90.0
"""Default timeout of a command, in seconds."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """A kubectl that does not use the user's cache and preferences."""

    binary: Path
    cache: Path

    def run(
        self,
        arguments: Sequence[str],
        *,
        kubeconfig: Path,
        stdin: str | None,
        check: bool,
        timeout: float,
    ) -> str:
        """Run kubectl and return its output.

        Raises ControlPlaneError with kubectl's error if it fails (unless `check` is False), or if
        it takes longer than `timeout` seconds.
        """
        settings = {"KUBECACHEDIR": str(self.cache), "KUBERC": "off"}
        command = f"kubectl {' '.join(arguments)}"
        try:
            result = subprocess.run(
                [self.binary, "--kubeconfig", kubeconfig, *arguments],
                input=stdin or "",
                env={**os.environ, **settings},
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ControlPlaneError(f"{command}: timed out after {timeout:.0f} s") from error
        if check and result.returncode != 0:
            raise ControlPlaneError(f"{command}: {result.stderr.strip() or result.stdout.strip()}")
        return result.stdout
