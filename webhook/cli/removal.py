"""The steps of `holdfast uninstall`, in order."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.webhook.cli import remnants, terminal, webhook_checks
from holdfast.webhook.errors import ApiStatusError, CommandError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import JSON_PATCH, MERGE_PATCH, Api, pod_path
from holdfast.webhook.kube.leader_election import LEASE
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.registration import configurations
from holdfast.webhook.registration.secrets import CA_SECRET, LEAF_SECRET
from holdfast.webhook.report import table
from holdfast.webhook.report.doctor import installation
from holdfast.webhook.report.doctor.installation import CONTROLLER, Runs
from holdfast.webhook.runtime import dev

_POLL = 0.5  # seconds
_ATTEMPTS = 5  # per pod, on conflicts
_CHANGED = {409, 422}


@dataclass(frozen=True, slots=True)
class Removal:
    """The steps. Each can be repeated, and raises CommandError or ClusterError.

    A dry run does not wait.
    """

    api: Api
    namespace: str
    timeout: float
    suffix: str = ""
    """The suffix of output lines in a dry run; empty otherwise."""
    now_ms: Callable[[], int] = lambda: 0
    done: list[str] = field(default_factory=list)
    """The changes so far; a dry run prints each."""

    def require_namespace(self, *, prepare: bool) -> None:
        """Check that Holdfast is installed only in this namespace, without workloads of others.

        Raises CommandError if it is not.
        """
        client_configs = webhook_checks.clients(webhook_checks.registered(self.api))
        namespaces = {*webhook_checks.namespaces(client_configs)}
        if not prepare:  # the chart's hook may not read the binding
            namespaces |= remnants.bound_namespaces(self.api)
        if namespaces and self.namespace not in namespaces:
            raise CommandError(
                f"Holdfast is installed in namespace {' and '.join(sorted(namespaces))}, not in "
                f"{self.namespace}; add --namespace {min(namespaces)}"
            )
        if not prepare and remnants.is_own(self.api, self.namespace):
            self._require_alone()

    def stop_asking(self) -> None:
        """Remove the webhook configurations, to stop holding new pods."""
        names = {
            configuration["metadata"]["name"]
            for _, configuration in webhook_checks.registered(self.api)
        }
        own_names = sorted(names - {dev.NAME} | {configurations.NAME})
        paths = [path for name in own_names for path in configurations.paths(name)]
        self._delete("the webhook configurations", paths)

    def wait_for_releases(self) -> None:
        """Wait until the controller has released every held pod at its due time.

        Pods created after `timeout` do not count: users can create them endlessly.
        """
        last_message = ""
        uids: set[str] = set()
        deadline = time.monotonic() + self.timeout
        while held_pods := [pod for pod in remnants.pods(self.api) if remnants.own(pod.gates)]:
            if not uids or time.monotonic() < deadline:
                uids.update(pod.metadata.uid for pod in held_pods)
            if not (held_pods := [pod for pod in held_pods if pod.metadata.uid in uids]):
                return
            self._require_controller(
                f"held pods wait for their due time ({remnants.named(held_pods)})",
                otherwise="uninstall with --release now",
            )
            if last_message != (message := remnants.waiting(held_pods)):
                last_message = message
                terminal.report(message)
            if self.suffix:
                return
            time.sleep(_POLL)

    def record_landings(self, *, purge: bool) -> None:
        """Wait until the controller has recorded the nodes of VM pods."""
        pods = remnants.landed(self.api)
        if not pods or purge:
            return
        # every installation has this role, in whatever namespace it is
        if listing.one(self.api, f"{remnants.RBAC}/clusterroles/{CONTROLLER}", msgspec.Raw) is None:
            terminal.report(
                f"the nodes of {remnants.named(pods)} stay unrecorded: Holdfast is gone"
            )
            return
        self._require_controller(
            f"the nodes of {remnants.named(pods)} are not recorded",
            otherwise="uninstall with --purge, which removes all recorded nodes",
        )
        terminal.report(
            f"waiting for the nodes of {table.counted(len(pods), 'VM pod')} to be recorded"
        )
        uids = {pod.metadata.uid for pod in remnants.pods(self.api)}
        self._wait_until(
            lambda: uids.isdisjoint(pod.metadata.uid for pod in remnants.landed(self.api)),
            "nodes are still not recorded; check the controller's log, or add --purge, which "
            "removes all recorded nodes",
        )

    def stop_controller(self) -> None:
        """Scale the controller to 0 and wait until its pods are gone."""
        body = msgspec.json.encode({"spec": {"replicas": 0}})
        try:
            self.api.request("PATCH", self._controller, body=body, content_type=MERGE_PATCH)
        except ApiStatusError as exc:
            if exc.is_not_found:
                return
            raise
        self._done(f"deployment.apps/{CONTROLLER} scaled")
        if self.suffix:
            return
        terminal.report("stopping the controller")
        path = listing.pods_path(self.namespace)
        query = {"labelSelector": "app.kubernetes.io/component=controller"}
        self._wait_until(
            lambda: not list(listing.objects(self.api, path, Pod, query)),
            f"the controller has not stopped; see kubectl get pods -n {self.namespace}",
        )

    def clear_pods(self, *, waited: bool = False) -> None:
        """Remove all of Holdfast's gates and finalizers, except those that users add meanwhile.

        If `waited`, a dry run skips held pods, which would have been released by now. Raises
        CommandError if a gate or finalizer cannot be removed.
        """
        pods = remnants.pods(self.api)
        if waited and self.suffix:
            pods = [pod for pod in pods if not remnants.own(pod.gates)]
        for pod in pods:
            self._clear(pod)
        if self.suffix:
            return
        held_pods = [pod for pod in pods if remnants.own(pod.gates)]
        terminal.report(f"released {table.counted(len(held_pods), 'held pod')}")
        remaining_pods = remnants.pods(self.api)  # failed ones, and new ones
        failures = {
            remnants.named([pod]): reason for pod in remaining_pods if (reason := self._clear(pod))
        }
        if failures:
            name, reason = next(iter(failures.items()))
            raise CommandError(
                "could not remove the gates and finalizers of Holdfast from "
                f"{table.counted(len(failures), 'pod')}, such as {name} ({reason}); run this "
                "command again"
            )

    def forget_vms(self) -> None:
        """Remove the recorded nodes of all VMs, from every configured annotation.

        Does nothing without KubeVirt. Raises CommandError if records are left.
        """
        keys = remnants.vm_keys(remnants.configured(self.api, self.namespace))
        body = msgspec.json.encode({"metadata": {"annotations": dict.fromkeys(keys)}})
        failures: dict[str, str] = {}
        for vm in remnants.recorded_vms(self.api, keys):
            try:
                path = kubevirt.vm_path(*vm.key)
                self.api.request("PATCH", path, body=body, content_type=MERGE_PATCH)
                self._done(f"VM {'/'.join(vm.key)} changed")
            except ApiStatusError as exc:
                if not exc.is_not_found:
                    failures["/".join(vm.key)] = str(exc)
        if failures:
            name, reason = next(iter(failures.items()))
            raise CommandError(
                f"could not remove the recorded node of {table.counted(len(failures), 'VM')}, "
                f"such as {name} ({reason}); run this command again"
            )

    def remove_made(self) -> None:
        """Remove the certificates and the Lease that the controller created."""
        namespace = self.namespace
        secrets = (api_path("v1", "secrets", namespace, name) for name in (CA_SECRET, LEAF_SECRET))
        lease = api_path("coordination.k8s.io/v1", "leases", namespace, LEASE)
        self._delete("certificates and Lease", [*secrets, lease])

    def remove_rest(self) -> None:
        """Remove the policies and RBAC objects, and the namespace if it is Holdfast's."""
        namespace = api_path("v1", "namespaces", name=self.namespace)
        paths = remnants.rest(self.namespace)
        if not remnants.is_own(self.api, self.namespace):
            self._delete("policies and RBAC objects", [path for path in paths if path != namespace])
            return
        self._delete("policies, namespace and RBAC objects", paths)
        self._wait_until(
            lambda: listing.one(self.api, namespace, dict) is None,
            f"namespace {self.namespace} still exists; check it with kubectl describe",
        )

    @property
    def _controller(self) -> str:
        return api_path("apps/v1", "deployments", self.namespace, CONTROLLER)

    def _clear(self, pod: Pod) -> str:
        """Clear a pod, retrying on conflicts; return the error, if any."""
        path, current_pod, reason = pod_path(*pod.key), pod, ""
        for _ in range(_ATTEMPTS):
            body = msgspec.json.encode(remnants.clearing(current_pod, self.now_ms()))
            try:
                self.api.request("PATCH", path, body=body, content_type=JSON_PATCH)
            except ApiStatusError as exc:
                reason = str(exc)
                if not exc.is_not_found and exc.status not in _CHANGED:
                    return reason
            else:
                outcome = "released" if remnants.own(pod.gates) else "changed"
                self._done(f"pod {remnants.named([pod])} {outcome}")
                return ""
            latest_pod = listing.one(self.api, path, Pod)
            if latest_pod is None or latest_pod.metadata.uid != pod.metadata.uid:
                return ""
            current_pod = latest_pod
        return reason

    def _require_alone(self) -> None:
        if workload := remnants.foreign(self.api, self.namespace):
            raise CommandError(
                f"namespace {self.namespace} has {workload}, too, which would be deleted with it; "
                "add --prepare, and then remove Holdfast as it was installed, without the namespace"
            )

    def _require_controller(self, why: str, *, otherwise: str) -> None:
        deployment: dict[str, Any] | None = listing.one(self.api, self._controller, dict)
        if deployment is None and remnants.is_dev_registered(self.api):
            return  # holdfast dev runs the controller
        if not (deployment or {}).get("status", {}).get("availableReplicas"):
            start = installation.start(Runs.NOTHING, self.namespace)
            if deployment is not None:
                # restarting, as in installation.start, would leave it at 0 replicas
                start = (
                    f"start it (kubectl -n {self.namespace} scale deployment {CONTROLLER} "
                    "--replicas=1)"
                )
            raise CommandError(
                f"{why}, and no controller is running in {self.namespace}; {start}, or {otherwise}"
            )

    def _delete(self, description: str, paths: Iterable[str]) -> None:
        if not self.suffix:
            terminal.report(f"removing {description}")
        for path in paths:
            try:
                self.api.request("DELETE", path)
                self._done(f"{remnants.typed(path)} deleted")
            except ApiStatusError as exc:
                if not exc.is_not_found:
                    raise

    def _wait_until(self, is_done: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + self.timeout
        while not self.suffix and not is_done():
            if time.monotonic() > deadline:
                raise CommandError(f"after {self.timeout:.0f} s {problem}")
            time.sleep(_POLL)

    def _done(self, text: str) -> None:
        """Record a change to an object; a dry run reports it."""
        self.done.append(text)
        if self.suffix:
            terminal.write([(f"{text}{self.suffix}", "")])
