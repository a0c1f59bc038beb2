"""The handle gives plugins access to lookups, held pods and Events."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from holdfast.webhook.errors import HandleError
from holdfast.webhook.model.annotations import Due
from holdfast.webhook.model.objects import ObjectKey, Pod

Shared = TypeVar("Shared")


class Lookup(Protocol):
    """Reads objects of the cluster."""

    def get(self, path: str, *, max_age: float = 0.0) -> Mapping[str, Any] | None:
        """Read the object or list at an API path; None if it does not exist.

        An earlier answer to such a call is used if it is not older than `max_age` seconds.
        Raises ClusterError if the API server does not answer, or does not serve the kind.
        """
        ...


class WaitingPods(Protocol):
    """The pods that are held now."""

    def __iter__(self) -> Iterator[ObjectKey]:
        """Iterate over their namespaces and names."""
        ...

    def get(self, key: ObjectKey) -> Due | None:
        """Return when a pod is due and what it waits for, or None if it is not held."""
        ...

    def recheck(self, key: ObjectKey, at_ms: int = 0) -> None:
        """Have `permit` called again, now or at a time: what the plugin waits for has happened.

        Never blocks. Do not call it with a lock that the plugin also takes in `permit`.
        """
        ...

    def allow(self, key: ObjectKey, plugin: str) -> None:
        """End a plugin's hold permanently; the pod is released once no other plugin holds it.

        Written to the pod, in the annotation `holdfast.dev/allowed`. Raises ClusterError.
        """
        ...


class Follow(Protocol):
    """Follows objects: lists them, and watches their changes."""

    def __call__(
        self,
        path: str,
        kind: type[Any],
        handler: Any,
        *,
        label_selector: str = "",
        on_unreadable: Callable[[str], None] | None = None,
    ) -> Callable[[], None]:
        """Follow the objects of a kind at an API path, in a thread; return how to stop that.

        The handler is a `holdfast.webhook.kube.reflector.ResourceEventHandler`. `on_unreadable`
        gets the reason each time that the objects may not be listed, or the kind is not served.
        """
        ...


class RecordEvent(Protocol):
    """Records an Event about a pod."""

    def __call__(self, pod: Pod, reason: str, note: str, *, warning: bool = False) -> None:
        """Queue the Event. Never blocks, never raises."""
        ...


class Handle:
    """Gives a plugin access to the cluster; passed to its constructor.

    The admission server provides `lookup`; the controller also provides `waiting` and
    `record_event`. All of them are connected after the plugins are constructed, so use them in
    methods only.
    """

    def __init__(self) -> None:
        self._shared: dict[str, Any] = {}
        self.term: Callable[[], int] = lambda: 0
        """Changes whenever this process begins to lead: what it knows of the work of the leader
        before may be outdated."""
        self.connect()

    def connect(
        self,
        *,
        lookup: Lookup | None = None,
        waiting: WaitingPods | None = None,
        record_event: RecordEvent | None = None,
        follow: Follow | None = None,
        bounds_ms: Callable[[], tuple[int, int]] | None = None,
        term: Callable[[], int] | None = None,
    ) -> None:
        """Connect what the process provides; called once, at startup."""
        self._lookup, self._waiting, self._record_event = lookup, waiting, record_event
        self._follow, self._bounds_ms = follow, bounds_ms
        self.term = term or self.term

    def share(self, name: str, make: Callable[[], Shared]) -> Shared:
        """Return what the instances of a plugin share: one is made for each profile."""
        if name not in self._shared:
            self._shared[name] = make()
        found: Shared = self._shared[name]
        return found

    @property
    def lookup(self) -> Lookup:
        """Read-only lookups. Raises HandleError if the process has no cluster."""
        if self._lookup is None:
            raise HandleError("lookups are not available: this process has no cluster connection")
        return self._lookup

    @property
    def waiting(self) -> WaitingPods:
        """The pods that are held now. Raises HandleError outside the controller."""
        if self._waiting is None:
            raise HandleError("held pods are available in the controller only")
        return self._waiting

    @property
    def follow(self) -> Follow:
        """Follow objects. Raises HandleError outside the controller."""
        if self._follow is None:
            raise HandleError("objects can be followed in the controller only")
        return self._follow

    def bounds_ms(self) -> tuple[int, int]:
        """Return the earliest and the latest time that it may be at the API server.

        In milliseconds since 1970; 0 and `NEVER_MS` while unknown. Raises HandleError outside the
        controller.
        """
        if self._bounds_ms is None:
            raise HandleError("the API server's time is known in the controller only")
        return self._bounds_ms()

    @property
    def record_event(self) -> RecordEvent:
        """The Event recorder. Raises HandleError outside the controller."""
        if self._record_event is None:
            raise HandleError("Events can be recorded in the controller only")
        return self._record_event
