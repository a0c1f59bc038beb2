"""Run kubectl against a control plane."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.errors import ControlPlaneError

TIMEOUT = 90.0
"""Seconds that an answer may take, unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """A kubectl that shares neither cache nor preferences with the user's own."""

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
        """Run it, and give what it prints.

        Raises ControlPlaneError with what it complains of when it fails (unless `check` is False)
        or takes longer than `timeout` seconds.
        """
        quiet = {"KUBECACHEDIR": str(self.cache), "KUBERC": "off"}
        shown = f"kubectl {' '.join(arguments)}"
        try:
            done = subprocess.run(
                [self.binary, "--kubeconfig", kubeconfig, *arguments],
                input=stdin or "",
                env={**os.environ, **quiet},
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ControlPlaneError(f"{shown}: no answer in {timeout:.0f} s") from error
        if check and done.returncode != 0:
            raise ControlPlaneError(f"{shown}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout
