"""`holdfast uninstall`: remove Holdfast from a cluster without leaving pods stuck.

Without its server, a webhook configuration causes rejections; without its controller, a gate or
finalizer blocks a pod forever. So the configurations are removed first, then gates and finalizers,
and the permissions to do so last.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import click
import msgspec

from holdfast.webhook.cli import commands, options, rights, terminal, webhook_checks
from holdfast.webhook.config import config
from holdfast.webhook.controller.pending import with_due
from holdfast.webhook.controller.releaser import release_patch
from holdfast.webhook.errors import ApiStatusError, CommandError, ConfigurationError
from holdfast.webhook.kube import discovery, listing, patching
from holdfast.webhook.kube.client import JSON_PATCH, Api, pod_path
from holdfast.webhook.kube.leader_election import LEASE
from holdfast.webhook.model import approvals, kubevirt
from holdfast.webhook.model.annotations import OWN_PREFIX, Due
from holdfast.webhook.model.edits import Operation
from holdfast.webhook.model.kubevirt import VirtualMachine
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.after.targets import AFTER
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.registration import configurations
from holdfast.webhook.registration.secrets import CA_SECRET, LEAF_SECRET
from holdfast.webhook.report import installation, table
from holdfast.webhook.report.installation import Runs
from holdfast.webhook.runtime import dev

_CONTROLLER, _WEBHOOK = "holdfast-controller", "holdfast-webhook"
_CONFIGURATION_FILE = "holdfast.yaml"  # in its ConfigMap
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_ENDLESS = {approvals.GATE, AFTER}
"""Gates of pods without a due time."""
_POLL = 0.5  # seconds
_ATTEMPTS = 5  # for a pod that others keep changing
_MERGE_PATCH = "application/merge-patch+json"
_VMS = f"{kubevirt.API_PATH}/virtualmachines"
_NOT_FOUND, _CHANGED = 404, {409, 422}


_STILL_SERVED = (
    "holdfast dev still holds pods in this cluster; stop it with Ctrl-C, or, if it was killed, run "
    "kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration holdfast-dev"
)

EXAMPLES = """\b
Examples:
  holdfast uninstall --release wait    wait until held pods are due
  holdfast uninstall --release now     release held pods immediately
  holdfast uninstall --release now --purge --yes"""


@commands.command(epilog=EXAMPLES)
@click.option(
    "--release",
    type=click.Choice(["now", "wait"]),
    required=True,
    help="Release held pods immediately (now), or wait until they are due (wait).",
)
@click.option(
    "--purge",
    is_flag=True,
    help="Also remove the recorded nodes of VMs, from every configured annotation.",
)
@click.option(
    "--prepare",
    is_flag=True,
    help="Leave the policies, the namespace and permissions to the tool that installed them.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@options.own_namespace
@options.option(
    "--timeout",
    type=commands.DURATION,
    default="2m",
    help="How long each step may take. Waiting for held pods to become due is not limited.",
)
@options.dry_run
@options.target
def uninstall(
    *,
    release: str,
    purge: bool,
    prepare: bool,
    yes: bool,
    own: str,
    timeout: int,
    target: options.Target,
) -> None:
    """Remove Holdfast from the cluster without leaving pods stuck.

    First the webhooks are removed, so that no more pods are held. While the controller still runs,
    held pods are released and VM nodes recorded. Then the controller stops and everything else is
    removed. If a gate or finalizer cannot be removed, the command stops before it removes anything
    needed for that: run it again. VMs keep their recorded nodes unless you give --purge.

    Where Holdfast is gone already, --release now frees the pods that still have its gates and
    finalizers, for example after a restore.
    """
    clock = listing.Time()
    cluster = target.connect(clock.observe)
    if not yes and not target.suffix:
        question = f"Uninstall Holdfast from {cluster.server}?"
        terminal.confirm(question, can_ask=sys.stdin.isatty())
    removal = Removal(cluster, own, timeout / 1_000, target.suffix, clock.now_ms)
    removal.stop_asking()
    if release == "wait":
        removal.wait_for_releases()
    removal.record_landings(purge=purge)
    removal.stop_controller()
    removal.clear_pods(waited=release == "wait")
    if purge:
        removal.forget_vms()
    if prepare:
        removal.remove_made()
        terminal.write([(f"Holdfast can be removed{target.suffix}", "green")])
        return
    removal.remove_rest()
    result = "Holdfast is uninstalled" if removal.done else f"nothing was installed in {own}"
    terminal.write([(f"{result}{target.suffix}", "green")])
    if removal.is_served_from_elsewhere():
        terminal.write([(_STILL_SERVED, "yellow")])


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Removal:
    """The steps; each can be repeated, and raises CommandError or ClusterError.

    In a dry run, nothing is waited for.
    """

    api: Api
    namespace: str
    timeout: float
    suffix: str = ""
    """The end of each report of a dry run; empty otherwise."""
    now_ms: Callable[[], int] = lambda: 0
    done: list[str] = field(default_factory=list)
    """The changes so far; a dry run reports each."""

    def is_served_from_elsewhere(self) -> bool:
        """Return whether `holdfast dev` has registered webhooks, which are not removed."""
        paths = configurations.paths(dev.NAME)
        return any(listing.one(self.api, path, msgspec.Raw) is not None for path in paths)

    def stop_asking(self) -> None:
        """Remove the webhook configurations, so that no more pods are held."""
        names = {one["metadata"]["name"] for _, one in webhook_checks.registered(self.api)}
        ours = sorted(names - {dev.NAME} | {configurations.NAME})
        paths = [path for name in ours for path in configurations.paths(name)]
        self._delete("the webhook configurations", paths)

    def wait_for_releases(self) -> None:
        """Wait until the controller has released every held pod at its due time."""
        reported = ""
        while gated := [pod for pod in self._remainder() if own(pod.gates)]:
            self._require_controller(
                f"{named(gated)} wait for their due time",
                otherwise="uninstall with --release now",
            )
            waiting = f"waiting for {table.counted(len(gated), 'held pod')} ({named(gated)})"
            if endless := [pod for pod in gated if not _ENDLESS.isdisjoint(pod.gates)]:
                waiting += (
                    f"; {len(endless)} of them {'has' if len(endless) == 1 else 'have'} no due time"
                    f" ({named(endless)}): approve or release them, or use --release now"
                )
            if reported != waiting:
                reported = waiting
                self._report(waiting)
            if self.suffix:
                return
            time.sleep(_POLL)

    def record_landings(self, *, purge: bool) -> None:
        """Wait until the controller has recorded the nodes of VM pods."""
        landed = self._landed()
        if not landed or purge:
            return
        # every installation has this role, wherever its namespace is
        if listing.one(self.api, f"{_RBAC}/clusterroles/{_CONTROLLER}", msgspec.Raw) is None:
            self._report(f"the nodes of {named(landed)} stay unrecorded: Holdfast is gone")
            return
        self._require_controller(
            f"the nodes of {named(landed)} are not recorded",
            otherwise="uninstall with --purge, which removes all recorded nodes",
        )
        self._report(
            f"waiting for the nodes of {table.counted(len(landed), 'VM pod')} to be recorded"
        )
        self._wait_until(
            lambda: not self._landed(),
            "nodes are still not recorded; check the controller's log, or add --purge, which "
            "removes all recorded nodes",
        )

    def stop_controller(self) -> None:
        """Scale the controller to 0 and wait until its pods are gone."""
        body = msgspec.json.encode({"spec": {"replicas": 0}})
        try:
            self.api.request("PATCH", self._controller, body=body, content_type=_MERGE_PATCH)
        except ApiStatusError as exc:
            if exc.is_not_found:
                return
            raise
        self._done(f"deployment.apps/{_CONTROLLER} scaled")
        if self.suffix:
            return
        self._report("stopping the controller")
        pods = listing.pods_path(self.namespace)
        query = {"labelSelector": "app.kubernetes.io/component=controller"}
        self._wait_until(
            lambda: not list(listing.objects(self.api, pods, Pod, query)),
            "the controller has not stopped; check its pods",
        )

    def clear_pods(self, *, waited: bool = False) -> None:
        """Remove all our gates and finalizers, and check that none is left.

        After `wait_for_releases` no pod is held any more, except in a dry run.
        """
        found = self._remainder()
        if waited and self.suffix:
            found = [pod for pod in found if not own(pod.gates)]
        failed = {named([pod]): reason for pod in found if (reason := self._clear(pod))}
        held = [pod for pod in found if own(pod.gates)]
        if not self.suffix:
            self._report(f"released {table.counted(len(held), 'held pod')}")
        if not self.suffix and (left := self._remainder()):
            name, reason = next(iter(failed.items()), (named(left), "a new pod"))
            raise CommandError(
                f"{table.counted(len(left), 'pod')} still with gates or finalizers of Holdfast, "
                f"such as {name} ({reason}); run this command again"
            )

    def forget_vms(self) -> None:
        """Remove the recorded nodes of all VMs, from every configured annotation.

        Does nothing without KubeVirt. Raises CommandError if records are left; it can be repeated.
        """
        keys = vm_keys(self._configured())
        body = msgspec.json.encode({"metadata": {"annotations": dict.fromkeys(keys)}})
        failed: dict[str, str] = {}
        for vm in self._recorded_vms(keys):
            try:
                path = kubevirt.vm_path(*vm.key)
                self.api.request("PATCH", path, body=body, content_type=_MERGE_PATCH)
                self._done(f"VM {'/'.join(vm.key)} changed")
            except ApiStatusError as exc:
                if not exc.is_not_found:
                    failed["/".join(vm.key)] = str(exc)
        if failed:
            name, reason = next(iter(failed.items()))
            raise CommandError(
                f"could not remove the recorded node of {table.counted(len(failed), 'VM')}, "
                f"such as {name} ({reason}); run this command again"
            )

    def remove_made(self) -> None:
        """Remove what the controller has created in its namespace."""
        core, leases = "/api/v1", "/apis/coordination.k8s.io/v1"
        within = f"namespaces/{quote(self.namespace, safe='')}"
        secrets = (f"{core}/{within}/secrets/{name}" for name in (CA_SECRET, LEAF_SECRET))
        self._delete("certificates and Lease", [*secrets, f"{leases}/{within}/leases/{LEASE}"])

    def remove_rest(self) -> None:
        """Remove the policies, the namespace and the RBAC objects."""
        self._delete("policies, namespace and RBAC objects", rest(self.namespace))
        namespace = f"/api/v1/namespaces/{self.namespace}"
        self._wait_until(
            lambda: listing.one(self.api, namespace, dict) is None,
            f"namespace {self.namespace} still exists; check it with kubectl describe",
        )

    @property
    def _controller(self) -> str:
        namespace = quote(self.namespace, safe="")
        return f"/apis/apps/v1/namespaces/{namespace}/deployments/{_CONTROLLER}"

    def _remainder(self) -> list[Pod]:
        """List the pods with gates or finalizers of Holdfast."""
        pods = listing.objects(self.api, listing.pods_path(""), Pod)
        return [pod for pod in pods if own(pod.gates) or own(pod.finalizers)]

    def _landed(self) -> list[Pod]:
        """List bound pods with our finalizer: their node is not recorded yet."""
        return [pod for pod in self._remainder() if own(pod.finalizers) and pod.spec.node_name]

    def _configured(self) -> Iterator[config.Configuration]:
        path = config_maps(self.namespace)
        for each in listing.objects(self.api, path, _ConfigMap):
            text = each.data.get(_CONFIGURATION_FILE)
            if text is None:
                continue
            try:
                yield config.parse(text.encode(), _CONFIGURATION_FILE)
            except ConfigurationError as exc:  # no replica can have used it
                self._report(f"ignoring an invalid configuration: {exc}")

    def _recorded_vms(self, keys: Sequence[str]) -> list[VirtualMachine]:
        try:
            found = list(listing.objects(self.api, _VMS, VirtualMachine))
        except ApiStatusError as exc:
            if exc.status == _NOT_FOUND and not discovery.serves(self.api, "virtualmachines"):
                return []
            raise
        return [vm for vm in found if set(keys) & vm.annotations.keys()]

    def _clear(self, pod: Pod) -> str:
        """Clear a pod, retrying on conflicts; return the error, if any."""
        path, found, reason = pod_path(*pod.key), pod, ""
        for _ in range(_ATTEMPTS):
            body = msgspec.json.encode(clearing(found, self.now_ms()))
            try:
                self.api.request("PATCH", path, body=body, content_type=JSON_PATCH)
            except ApiStatusError as exc:
                reason = str(exc)
                if not exc.is_not_found and exc.status not in _CHANGED:
                    return reason
            else:
                self._done(f"pod {named([pod])} {'released' if own(pod.gates) else 'changed'}")
                return ""
            now = listing.one(self.api, path, Pod)
            if now is None or now.metadata.uid != pod.metadata.uid:
                return ""
            found = now
        return reason

    def _require_controller(self, why: str, *, otherwise: str) -> None:
        found: dict[str, Any] | None = listing.one(self.api, self._controller, dict)
        if found is None and self.is_served_from_elsewhere():
            return  # holdfast dev runs the controller
        if not (found or {}).get("status", {}).get("availableReplicas"):
            start = installation.start(Runs.NOTHING, self.namespace)
            if found is not None:
                # restarting, as in installation.start, would leave it at 0 replicas
                start = (
                    f"start it (kubectl -n {self.namespace} scale deployment {_CONTROLLER} "
                    "--replicas=1)"
                )
            raise CommandError(
                f"{why}, and no controller is running in {self.namespace}; {start}, or {otherwise}"
            )

    def _delete(self, what: str, paths: Iterable[str]) -> None:
        if not self.suffix:
            self._report(f"removing {what}")
        for path in paths:
            try:
                self.api.request("DELETE", path)
                self._done(f"{typed(path)} deleted")
            except ApiStatusError as exc:
                if not exc.is_not_found:
                    raise

    def _wait_until(self, done: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + self.timeout
        while not self.suffix and not done():
            if time.monotonic() > deadline:
                raise CommandError(f"after {self.timeout:.0f} s {otherwise}")
            time.sleep(_POLL)

    def _done(self, text: str) -> None:
        """Record a change to an object; a dry run reports it."""
        self.done.append(text)
        if self.suffix:
            terminal.write([(f"{text}{self.suffix}", "")])

    @staticmethod
    def _report(text: str) -> None:
        terminal.write([(text, "")], err=True)


def typed(path: str) -> str:
    """Return the TYPE/NAME of an object's path, as kubectl prints it."""
    *root, plural, name = path.split("/")
    group = f".{root[2]}" if root[1] == "apis" else ""
    singular = f"{plural[:-3]}y" if plural.endswith("ies") else plural[:-1]
    return f"{singular}{group}/{name}"


def own(names: Iterable[str]) -> list[str]:
    """Return the gates or finalizers that are Holdfast's."""
    return [name for name in names if name.startswith(OWN_PREFIX)]


def clearing(pod: Pod, now_ms: int) -> list[Operation]:
    """Build the patch that releases a pod and removes our finalizers, unless it has changed."""
    ours = [index for index, name in enumerate(pod.finalizers) if own([name])]
    # From the end, so that the other indexes stay valid.
    removals = [{"op": "remove", "path": f"/metadata/finalizers/{at}"} for at in reversed(ours)]
    if own(pod.gates):
        return [*release_patch(with_due(pod, Due(now_ms)), now_ms), *removals]
    return patching.guarded(pod.metadata.uid, pod.metadata.resource_version, removals)


def vm_keys(configured: Iterable[config.Configuration]) -> list[str]:
    """List the annotations that Holdfast writes on VMs, by default and in these configurations.

    `holdfast.dev/sticky` is not included: users write it.
    """
    chosen = [
        plugin.args.get("nodeAnnotation")
        for configuration in configured
        for profile in configuration.profiles
        for plugin in profile.plugin_config
        if plugin.name == "sticky"
    ]
    written = (kubevirt.STICKY_NODE, kubevirt.STICKY_NODE_UID)
    return list(dict.fromkeys([*written, *(key for key in chosen if isinstance(key, str))]))


def config_maps(namespace: str) -> str:
    """Return the path of the ConfigMaps with current and earlier configurations."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"


def rest(namespace: str) -> list[str]:
    """List the paths to remove last, in order: policies, namespace, RBAC objects."""
    accounts = (_CONTROLLER, f"{_CONTROLLER}-after", f"{_CONTROLLER}-kubevirt", _WEBHOOK)
    roles = (*accounts, rights.FREEZER, pod_policies.APPROVER, pod_policies.RELEASER)
    return [
        *(
            f"{_ADMISSION}/{kind}/{name}"
            for name in pod_policies.POLICIES
            for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies")
        ),
        f"/api/v1/namespaces/{quote(namespace, safe='')}",
        *(f"{_RBAC}/clusterrolebindings/{name}" for name in accounts),
        *(f"{_RBAC}/clusterroles/{name}" for name in roles),
    ]


def named(pods: Sequence[Pod], most: int = 3) -> str:
    """Name some of the pods, for a message."""
    return table.some(["/".join(pod.key) for pod in pods], most)
