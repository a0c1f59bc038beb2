"""Watch pods: first a list, then each change, as `kubectl get -w` does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial

from holdfast.webhook.kube.api import Api, Query
from holdfast.webhook.kube.reflector import Handlers, Reflector
from holdfast.webhook.model.objects import Pod


def follow_pods(
    api: Api,
    path: str,
    selection: Query,
    *,
    on_list: Callable[[Sequence[Pod]], None],
    on_change: Callable[..., None],
) -> None:
    """Watch pods until Ctrl-C, and call both functions in this thread. Raises ClusterError.

    `on_list` receives all pods, at the start and after an interruption. `on_change` receives each
    created, changed or deleted pod, and `is_deleted`.
    """
    # fail at once if the request is not allowed
    api.request("GET", path, query={**selection, "limit": 1})
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    handlers: Handlers[Pod] = Handlers(
        lambda pods: calls.put(partial(on_list, [*pods])),
        lambda pod: calls.put(partial(on_change, pod, is_deleted=False)),
        lambda pod: calls.put(partial(on_change, pod, is_deleted=True)),
    )
    stop = threading.Event()
    reflector = Reflector(
        api, handlers, Pod, path=path, selection=selection, on_restart=lambda _reason: None
    )
    threading.Thread(target=reflector.run, args=(stop,), name="watch", daemon=True).start()
    try:
        while True:
            calls.get()()
    except KeyboardInterrupt:
        return
    finally:
        stop.set()
