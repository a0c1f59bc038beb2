"""Follow pods: first a list, then each change, as `kubectl get -w` does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Sequence
from typing import Protocol

from holdfast.webhook.kube.client import Api, Query
from holdfast.webhook.kube.reflector import Reflector
from holdfast.webhook.model.objects import Pod


class PodObserver(Protocol):
    """Is called for what happens to pods, in one thread."""

    def on_list(self, pods: Sequence[Pod]) -> None:
        """Take all pods, at the start and after an interruption."""
        ...

    def on_change(self, pod: Pod, *, is_deleted: bool) -> None:
        """Take a pod that was created, changed or deleted."""
        ...


class _Events:
    """Passes what a reflector sees to another thread; the second item is None for a list."""

    def __init__(self) -> None:
        self.seen: queue.SimpleQueue[tuple[Sequence[Pod], bool | None]] = queue.SimpleQueue()

    def on_sync(self, pods: Iterable[Pod]) -> None:
        self.seen.put(([*pods], None))

    def on_update(self, pod: Pod) -> None:
        self.seen.put(([pod], False))

    def on_delete(self, pod: Pod) -> None:
        self.seen.put(([pod], True))


def follow_pods(api: Api, path: str, selection: Query, observer: PodObserver) -> None:
    """Follow pods until Ctrl-C. Raises ClusterError at startup."""
    # fail at once if the request is not allowed
    api.request("GET", path, query={**selection, "limit": 1})
    events, stop = _Events(), threading.Event()
    reflector = Reflector(
        api, events, Pod, path=path, selection=selection, on_restart=lambda _reason: None
    )
    threading.Thread(target=reflector.run, args=(stop,), name="watch", daemon=True).start()
    try:
        while True:
            pods, is_deleted = events.seen.get()
            if is_deleted is None:
                observer.on_list(pods)
            else:
                observer.on_change(pods[0], is_deleted=is_deleted)
    except KeyboardInterrupt:
        return
    finally:
        stop.set()
