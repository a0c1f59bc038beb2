"""Cluster connections of commands: impersonation, timeouts, request logs and dry runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from holdfast.webhook import safe_json
from holdfast.webhook.errors import HoldfastError
from holdfast.webhook.kube.api import MERGE_PATCH, OnEnd
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.model import messages

if TYPE_CHECKING:
    from holdfast.webhook.cli.options import Target

DryRun = Literal["none", "client", "server"]

_LOGS_REQUESTS = 6
"""The -v level from which requests are logged, as in kubectl."""
_WRITES = frozenset({"PATCH", "PUT", "DELETE"})


@dataclass(frozen=True, slots=True)
class Conduct:
    """Timeout in seconds, verbosity and dry-run mode of a command's requests."""

    timeout: float | None = None
    verbosity: int = 0
    dry_run: DryRun = "none"


class CommandCluster(Cluster):
    """A connection that applies a command's flags to its requests."""

    conduct = Conduct()

    def request(self, method: str, path: str, **options: Any) -> bytes:
        """Send a request; in a dry run, nothing is stored."""
        if method in _WRITES and self.conduct.dry_run == "client":
            is_merge = options.get("content_type") == MERGE_PATCH
            return merged(self.request("GET", path), options["body"] if is_merge else None)
        if method in _WRITES and self.conduct.dry_run == "server":
            options["query"] = {**(options.get("query") or {}), "dryRun": "All"}
        if self.conduct.timeout:
            options["timeout"] = self.conduct.timeout
        started_at, outcome = time.monotonic(), "OK"
        try:
            return super().request(method, path, **options)
        except HoldfastError as exc:
            outcome = str(exc)
            raise
        finally:
            if self.conduct.verbosity >= _LOGS_REQUESTS:
                elapsed_ms = (time.monotonic() - started_at) * 1_000
                url = self._url(path, options.get("query"))
                line = messages.escape(f"{method} {url}: {outcome}")
                click.echo(f"{line} in {elapsed_ms:.0f} ms", err=True)

    def begin(self, path: str, body: bytes, *, timeout: float, on_end: OnEnd) -> bool:
        """Send a patch without waiting; return False if a flag requires `request` instead."""
        conduct = self.conduct
        is_shown = conduct.verbosity >= _LOGS_REQUESTS
        if is_shown or conduct.timeout or conduct.dry_run != "none":
            return False
        return super().begin(path, body, timeout=timeout, on_end=on_end)


def merged(original: bytes, change: bytes | None) -> bytes:
    """Return an object with a merge patch applied to its annotations, without storing it."""
    if change is None:
        return original
    document: dict[str, Any] = safe_json.decode(safe_json.ANY, original)
    patch: Mapping[str, Any] = msgspec.json.decode(change)
    annotations = patch.get("metadata", {}).get("annotations", {})
    combined = {**document["metadata"].get("annotations", {}), **annotations}
    document["metadata"]["annotations"] = {
        key: value for key, value in combined.items() if value is not None
    }
    return msgspec.json.encode(document)


def connect(target: Target, observe: Any) -> CommandCluster:
    """Return a connection with the flags applied. Raises StartError."""
    cluster = CommandCluster.connect(
        target.kubeconfig, target.context, on_answer=observe, overrides=target.overrides
    )
    cluster.conduct = target.conduct
    cluster.impersonation = target.impersonation or cluster.impersonation
    cluster.namespace = target.namespace or cluster.namespace
    context = click.get_current_context(silent=True)
    if context is not None:
        context.call_on_close(cluster.close)
    return cluster
