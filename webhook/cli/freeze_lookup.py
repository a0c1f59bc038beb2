"""Lookup of the freezes that affect a command's pods, as far as its user may read namespaces."""

from collections.abc import Callable, Iterator, Mapping

from holdfast.webhook.cli import configured
from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api, boot_time
from holdfast.webhook.model.freezes import NAMESPACES, Freeze, Freezes, read_freezes
from holdfast.webhook.model.objects import ApiObject
from holdfast.webhook.model.paths import api_path

MAX_AGE_SECONDS = 5.0
"""Maximum age of cached freezes: `holdfast list --watch` looks them up every second."""


class FreezeLookup:
    """Looks up the freeze of a namespace, with a cache.

    An empty `namespace` means all namespaces. `own` is Holdfast's namespace, whose freeze applies
    to all namespaces.
    """

    def __init__(self, api: Api, namespace: str, now_ms: Callable[[], int], own: str) -> None:
        self._api = api
        self._namespace = namespace
        self._own = own
        self._now_ms = now_ms
        self._freezes = Freezes()
        self._labels: dict[str, Mapping[str, str]] = {}
        self._read_at = float("-inf")
        self._has_warned = False

    def __call__(self, namespace: str) -> Freeze | None:
        """Return the freeze of the namespace, or None. Raises ClusterError."""
        return self._current().of(namespace, self._now_ms())

    def active(self) -> list[Freeze]:
        """Return the freezes that have not ended. Raises ClusterError."""
        return self._current().active(self._now_ms())

    def labels_of(self, namespace: str) -> Mapping[str, str] | None:
        """Return the labels of a namespace, or None if it was not read. Raises ClusterError."""
        self._current()
        return self._labels.get(namespace)

    def _current(self) -> Freezes:
        if boot_time() - self._read_at >= MAX_AGE_SECONDS:
            self._read_at = boot_time()
            try:
                self._freezes = read_freezes(self._read(), self._own)
            except ApiStatusError as exc:
                if not exc.is_refused:
                    raise
                self._warn(exc)
        return self._freezes

    def _read(self) -> Iterator[ApiObject]:
        if not self._namespace:
            yield from read_all(self._api)
            return
        yield from self._one(self._namespace)
        try:
            yield from self._one(self._own)
        except ApiStatusError as exc:  # few users may read Holdfast's namespace
            if not exc.is_refused:
                raise

    def _one(self, name: str) -> Iterator[ApiObject]:
        namespace = listing.one(self._api, api_path("v1", "namespaces", name=name), ApiObject)
        if namespace is not None:
            self._labels[name] = namespace.labels
            yield namespace

    def _warn(self, exc: ApiStatusError) -> None:
        if not self._has_warned:
            configured.note_refused("namespaces; freezes are not shown", exc)
        self._has_warned = True


def read_all(api: Api) -> Iterator[ApiObject]:
    """Return all namespaces. Raises ClusterError."""
    return listing.objects(api, NAMESPACES, ApiObject)
