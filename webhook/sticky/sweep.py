"""The sweep that finds pods with our finalizer that no watch reports."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api
from holdfast.webhook.model.kubevirt import LauncherPod

UNLABELLED = {
    "labelSelector": "kubevirt.io!=virt-launcher",
    "fieldSelector": "status.phase!=Running",
}
"""Selects the pods of the sweep. Selectors cannot match finalizers, but a pod that waits for us has
not started or has ended. Running pods, which are most of a cluster's, are left out."""
SWEEP_SECONDS = 3_600.0
"""Seconds between two sweeps."""
SWEEP_AGAIN_SECONDS = 60.0
"""Seconds until a failed sweep is retried."""

_log = logging.getLogger("holdfast.sticky")


class OrphanSweep:
    """Periodically calls `on_orphan` with each unlabelled pod that has our finalizer."""

    def __init__(
        self,
        api: Api,
        *,
        may_start: Callable[[], bool],
        on_orphan: Callable[[LauncherPod], None],
    ) -> None:
        self._api = api
        self._may_start = may_start
        self._on_orphan = on_orphan

    def run(self, stop: threading.Event) -> None:
        """Sweep until `stop` is set; the first sweep waits for `may_start`."""
        while not stop.wait(0.1) and not self._may_start():
            pass
        while not stop.is_set():
            wait = SWEEP_SECONDS
            try:
                self._sweep()
            except ClusterError as exc:
                wait = SWEEP_AGAIN_SECONDS
                _log.warning(
                    "the sweep for orphaned pods failed: %s; next try in %.0f s", exc, wait
                )
            stop.wait(wait)

    def _sweep(self) -> None:
        for pod in listing.objects(self._api, listing.pods_path(""), LauncherPod, UNLABELLED):
            if pod.has_finalizer:
                self._on_orphan(pod)
