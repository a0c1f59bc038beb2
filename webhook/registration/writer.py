"""Read and write webhook configurations without overwriting changes of others."""

import base64
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.webhook.kube.client import APPLY_PATCH, JSON_PATCH, Api
from holdfast.webhook.kube.patching import FIELD_MANAGER
from holdfast.webhook.registration import drift
from holdfast.webhook.registration.configurations import Configuration
from holdfast.webhook.telemetry.metrics import ControllerMetrics

_log = logging.getLogger("holdfast.publisher")


@dataclass(eq=False)
class ConfigurationWriter:
    """Writes webhook configurations, as long as this controller is the leader."""

    api: Api
    metrics: ControllerMetrics
    leading: Callable[[], bool]

    def __post_init__(self) -> None:
        self._written: dict[str, Configuration] = {}
        """Configurations that this leader has written; another one may change them."""

    def is_correct(self, path: str, found: Configuration, desired: Configuration) -> bool:
        """Return whether a configuration is as desired, or narrower by the choice of others.

        A list of excluded namespaces that is longer than ours may be our own, from an earlier
        configuration: it is corrected once. If it is still longer then, others write it.
        """
        return drift.holds(found, desired, longer=self._written.get(path) == desired)

    def dry_run(self, path: str, desired: Configuration, found: Configuration) -> None:
        """Apply a configuration as a dry run. Raises ClusterError if the API server rejects it."""
        self._apply(path, desired, found, dryRun="All")

    def apply(self, path: str, desired: Configuration, found: Configuration) -> bool:
        """Apply a configuration; True if it was correct already."""
        if self.is_correct(path, found, desired):
            return True
        if not self.leading():
            return False
        applied = self._apply(path, desired, found)
        self._written[path] = desired
        self.metrics.registrations.inc()
        _log.info("%s: updated", path)
        # An apply does not remove entries that another field manager owns, too.
        left = msgspec.json.decode(applied)
        unwanted = [{"op": "remove", "path": at} for at in drift.stale(left, desired)]
        if self._patch(path, left, unwanted):
            _log.info("%s: removed outdated webhooks and conditions", path)
        return False

    def _apply(
        self, path: str, desired: Configuration, found: Configuration, **query: str
    ) -> bytes:
        # a leader that was suspended must not undo another's changes
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        return self.api.request(
            "PATCH",
            path,
            # Forced: our own fields are restored when others have changed them.
            query={"fieldManager": FIELD_MANAGER, "force": "true", **query},
            body=msgspec.json.encode({**desired, "metadata": {**desired["metadata"], **version}}),
            content_type=APPLY_PATCH,
        )

    def replace_bundle(self, path: str, found: Configuration, bundle: bytes) -> None:
        """Update the caBundle only, while the conditions must not be published."""
        encoded = base64.b64encode(bundle).decode()
        changes = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": encoded}
            for index, one in enumerate(found.get("webhooks") or ())
            if one["name"].endswith(drift.OWN_SUFFIX) and drift.bundle_of(one) != bundle
        ]
        if self._patch(path, found, changes):
            _log.info("%s: updated caBundle", path)

    def _patch(self, path: str, found: Configuration, changes: Sequence[Mapping[str, str]]) -> bool:
        """Patch a configuration unless it has changed since it was read; False if nothing to do."""
        if not changes or not self.leading():
            return False
        version = found["metadata"]["resourceVersion"]
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        self.api.request(
            "PATCH",
            path,
            query={"fieldManager": FIELD_MANAGER},
            body=msgspec.json.encode([test, *changes]),
            content_type=JSON_PATCH,
        )
        self.metrics.registrations.inc()
        return True
