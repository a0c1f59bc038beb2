"""Set up a process: its pipeline, its plugins and its connection to the cluster."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.webhook.errors import StartError, described
from holdfast.webhook.framework.plugin import Plugin, overrides
from holdfast.webhook.framework.profiles import Profiles
from holdfast.webhook.kube.lookup import ClusterLookup

if TYPE_CHECKING:
    from holdfast.webhook.kube.client import Cluster

_log = logging.getLogger("holdfast.plugins")


def connect(
    kubeconfig: Path | None,
    context: str | None,
    on_answer: Callable[..., None] | None = None,
) -> Cluster:
    """Connect to a cluster. Raises StartError."""
    from holdfast.webhook.kube.client import Cluster  # noqa: PLC0415 - the kubernetes client is slow to import

    return Cluster.connect(kubeconfig, context, on_answer=on_answer)


def start_plugins(profiles: Profiles, lookup: ClusterLookup) -> None:
    """Connect if a plugin may look objects up, and start the plugins in a thread.

    The admission server's worker calls this before its first review. Raises StartError without
    credentials, but not if the API server does not answer.
    """
    blocking = list(dict.fromkeys(one.name for one in profiles.plugins if one.may_block))
    if not blocking:
        return
    try:
        lookup.connect()
    except StartError as exc:
        raise StartError(
            f"{exc}; or disable the plugins that look objects up: "
            f"--disable-plugin {' '.join(blocking)}"
        ) from None
    starting = {one.name: one for one in profiles.plugins if overrides(one, "start")}
    threading.Thread(target=_start, args=(starting,), name="start-plugins", daemon=True).start()


def _start(plugins: Mapping[str, Plugin]) -> None:
    """Start one plugin of each name: it does the same in every profile."""
    for name, plugin in plugins.items():
        try:
            plugin.start()
        except Exception as exc:  # noqa: BLE001 - reviews will show what is wrong
            _log.warning("plugin %s could not start: %s", name, described(exc))
