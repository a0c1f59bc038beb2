"""Watch pods: a table updated in place, or in a pipe, a new table at each change."""

import threading
from collections.abc import Callable, Iterable, Sequence

from rich.live import Live
from rich.text import Text

from holdfast.webhook.cli import terminal
from holdfast.webhook.kube.client import Api, Query
from holdfast.webhook.kube.reflector import Reflector
from holdfast.webhook.model import messages
from holdfast.webhook.model.objects import ObjectKey, Pod

TICK_SECONDS = 1.0
"""Interval at which the time left is updated."""

Show = Callable[[Sequence[Pod]], Iterable[terminal.Styled]]


class _WatchedPods:
    def __init__(self) -> None:
        self._pods: dict[ObjectKey, Pod] = {}
        self._lock = threading.Lock()
        self.changed = threading.Event()

    def on_sync(self, pods: Iterable[Pod]) -> None:
        known = {pod.key: pod for pod in pods}
        with self._lock:
            self._pods = known
        self.changed.set()

    def on_update(self, pod: Pod) -> None:
        with self._lock:
            self._pods[pod.key] = pod
        self.changed.set()

    def on_delete(self, pod: Pod) -> None:
        with self._lock:
            self._pods.pop(pod.key, None)
        self.changed.set()

    def now(self) -> Sequence[Pod]:
        with self._lock:
            return [*self._pods.values()]


def follow_pods(api: Api, path: str, selection: Query, show: Show) -> None:
    """Show the pods and their changes until Ctrl-C. Raises ClusterError at startup."""
    # fail at once if the request is not allowed
    api.request("GET", path, query={**selection, "limit": 1})
    pods = _WatchedPods()
    reflector = Reflector(
        api, pods, Pod, path=path, selection=selection, on_restart=lambda _reason: None
    )
    stop = threading.Event()
    thread = threading.Thread(target=reflector.run, args=(stop,), name="watch", daemon=True)
    thread.start()
    try:
        if terminal.console().is_terminal:
            _in_place(pods, show)
        else:
            _in_a_pipe(pods, show)
    except KeyboardInterrupt:
        return
    finally:
        stop.set()


def _in_place(pods: _WatchedPods, show: Show) -> None:
    pods.changed.wait()
    with Live(console=terminal.console(), auto_refresh=False) as live:
        while True:
            live.update(_text(show(pods.now())), refresh=True)
            pods.changed.clear()
            pods.changed.wait(TICK_SECONDS)


def _in_a_pipe(pods: _WatchedPods, show: Show) -> None:
    while True:
        pods.changed.wait()
        pods.changed.clear()
        terminal.write([*show(pods.now()), ("", "")])


def _text(lines: Iterable[terminal.Styled]) -> Text:
    text = Text(no_wrap=True, overflow="crop")
    for line, style in lines:
        text.append(f"{messages.escape(line)}\n", style=style or None)
    text.rstrip()
    return text
