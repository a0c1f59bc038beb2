"""Checks of `holdfast doctor` for the controller: leader, permissions, guard and held pods."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.webhook.cli import inspection, rights
from holdfast.webhook.cli.freeze_lookup import FreezeLookup, read_all
from holdfast.webhook.cli.inspection import attempt
from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.framework import cel
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.framework.profiles import Profiles
from holdfast.webhook.framework.runner import Runner, unobserved
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api
from holdfast.webhook.kube.leader_election import LEASE
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.freezes import Freeze, Freezes, read_freezes
from holdfast.webhook.model.objects import Pod, instant
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.policies import builder, guard_check, roles
from holdfast.webhook.policies.pods import CONTROLLER_PODS
from holdfast.webhook.report import held_pods
from holdfast.webhook.report.doctor import diagnosis, installation, rollouts
from holdfast.webhook.report.doctor.diagnosis import Finding
from holdfast.webhook.report.doctor.installation import Runs
from holdfast.webhook.report.doctor.rollouts import DeploymentState
from holdfast.webhook.report.held_pods import HeldPodSummary
from holdfast.webhook.runtime import pipelines

_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ControllerChecks:
    """The checks of the controller and of the objects that it manages.

    `own` is Holdfast's namespace, `namespace` the user's. The caller and the checks fill the lists
    of registered webhooks, Deployments, profiles, held pods and freezes.
    """

    api: Api
    own: str
    namespace: str
    now_ms: int
    registered: list[tuple[str, Document]] = field(default_factory=list)
    states: list[DeploymentState] = field(default_factory=list)
    profiles: list[Profiles] = field(default_factory=list)
    pods: list[HeldPodSummary] = field(default_factory=list)
    freezes: list[Freeze] = field(default_factory=list)

    @property
    def account(self) -> str:
        """The user name of the controller's ServiceAccount."""
        return builder.InstallationNames(self.own).controller

    def judged(self) -> Iterator[Finding]:
        """Run all checks, and yield their findings."""
        about_freezes = attempt("freezes", "namespaces", self._read_freezes)
        about_pods = attempt("held pods", "pods", self._read_held)
        yield from attempt("leader", "Leases", self._leader)
        yield from about_pods
        kept = inspection.kept
        yield from attempt("deleted pods", "pods of VMs", lambda: kept(self.api, self.now_ms))
        yield from about_freezes
        yield from attempt("guard", "the guard's policies", self._guard)
        yield from attempt("controller", "the controller's rights", self._permissions)
        yield from attempt("KubeVirt", "KubeVirt's account", self._virt_controllers)

    def _read_freezes(self) -> Iterable[Finding]:
        self.freezes.extend(read_freezes(read_all(self.api), self.own).active(self.now_ms))
        return diagnosis.freezes(self.freezes)

    def _read_held(self) -> Iterator[Finding]:
        """Check the held pods of all namespaces, or of the user's if access to others is denied."""
        freezes = Freezes(self.freezes)
        try:
            self._add_held("", lambda name: freezes.of(name, self.now_ms))
        except ApiStatusError as exc:
            if not exc.is_refused:
                raise
            lookup = FreezeLookup(self.api, self.namespace, lambda: self.now_ms, self.own)
            self._add_held(self.namespace, lookup)
            finding = diagnosis.held(self.pods, self.now_ms)
            yield finding._replace(text=f"in namespace {self.namespace}: {finding.text}")
            yield diagnosis.unread("other namespaces", f"no permission to read pods ({exc})")
        else:
            yield diagnosis.held(self.pods, self.now_ms)

    def _add_held(self, namespace: str, freeze_of: Callable[[str], Freeze | None]) -> None:
        decider = pipelines.release_decider(pipelines.Setup())
        if self.profiles:
            decider = ReleaseDecider(self.profiles[0], Runner(time.perf_counter, unobserved))
        query = {"fieldSelector": listing.UNBOUND}
        pods = listing.objects(self.api, listing.pods_path(namespace), Pod, query)
        self.pods.extend(held_pods.held_pods(pods, decider, freeze_of))

    def _leader(self) -> Iterator[Finding]:
        lease = _lease(self.api, self.own)
        mode, start = self._start()
        if mode is Runs.DEV and lease is None:
            yield diagnosis.dev(self.pods, start, self.now_ms)
        else:
            yield diagnosis.leader(lease, self.pods, start, self.now_ms)

    def _start(self) -> tuple[Runs, str]:
        """Return how the controller runs, and how to start it."""
        try:
            mode = inspection.runs(self.api, self.own, self.registered)
        except ApiStatusError as exc:
            if not exc.is_refused:
                raise
            mode = Runs.DEPLOYMENT
        remedy = rollouts.remedy(self.states, installation.CONTROLLER)
        return mode, remedy or installation.start(mode, self.own)

    def _guard(self) -> Iterator[Finding]:
        policy = listing.one(self.api, f"{_POLICIES}/{CONTROLLER_PODS}", Document)
        restricts = None if policy is None else cel.string(self.account) in str(policy)
        # None, as with holdfast dev, means that there was no pod for the dry run
        refuses = not restricts or guard_check.refuses(self.api, self.own) is not False
        yield diagnosis.guard(self.account, restricts=restricts, refuses=refuses)

    def _permissions(self) -> Iterator[Finding]:
        if _lease(self.api, self.own) is None:
            return  # without a Lease, as in holdfast dev, it acts as its user
        consequences = {
            (kind.group, kind.resource): f"pods that wait for a {kind.name} stay held"
            for profiles in self.profiles
            for kind in roles.followed(profiles)
        }
        consequences["", "namespaces"] = "it may release pods in frozen ones"
        for (group, resource), consequence in consequences.items():
            for verb in ("list", "watch"):
                attributes = {"verb": verb, "group": group, "resource": resource}
                if not rights.allowed(self.api, attributes, self.account):
                    name = f"{resource}.{group}".rstrip(".")
                    yield installation.may_not_follow(self.account, verb, name, consequence)

    def _virt_controllers(self) -> Iterator[Finding]:
        """Check that each KubeVirt object's virt-controller account exists and is configured."""
        try:
            documents = [*listing.objects(self.api, kubevirt.INSTALLATIONS, dict)]
        except ApiStatusError as exc:
            if exc.status != 404:
                raise
            return
        names = [str(document["metadata"]["namespace"]) for document in documents]
        paths = [api_path("v1", "serviceaccounts", name, kubevirt.CONTROLLER) for name in names]
        are_present = [listing.one(self.api, path, dict) is not None for path in paths]
        accounts = map(kubevirt.controller_account, names)
        configured = {
            account for profiles in self.profiles for account in pipelines.sticky_accounts(profiles)
        }
        yield from installation.virt_controllers(
            [*zip(accounts, are_present, strict=True)], configured
        )


def _lease(api: Api, namespace: str) -> tuple[str, int] | None:
    """Return the holder of the Lease in Holdfast's namespace, and its expiry in ms, or None.

    In other namespaces, users can create a Lease of this name.
    """
    lease = listing.one(
        api, api_path("coordination.k8s.io/v1", "leases", namespace, LEASE), Document
    )
    if lease is None:
        return None
    spec = lease.get("spec") or {}
    renew_time, seconds = instant(spec.get("renewTime")), spec.get("leaseDurationSeconds") or 0
    renewed_at = renew_time.timestamp() if renew_time else 0.0
    return str(spec.get("holderIdentity") or ""), int((renewed_at + seconds) * 1_000)
