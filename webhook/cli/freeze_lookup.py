"""The freezes that concern the pods of a command, as far as its user may read namespaces."""

from collections.abc import Callable, Iterator, Mapping

from holdfast.webhook.cli import configured
from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api, boot_time
from holdfast.webhook.model.freezes import NAMESPACES, Freeze, Freezes, read_freezes
from holdfast.webhook.model.objects import ApiObject
from holdfast.webhook.model.paths import api_path

MAX_AGE_SECONDS = 5.0
"""How long a reading is used: `holdfast list --watch` asks every second."""


class FreezeLookup:
    """Returns the freeze of a namespace, or None; `namespace` is empty for all.

    `own` is Holdfast's namespace: its freeze is one of all.
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
        """Look it up. Raises ClusterError."""
        return self._current().of(namespace, self._now_ms())

    def active(self) -> list[Freeze]:
        """List the freezes that have not ended. Raises ClusterError."""
        return self._current().active(self._now_ms())

    def labels_of(self, namespace: str) -> Mapping[str, str] | None:
        """Return the labels of a namespace; None if it may not be read. Raises ClusterError."""
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
        found = listing.one(self._api, api_path("v1", "namespaces", name=name), ApiObject)
        if found is not None:
            self._labels[name] = found.labels
            yield found

    def _warn(self, exc: ApiStatusError) -> None:
        if not self._has_warned:
            configured.note_refused("namespaces; freezes are not shown", exc)
        self._has_warned = True


def read_all(api: Api) -> Iterator[ApiObject]:
    """Read all namespaces. Raises ClusterError."""
    return listing.objects(api, NAMESPACES, ApiObject)
