"""The steps of `holdfast uninstall`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.webhook.cli import examination, terminal, uninstall_plan
from holdfast.webhook.cli.uninstall_plan import Remainder
from holdfast.webhook.config import config
from holdfast.webhook.errors import ApiStatusError, CommandError, ConfigurationError
from holdfast.webhook.kube import discovery, listing
from holdfast.webhook.kube.client import JSON_PATCH, Api, pod_path
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.kubevirt import VirtualMachine
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.registration import configurations
from holdfast.webhook.report import table
from holdfast.webhook.runtime import dev

_POLL = 0.5  # seconds
_ATTEMPTS = 5  # for a pod that others keep changing
_MERGE_PATCH = "application/merge-patch+json"
_VMS = f"{kubevirt.API_PATH}/virtualmachines"
_NOT_FOUND, _CHANGED = 404, {409, 422}


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] = {}


class Removal:
    """The steps; each can be repeated, and raises CommandError or ClusterError."""

    def __init__(self, api: Api, namespace: str, timeout: float) -> None:
        self._api = api
        self._namespace = namespace
        self._timeout = timeout

    def is_served_from_elsewhere(self) -> bool:
        """Return whether `holdfast dev` has registered webhooks, which are not removed."""
        paths = configurations.paths(dev.NAME)
        return any(listing.one(self._api, path, msgspec.Raw) is not None for path in paths)

    def stop_asking(self) -> None:
        """Remove the webhook configurations, so that no more pods are held."""
        names = {one["metadata"]["name"] for _, one in examination.registered(self._api)}
        ours = sorted(names - {dev.NAME} | {configurations.NAME})
        paths = [path for name in ours for path in configurations.paths(name)]
        self._delete("the webhook configurations", paths)

    def wait_for_releases(self) -> None:
        """Wait until the controller has released every held pod at its due time."""
        reported = -1
        while gated := self._remainder().gated:
            self._require_controller(
                f"{uninstall_plan.named(gated)} wait for their due time",
                otherwise="uninstall with --release now",
            )
            if reported != len(gated):
                reported = len(gated)
                waiting = table.counted(reported, "held pod")
                self._report(f"waiting for {waiting} ({uninstall_plan.named(gated)})")
            time.sleep(_POLL)

    def record_landings(self, *, purge: bool) -> None:
        """Wait until the controller has recorded the nodes of VM pods."""
        landed = self._remainder().landed
        if not landed or purge:
            return
        if self._is_gone():
            self._report(
                f"the nodes of {uninstall_plan.named(landed)} stay unrecorded: Holdfast is gone"
            )
            return
        self._require_controller(
            f"the nodes of {uninstall_plan.named(landed)} are not recorded",
            otherwise="uninstall with --purge, which removes all recorded nodes",
        )
        self._report(
            f"waiting for the nodes of {table.counted(len(landed), 'VM pod')} to be recorded"
        )
        self._wait_until(
            lambda: not self._remainder().landed,
            "nodes are still not recorded; check the controller's log, or add --purge, which "
            "removes all recorded nodes",
        )

    def stop_controller(self) -> None:
        """Scale the controller to 0 and wait until its pods are gone."""
        path = uninstall_plan.deployment(self._namespace, uninstall_plan.CONTROLLER)
        body = msgspec.json.encode({"spec": {"replicas": 0}})
        try:
            self._api.request("PATCH", path, body=body, content_type=_MERGE_PATCH)
        except ApiStatusError as exc:
            if exc.is_not_found:
                return
            raise
        self._report("stopping the controller")
        pods = listing.pods_path(self._namespace)
        query = {"labelSelector": "app.kubernetes.io/component=controller"}
        self._wait_until(
            lambda: not list(listing.objects(self._api, pods, Pod, query)),
            "the controller has not stopped; check its pods",
        )

    def clear_pods(self) -> None:
        """Remove all our gates and finalizers, and check that none is left."""
        failed: dict[str, str] = {}
        found = self._remainder()
        for pod in {one.metadata.uid: one for one in _all(found)}.values():
            reason = self._clear(pod)
            if reason:
                failed[uninstall_plan.named([pod])] = reason
        self._report(f"cleared {table.counted(len(found.gated), 'held pod')}")
        left = self._remainder()
        if not left.empty:
            count = len(_all(left))
            name, reason = next(
                iter(failed.items()), (uninstall_plan.named(_all(left)), "a new pod")
            )
            raise CommandError(
                f"{table.counted(count, 'pod')} still with gates or finalizers of Holdfast, "
                f"such as {name} ({reason}); run this command again"
            )

    def forget_vms(self) -> None:
        """Remove the recorded nodes of all VMs, from every configured annotation.

        Does nothing without KubeVirt. Raises CommandError if records are left; it can be repeated.
        """
        keys = uninstall_plan.vm_keys(self._configured())
        body = msgspec.json.encode({"metadata": {"annotations": dict.fromkeys(keys)}})
        failed: dict[str, str] = {}
        for vm in self._recorded_vms(keys):
            try:
                path = kubevirt.vm_path(*vm.key)
                self._api.request("PATCH", path, body=body, content_type=_MERGE_PATCH)
            except ApiStatusError as exc:
                if not exc.is_not_found:
                    failed["/".join(vm.key)] = str(exc)
        if failed:
            name, reason = next(iter(failed.items()))
            raise CommandError(
                f"could not remove the recorded node of {table.counted(len(failed), 'VM')}, "
                f"such as {name} ({reason}); run this command again"
            )

    def remove_rest(self) -> None:
        """Remove the policies, the namespace and the RBAC objects."""
        paths = uninstall_plan.rest(self._namespace)
        self._delete("policies, namespace and RBAC objects", paths)
        namespace = f"/api/v1/namespaces/{self._namespace}"
        self._wait_until(
            lambda: listing.one(self._api, namespace, dict) is None,
            f"namespace {self._namespace} still exists; check it with kubectl describe",
        )

    # --- helpers -------------------------------------------------------------------------------

    def _remainder(self) -> Remainder:
        return uninstall_plan.remainder(listing.objects(self._api, listing.pods_path(""), Pod))

    def _configured(self) -> Iterator[config.Configuration]:
        """Read the current and earlier configurations in the namespace."""
        path = uninstall_plan.config_maps(self._namespace)
        for each in listing.objects(self._api, path, _ConfigMap):
            text = each.data.get(uninstall_plan.CONFIGURATION_FILE)
            if text is None:
                continue
            try:
                yield config.parse(text.encode(), uninstall_plan.CONFIGURATION_FILE)
            except ConfigurationError as exc:  # no replica can have used it
                self._report(f"ignoring an invalid configuration: {exc}")

    def _recorded_vms(self, keys: Sequence[str]) -> list[VirtualMachine]:
        try:
            found = list(listing.objects(self._api, _VMS, VirtualMachine))
        except ApiStatusError as exc:
            if exc.status == _NOT_FOUND and not discovery.serves(self._api, "virtualmachines"):
                return []
            raise
        return [vm for vm in found if set(keys) & vm.annotations.keys()]

    def _clear(self, pod: Pod) -> str:
        """Clear a pod, retrying on conflicts; return the error, if any."""
        path = pod_path(pod.metadata.namespace, pod.metadata.name)
        found: Pod | None = pod
        reason = ""
        for _ in range(_ATTEMPTS):
            if found is None or found.metadata.uid != pod.metadata.uid:
                return ""
            body = msgspec.json.encode(uninstall_plan.clearing(found))
            try:
                self._api.request("PATCH", path, body=body, content_type=JSON_PATCH)
            except ApiStatusError as exc:
                reason = str(exc)
                if not exc.is_not_found and exc.status not in _CHANGED:
                    return reason
                found = listing.one(self._api, path, Pod)
                continue
            return ""
        return reason

    def _is_gone(self) -> bool:
        """Return whether Holdfast was removed before, wherever its namespace was."""
        return listing.one(self._api, uninstall_plan.controller_role(), msgspec.Raw) is None

    def _require_controller(self, why: str, *, otherwise: str) -> None:
        path = uninstall_plan.deployment(self._namespace, uninstall_plan.CONTROLLER)
        found: dict[str, Any] = listing.one(self._api, path, dict) or {}
        if not found.get("status", {}).get("availableReplicas"):
            raise CommandError(
                f"{why}, and no controller is running in {self._namespace}; start it "
                f"(kubectl -n {self._namespace} scale deployment {uninstall_plan.CONTROLLER} "
                f"--replicas=1), or {otherwise}"
            )

    def _delete(self, what: str, paths: Iterable[str]) -> None:
        self._report(f"removing {what}")
        for path in paths:
            try:
                self._api.request("DELETE", path)
            except ApiStatusError as exc:
                if not exc.is_not_found:
                    raise

    def _wait_until(self, done: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + self._timeout
        while not done():
            if time.monotonic() > deadline:
                raise CommandError(f"after {self._timeout:.0f} s {otherwise}")
            time.sleep(_POLL)

    @staticmethod
    def _report(text: str) -> None:
        terminal.write([(text, "")], terminal.console(stderr=True))


def _all(found: Remainder) -> list[Pod]:
    return [*found.gated, *found.landed, *found.kept]
