"""The components of one control plane as processes: started in order, stopped in reverse."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controlplane import components
from controlplane.errors import ControlPlaneError
from controlplane.guard import Guard
from controlplane.layout import Layout
from controlplane.process import STOP_TIMEOUT, Process

_STOP_ORDER = (
    (components.KWOK, components.SCHEDULER, components.CONTROLLER_MANAGER),
    (components.API_SERVER,),
    (components.ETCD,),
)


class Processes:
    """The processes by name. Each logs to the layout's folder and is registered with the guard."""

    def __init__(self, layout: Layout, guard: Guard) -> None:
        self._layout = layout
        self._guard = guard
        self._members: dict[str, Process] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the processes, in start order."""
        return tuple(self._members)

    def __getitem__(self, name: str) -> Process:
        """Return a process by name. Raises ControlPlaneError if there is none."""
        if name not in self._members:
            raise ControlPlaneError(
                f"no component {name!r} is running; running: {', '.join(self._members) or 'none'}"
            )
        return self._members[name]

    def start(
        self,
        name: str,
        command: Sequence[str],
        is_ready: Callable[[], bool],
        *,
        before_start: Callable[[], None] = lambda: None,
        stop_timeout: float = STOP_TIMEOUT,
    ) -> Process:
        """Start another process without waiting until it is ready, and return it.

        Raises ControlPlaneError if the name is already used.
        """
        if name in self._members:
            raise ControlPlaneError(f"{name} is already part of this control plane")
        process = Process(
            name,
            command,
            log=self._layout.log(name),
            guard=self._guard,
            is_ready=is_ready,
            before_start=before_start,
            stop_timeout=stop_timeout,
        )
        self._members[name] = process
        process.start()
        return process

    def stop(self) -> None:
        """Stop all processes: added components first, etcd last."""
        added = tuple(name for name in self._members if name not in components.NAMES)
        for group in (added, *_STOP_ORDER):
            members = [self._members[name] for name in group if name in self._members]
            alive = [process for process in members if process.running]
            for process in alive:
                process.terminate()
            for process in alive:
                process.stop()
        self._members = {}
