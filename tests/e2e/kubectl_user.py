"""Users of kubectl with their own rights, and the error messages that they get."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec

import yaml

from controlplane.errors import ControlPlaneError
from tests.e2e.namespace import Namespace, Object

Operation = dict[str, Any]

P = ParamSpec("P")


@dataclass(frozen=True)
class KubectlUser:
    ns: Namespace
    kubeconfig: Path

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.ns.plane.kubectl(
            "--namespace", self.ns.namespace, *arguments, stdin=stdin, kubeconfig=self.kubeconfig
        )

    def patch(
        self,
        name: str,
        operations: Sequence[Operation],
        *options: str,
        kind: str = "pod",
        dry_run: bool = True,
    ) -> str:
        """Patch a pod, or an object of another kind; dry runs pass through admission."""
        flags = ["--dry-run=server"] if dry_run else []
        patch = json.dumps(list(operations))
        # An argument is limited to 128 KiB.
        arguments = ["--type=json", "--patch-file=/dev/stdin", *flags, *options]
        return self.kubectl("patch", kind, name, *arguments, stdin=patch)

    def create(self, *objects: Object, dry_run: bool = True) -> str:
        flags = ["--dry-run=server"] if dry_run else []
        return self.kubectl("create", "-f", "-", *flags, stdin=yaml.safe_dump_all(objects))


def refusal(call: Callable[P, object], *arguments: P.args, **more: P.kwargs) -> str:
    """Make a call that may be rejected; return the error message, or an empty string."""
    try:
        call(*arguments, **more)
    except ControlPlaneError as exc:
        return str(exc)
    return ""


def rights_in(table: str) -> list[str]:
    """Parse `kubectl auth can-i --list --no-headers`: a line for each resource, with its verbs.

    The API server joins the verbs of several roles in any order; here they are sorted.
    """
    rights = set()
    for line in filter(str.strip, table.splitlines()):
        resource, _, verbs = " ".join(line.split()).rpartition(" [")
        rights.add(f"{resource} [{' '.join(sorted(verbs.rstrip(']').split()))}]")
    return sorted(rights)
