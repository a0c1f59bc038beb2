"""Following pods: one table that changes in place, or, in a pipe, a new one at each change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from rich.live import Live
from rich.text import Text

from webhook.cluster import Api, Query
from webhook.commands import terminal
from webhook.objects import Names, Pod
from webhook.reflector import Reflector

TICK_SECONDS = 1.0
"""How often the time that is left is written anew."""

Show = Callable[[Sequence[Pod]], Iterable[terminal.Styled]]


class _Pods:
    """The pods as they are now (`webhook.reflector.Follower`)."""

    def __init__(self) -> None:
        self._pods: dict[Names, Pod] = {}
        self._lock = threading.Lock()
        self.changed = threading.Event()

    def replace(self, pods: Iterable[Pod]) -> None:
        known = {pod.key: pod for pod in pods}
        with self._lock:
            self._pods = known
        self.changed.set()

    def update(self, pod: Pod) -> None:
        with self._lock:
            self._pods[pod.key] = pod
        self.changed.set()

    def remove(self, pod: Pod) -> None:
        with self._lock:
            self._pods.pop(pod.key, None)
        self.changed.set()

    def now(self) -> Sequence[Pod]:
        with self._lock:
            return [*self._pods.values()]


def follow_pods(api: Api, path: str, selection: Query, show: Show) -> None:
    """Show the pods and what becomes of them, until Ctrl-C. Raises ClusterError at the start."""
    api.request("GET", path, query={**selection, "limit": 1})  # what cannot work says so at once
    pods = _Pods()
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


def _in_place(pods: _Pods, show: Show) -> None:
    pods.changed.wait()
    with Live(console=terminal.console(), auto_refresh=False) as live:
        while True:
            live.update(_text(show(pods.now())), refresh=True)
            pods.changed.clear()
            pods.changed.wait(TICK_SECONDS)


def _in_a_pipe(pods: _Pods, show: Show) -> None:
    while True:
        pods.changed.wait()
        pods.changed.clear()
        terminal.write([*show(pods.now()), ("", "")])


def _text(lines: Iterable[terminal.Styled]) -> Text:
    text = Text(no_wrap=True, overflow="crop")
    for line, style in lines:
        text.append(f"{terminal.safe(line)}\n", style=style or None)
    text.rstrip()
    return text
