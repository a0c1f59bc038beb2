"""`holdfast uninstall`: take Holdfast out of a cluster, in an order that leaves nobody stuck."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click
import msgspec

from webhook import config, dev, discovery, reading, tables, uninstallation, vms
from webhook.cluster import JSON_PATCH, Api, pod_path
from webhook.commands import options, terminal
from webhook.errors import ApiStatusError, CommandError, ConfigurationError
from webhook.objects import Pod
from webhook.registration import path as registration_path
from webhook.uninstallation import Remainder
from webhook.vms import VirtualMachine

_POLL = 0.5  # seconds
_ATTEMPTS = 5  # for one pod that others keep changing
_MERGE_PATCH = "application/merge-patch+json"
_VMS = f"{vms.API_PATH}/virtualmachines"
_NOT_FOUND, _CHANGED = 404, {409, 422}
_STILL_SERVED = (
    "pods are held still: holdfast dev serves this cluster; end it with Ctrl-C, or, where it was "
    "killed: kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration "
    "holdfast-dev"
)
T = TypeVar("T")


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] = {}


EXAMPLES = """\b
Examples:
  holdfast uninstall --release wait    held pods keep their time; then all goes
  holdfast uninstall --release now     held pods are scheduled at once
  holdfast uninstall --release now --purge --yes"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--release",
    type=click.Choice(["now", "wait"]),
    required=True,
    help="Whether pods that are held are let go at once, or wait for their time first.",
)
@click.option(
    "--purge",
    is_flag=True,
    help="Also forget the nodes that VMs come back to, under any annotation that is configured.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--namespace", default="holdfast-system", show_default=True)
@click.option(
    "--timeout",
    type=float,
    default=120.0,
    show_default=True,
    help="Seconds for each step; --release wait waits for held pods as long as they take.",
)
@options.target
def uninstall(
    *, release: str, purge: bool, yes: bool, namespace: str, timeout: float, target: options.Target
) -> None:
    """Take Holdfast out of the cluster, in an order that leaves no pod stuck.

    The webhooks go first, so that nothing new is held; then held pods are released and landings
    recorded while the controller still runs; then it stops, and the rest goes. Where a gate or a
    finalizer could not be cleared, the command ends before anything goes that is needed to do so:
    run it again. VMs keep their node records unless --purge.
    """
    cluster = target.connect()
    if not yes:
        _confirm(cluster.server, can_ask=sys.stdin.isatty())
    removal = Removal(cluster, namespace, timeout)
    removal.stop_asking()
    if release == "wait":
        removal.wait_for_releases()
    removal.record_landings(purge=purge)
    removal.stop_controller()
    removal.clear_pods()
    if purge:
        removal.forget_vms()
    removal.remove_rest()
    terminal.write([("Holdfast is uninstalled", "green")])
    if removal.is_served_from_elsewhere():
        terminal.write([(_STILL_SERVED, "yellow")])


def _confirm(server: str, *, can_ask: bool) -> None:
    if not can_ask:
        raise CommandError("nobody can confirm here; give --yes")
    click.confirm(f"Uninstall Holdfast from {server}?", abort=True)


class Removal:
    """The steps, each of which can be taken again. Each raises CommandError or ClusterError."""

    def __init__(self, api: Api, namespace: str, timeout: float) -> None:
        self._api = api
        self._namespace = namespace
        self._timeout = timeout

    def is_served_from_elsewhere(self) -> bool:
        """Tell whether `holdfast dev` has registered itself: it is none of an installation's."""
        paths = (registration_path(kind, dev.NAME) for kind in ("mutating", "validating"))
        return any(reading.one(self._api, path, msgspec.Raw) is not None for path in paths)

    def stop_asking(self) -> None:
        """Remove the webhook configurations: nothing new is held from here on."""
        self._delete("the webhook configurations", uninstallation.configurations())

    def wait_for_releases(self) -> None:
        """Wait until the controller has released every held pod in its time."""
        told = -1
        while gated := self._remainder().gated:
            self._require_controller(
                f"{uninstallation.named(gated)} wait for their time",
                otherwise="uninstall with --release now",
            )
            if told != len(gated):
                told = len(gated)
                waiting = tables.counted(told, "held pod")
                self._tell(f"waiting for {waiting} ({uninstallation.named(gated)})")
            time.sleep(_POLL)

    def record_landings(self, *, purge: bool) -> None:
        """Wait until the controller has recorded where the pods of VMs have landed."""
        landed = self._remainder().landed
        if not landed or purge:
            return
        self._require_controller(
            f"where {uninstallation.named(landed)} landed is not recorded",
            otherwise="uninstall with --purge, which forgets where all VMs belong",
        )
        self._tell(f"waiting for {tables.counted(len(landed), 'landing')} to be recorded")
        self._until(
            lambda: not self._remainder().landed,
            "landings are not recorded; look at the controller's log, or give --purge, which "
            "forgets where all VMs belong",
        )

    def stop_controller(self) -> None:
        """Scale the controller to 0, and wait until it is gone."""
        path = uninstallation.deployment(self._namespace, uninstallation.CONTROLLER)
        body = msgspec.json.encode({"spec": {"replicas": 0}})
        try:
            self._api.request("PATCH", path, body=body, content_type=_MERGE_PATCH)
        except ApiStatusError as exc:
            if exc.is_not_found:
                return
            raise
        self._tell("stopping the controller")
        pods = reading.pods_path(self._namespace)
        query = {"labelSelector": "app.kubernetes.io/component=controller"}
        self._until(
            lambda: not list(reading.objects(self._api, pods, Pod, query)),
            "the controller does not end; look at its pods",
        )

    def clear_pods(self) -> None:
        """Take every gate and finalizer of ours off, and see that none is left."""
        failed: dict[str, str] = {}
        found = self._remainder()
        for pod in {one.metadata.uid: one for one in _all(found)}.values():
            reason = self._clear(pod)
            if reason:
                failed[uninstallation.named([pod])] = reason
        self._tell(f"cleared {tables.counted(len(found.gated), 'held pod')}")
        left = self._remainder()
        if not left.empty:
            count = len(_all(left))
            name, reason = next(
                iter(failed.items()), (uninstallation.named(_all(left)), "it is new")
            )
            raise CommandError(
                f"gates or finalizers of Holdfast's are left on {tables.counted(count, 'pod')}, "
                f"such as {name} ({reason}); nothing that clears them was removed: run this again"
            )

    def forget_vms(self) -> None:
        """Take the records off all VMs, under every annotation that a configuration names.

        Nothing happens where there is no KubeVirt. Raises CommandError where records are left, with
        all that is needed to run it again.
        """
        keys = uninstallation.vm_keys(self._configured())
        body = msgspec.json.encode({"metadata": {"annotations": dict.fromkeys(keys)}})
        failed: dict[str, str] = {}
        for vm in self._recorded_vms(keys):
            try:
                path = vms.vm_path(*vm.key)
                self._api.request("PATCH", path, body=body, content_type=_MERGE_PATCH)
            except ApiStatusError as exc:
                if not exc.is_not_found:
                    failed["/".join(vm.key)] = str(exc)
        if failed:
            name, reason = next(iter(failed.items()))
            raise CommandError(
                f"the record is left on {tables.counted(len(failed), 'VM')}, such as {name} "
                f"({reason}); policies, rights and the namespace are still there: run this again"
            )

    def remove_rest(self) -> None:
        """Remove policies, the namespace and the rights."""
        paths = uninstallation.rest(self._namespace)
        self._delete("policies, the namespace and the rights", paths)
        namespace = f"/api/v1/namespaces/{self._namespace}"
        self._until(
            lambda: reading.one(self._api, namespace, dict) is None,
            f"the namespace {self._namespace} does not end; kubectl describe it",
        )

    # --- helpers -------------------------------------------------------------------------------

    def _remainder(self) -> Remainder:
        return uninstallation.remainder(reading.objects(self._api, reading.pods_path(""), Pod))

    def _configured(self) -> Iterator[config.Configuration]:
        """Read the configurations in the namespace: the one in use, and those before it."""
        path = uninstallation.config_maps(self._namespace)
        for each in reading.objects(self._api, path, _ConfigMap):
            text = each.data.get(uninstallation.CONFIGURATION_FILE)
            if text is None:
                continue
            try:
                yield config.parse(text.encode(), uninstallation.CONFIGURATION_FILE)
            except ConfigurationError as exc:  # no replica has ever started with it
                self._tell(f"a configuration is left out: {exc}")

    def _recorded_vms(self, keys: Sequence[str]) -> list[VirtualMachine]:
        try:
            found = list(reading.objects(self._api, _VMS, VirtualMachine))
        except ApiStatusError as exc:
            if exc.status == _NOT_FOUND and not discovery.serves(self._api, "virtualmachines"):
                return []
            raise
        return [vm for vm in found if set(keys) & vm.annotations.keys()]

    def _clear(self, pod: Pod) -> str:
        """Clear one pod, again where others change it meanwhile; tell why it could not be."""
        path = pod_path(pod.metadata.namespace, pod.metadata.name)
        found: Pod | None = pod
        reason = ""
        for _ in range(_ATTEMPTS):
            if found is None or found.metadata.uid != pod.metadata.uid:
                return ""
            body = msgspec.json.encode(uninstallation.clearing(found))
            try:
                self._api.request("PATCH", path, body=body, content_type=JSON_PATCH)
            except ApiStatusError as exc:
                reason = str(exc)
                if not exc.is_not_found and exc.status not in _CHANGED:
                    return reason
                found = reading.one(self._api, path, Pod)
                continue
            return ""
        return reason

    def _require_controller(self, why: str, *, otherwise: str) -> None:
        path = uninstallation.deployment(self._namespace, uninstallation.CONTROLLER)
        found: dict[str, Any] = reading.one(self._api, path, dict) or {}
        if not found.get("status", {}).get("availableReplicas"):
            raise CommandError(
                f"{why}, and no controller runs in {self._namespace}; start it "
                f"(kubectl -n {self._namespace} scale deployment {uninstallation.CONTROLLER} "
                f"--replicas=1), or {otherwise}"
            )

    def _delete(self, what: str, paths: Iterable[str]) -> None:
        self._tell(f"removing {what}")
        for path in paths:
            try:
                self._api.request("DELETE", path)
            except ApiStatusError as exc:
                if not exc.is_not_found:
                    raise

    def _until(self, done: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + self._timeout
        while not done():
            if time.monotonic() > deadline:
                raise CommandError(f"after {self._timeout:.0f} s {otherwise}")
            time.sleep(_POLL)

    @staticmethod
    def _tell(text: str) -> None:
        terminal.write([(text, "")], terminal.console(stderr=True))


def _all(found: Remainder) -> list[Pod]:
    return [*found.gated, *found.landed, *found.kept]
