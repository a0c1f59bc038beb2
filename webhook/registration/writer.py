"""Write the webhook configurations, either completely or only their caBundle."""

import base64
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.webhook import safe_json
from holdfast.webhook.errors import ApiStatusError, ClusterError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import APPLY_PATCH, JSON_PATCH, Api
from holdfast.webhook.kube.patching import FIELD_MANAGER
from holdfast.webhook.registration import drift
from holdfast.webhook.registration.configurations import Configuration
from holdfast.webhook.telemetry.metrics import ControllerMetrics

LARGE = 1 << 18
"""Bytes that a configuration can only reach through `managedFields`."""

_log = logging.getLogger("holdfast.publisher")


@dataclass(eq=False)
class ConfigurationWriter:
    """Writes webhook configurations while this controller is the leader.

    Raises ApiStatusError if the API server rejects a write; `dry_run` returns these errors.
    """

    api: Api
    leading: Callable[[], bool]
    metrics: ControllerMetrics
    _written: dict[str, Configuration] = field(init=False, default_factory=dict)

    def forget(self) -> None:
        """Forget earlier writes: another leader may have changed the configurations."""
        self._written = {}

    def dry_run(
        self, desired: Mapping[str, Configuration], live: Mapping[str, Configuration]
    ) -> list[ClusterError]:
        """Dry-run the writes if both configurations differ, and return the errors.

        Either both configurations are published or neither.
        """
        differing = {
            path: configuration
            for path, configuration in live.items()
            if not self.is_correct(path, configuration, desired[path])
        }
        problems: list[ClusterError] = []
        for path, configuration in differing.items() if len(differing) > 1 else ():
            try:
                self._apply(path, desired[path], configuration, dryRun="All")
            except ApiStatusError as exc:
                problems.append(exc)
        return problems

    def is_correct(self, path: str, live: Configuration, desired: Configuration) -> bool:
        """Return whether a configuration is as desired, or was narrowed by others."""
        # A list of excluded namespaces that is longer than ours may come from our earlier
        # configuration, so it is corrected once. If it is longer again, others write it.
        return drift.holds(live, desired, longer=self._written.get(path) == desired)

    def write(self, path: str, desired: Configuration, live: Configuration) -> bool:
        """Apply a configuration; return True if it was already correct."""
        if self.is_correct(path, live, desired):
            return True
        if not self.leading():
            return False
        response = self._apply(path, desired, live)
        self._written[path] = desired
        self.metrics.registrations.inc()
        _log.info("%s: updated", path)
        # An apply does not remove entries that another field manager also owns.
        applied = listing.decoded(response, path, safe_json.ANY)
        removals = [{"op": "remove", "path": pointer} for pointer in drift.stale(applied, desired)]
        if self._patch(path, applied, removals):
            _log.info("%s: removed outdated webhooks and conditions", path)
        return False

    def _apply(self, path: str, desired: Configuration, live: Configuration, **query: str) -> bytes:
        try:
            return self._send(path, desired, live, query)
        except ApiStatusError as exc:
            if exc.status == 409 or "dryRun" in query or not self._make_room(path, live):
                raise
        return self._send(path, desired, listing.read(self.api, path, Configuration), query)

    def _send(
        self, path: str, desired: Configuration, live: Configuration, query: Mapping[str, str]
    ) -> bytes:
        # a suspended leader must not undo another leader's changes
        version = {"resourceVersion": live["metadata"]["resourceVersion"]}
        return self.api.request(
            "PATCH",
            path,
            # Forced, to restore our fields after others have changed them.
            query={"fieldManager": FIELD_MANAGER, "force": "true", **query},
            body=msgspec.json.encode({**desired, "metadata": {**desired["metadata"], **version}}),
            content_type=APPLY_PATCH,
        )

    def _make_room(self, path: str, live: Configuration) -> bool:
        """Reset `managedFields` if they leave no room in etcd; return False if nothing was reset.

        No policy sees them, so a stolen token can fill them. The API server drops them on other
        writes, but not on an apply.
        """
        if len(self.api.request("GET", path)) < LARGE:
            return False
        _log.warning("%s: removing managedFields, which leave no room", path)
        reset = {"op": "replace", "path": "/metadata/managedFields", "value": [{}]}
        return self._patch(path, live, [reset])

    def replace_bundle(self, path: str, live: Configuration, bundle: bytes) -> None:
        """Update only the caBundle, while the conditions must not be published."""
        encoded = base64.b64encode(bundle).decode()
        changes = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": encoded}
            for index, webhook in enumerate(live.get("webhooks") or ())
            if webhook["name"].endswith(drift.OWN_SUFFIX) and drift.bundle_of(webhook) != bundle
        ]
        if self._patch(path, live, changes):
            _log.info("%s: updated caBundle", path)

    def _patch(self, path: str, live: Configuration, changes: Sequence[Mapping[str, Any]]) -> bool:
        """Patch the version of a configuration that was read; return whether a patch was sent."""
        if not changes or not self.leading():
            return False
        version = live["metadata"]["resourceVersion"]
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
