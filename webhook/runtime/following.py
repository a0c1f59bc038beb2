"""Watches of the objects that plugins need, in the controller."""

import threading
from collections.abc import Callable
from typing import Any

from holdfast.webhook.kube.api import Api
from holdfast.webhook.kube.reflector import Reflector, ResourceEventHandler
from holdfast.webhook.telemetry.metrics import ControllerMetrics
from holdfast.webhook.threads import ThreadGroup


class Follower:
    """Watches objects, each path in a thread. Implements `framework.handle.Follow`."""

    def __init__(self, api: Api, threads: ThreadGroup, metrics: ControllerMetrics) -> None:
        self._api = api
        self._threads = threads
        self._metrics = metrics

    def __call__(
        self,
        path: str,
        kind: type[Any],
        handler: ResourceEventHandler[Any],
        *,
        label_selector: str = "",
        on_unreadable: Callable[[str], None] | None = None,
    ) -> Callable[[], None]:
        """Watch the objects at an API path; return a function that stops the watch."""
        stop = threading.Event()
        reflector = Reflector(
            self._api,
            handler,
            kind,
            path=path,
            selection={"labelSelector": label_selector} if label_selector else {},
            on_restart=lambda reason: self._metrics.watch_restarts.labels(reason).inc(),
            absent="" if on_unreadable is None else f"{path} is not served",
            on_unreadable=on_unreadable,
        )
        self._threads.start(f"follow {path}", lambda _: reflector.run(stop))
        return stop.set
