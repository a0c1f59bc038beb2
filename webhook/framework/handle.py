"""The handle gives plugins access to lookups, held pods and Events."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from holdfast.webhook.errors import HandleError
from holdfast.webhook.model.annotations import Due
from holdfast.webhook.model.objects import ObjectKey, Pod

Shared = TypeVar("Shared")


class Lookup(Protocol):
    """Reads cluster objects."""

    def get(self, path: str, *, max_age: float = 0.0) -> Mapping[str, Any] | None:
        """Return the object or list at an API path; None if it does not exist.

        A cached response is used if it is less than `max_age` seconds old. Raises ClusterError if
        the API server does not respond, or does not serve the kind.
        """
        ...


class WaitingPods(Protocol):
    """The currently held pods."""

    def __iter__(self) -> Iterator[ObjectKey]:
        """Iterate over the namespaces and names of all held pods."""
        ...

    def get(self, key: ObjectKey) -> Due | None:
        """Return the due time of a pod and the reason it waits, or None if it is not held."""
        ...

    def recheck(self, key: ObjectKey, at_ms: int = 0) -> None:
        """Schedule another `permit` call for a pod, at once or at `at_ms`.

        Call it when the event that the plugin waits for has occurred. Never blocks. Do not hold a
        lock that the plugin also takes in `permit`.
        """
        ...

    def allow(self, key: ObjectKey, plugin: str) -> None:
        """End a plugin's hold permanently; the pod is released once no other plugin holds it.

        Adds the plugin to the pod's annotation `holdfast.dev/allowed`. Raises ClusterError.
        """
        ...


class Follow(Protocol):
    """Lists objects, and watches their changes."""

    def __call__(
        self,
        path: str,
        kind: type[Any],
        handler: Any,
        *,
        label_selector: str = "",
        on_unreadable: Callable[[str], None] | None = None,
    ) -> Callable[[], None]:
        """List and watch the objects at an API path in a thread, and return a function to stop it.

        The handler is a `holdfast.webhook.kube.reflector.ResourceEventHandler`. `on_unreadable` is
        called with the reason each time that the list is forbidden, or the kind is not served.
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
        """Changes whenever this process becomes the leader. Its knowledge of the
        previous leader's work may then be outdated."""
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
        """Set this process's capabilities; called once, at startup."""
        self._lookup, self._waiting, self._record_event = lookup, waiting, record_event
        self._follow, self._bounds_ms = follow, bounds_ms
        self.term = term or self.term

    def share(self, name: str, make: Callable[[], Shared]) -> Shared:
        """Return the object that a plugin's instances share; the first call creates it by `make`.

        Each profile has an instance of the plugin.
        """
        if name not in self._shared:
            self._shared[name] = make()
        shared: Shared = self._shared[name]
        return shared

    @property
    def lookup(self) -> Lookup:
        """Read-only lookups. Raises HandleError if the process has no cluster."""
        if self._lookup is None:
            raise HandleError("lookups are not available: this process has no cluster connection")
        return self._lookup

    @property
    def waiting(self) -> WaitingPods:
        """The currently held pods. Raises HandleError outside the controller."""
        if self._waiting is None:
            raise HandleError("held pods are available in the controller only")
        return self._waiting

    @property
    def follow(self) -> Follow:
        """Function that lists and watches objects. Raises HandleError outside the controller."""
        if self._follow is None:
            raise HandleError("objects can be followed in the controller only")
        return self._follow

    def bounds_ms(self) -> tuple[int, int]:
        """Return the lower and upper bounds of the API server's current time.

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
