"""Holdfast with its own accounts in a cluster; single rights are revoked while it runs."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from demo.command import Command
from docs.rights import Right, rights
from tests.e2e import fake_kubevirt, short_intervals
from tests.e2e.accounts import NAMESPACE, kubevirt_rights, token_kubeconfig
from tests.e2e.audit_log import FORBIDDEN, GRANTED, AuditLog, Request
from tests.e2e.installed import Installation, installation
from tests.e2e.kubectl_user import KubectlUser, refusal
from tests.e2e.namespace import Namespace
from tests.faults.proxy import Proxy

ADMIN = "jane"
"""The admin of the tests' namespace."""
APPROVER = "ann"
"""An editor there who may approve pods."""
PEOPLE = {"releaser": ADMIN, "approver": APPROVER}
LAG = 2.0
"""Seconds during which requests may still be rejected after their right was restored."""
KINDS = ("virtualmachines", "virtualmachineinstances", "virtualmachineinstancemigrations")
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass
class RightsFixture:
    installed: Installation
    proxy: Proxy
    """Between the controller and the API server."""
    log: AuditLog
    rights: frozenset[Right] = frozenset(rights())
    missing: set[Right] = field(default_factory=set)
    times: list[tuple[Right, float, float]] = field(default_factory=list)
    """Which right was missing, from when to when, in seconds since 1970."""
    afterwards: ExitStack = field(default_factory=ExitStack)
    """Cleanup at the end of a test."""

    @property
    def ns(self) -> Namespace:
        return self.installed.ns

    @property
    def controller(self) -> Command:
        return self.installed.controllers[0]

    @property
    def admin(self) -> KubectlUser:
        return KubectlUser(self.ns, self.installed.plane.kubeconfig_for(ADMIN))

    @property
    def approver(self) -> KubectlUser:
        return KubectlUser(self.ns, self.installed.plane.kubeconfig_for(APPROVER))

    @contextmanager
    def without(self, *revoked: Right) -> Iterator[None]:
        with ExitStack() as stack:
            for right in revoked:
                stack.enter_context(self._without(right))
            yield

    @contextmanager
    def _without(self, right: Right) -> Iterator[None]:
        began = time.time()
        revoked = {  # two roles may grant it
            grant
            for grant in self.rights
            if grant[2:] == right[2:] and holder(grant) == holder(right)
        }
        self.missing |= revoked
        try:
            for grant in revoked:
                self._write(grant)
            self.ns.eventually(lambda: not self.allowed(right))
            yield
        finally:
            self.missing -= revoked
            for grant in revoked:
                self._write(grant)
            self.ns.eventually(lambda: self.allowed(right))
            self.times.append((right, began, time.time() + LAG))

    def _write(self, right: Right) -> None:
        """Update a role, with a rule for each right that is not missing."""
        remaining = [grant for grant in self.rights - self.missing if grant[:2] == right[:2]]
        scope = f"/namespaces/{NAMESPACE}" if right.kind == "Role" else ""
        path = f"{_RBAC}{scope}/{right.kind.lower()}s/{right.role}"
        self.installed.plane.api.patch(path, {"rules": [_rule(grant) for grant in remaining]})

    def allowed(self, right: Right) -> bool:
        """Return whether the account that the manifests grant a right has it now."""
        user = f"system:serviceaccount:{NAMESPACE}:holdfast-{holder(right)}"
        namespace = NAMESPACE if right.kind == "Role" else ""
        if person := PEOPLE.get(holder(right)):
            user, namespace = person, self.ns.namespace
        attributes = {"verb": right.verb, "group": right.group, "resource": right.resource}
        attributes |= {"name": right.name, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        }
        response = self.installed.plane.api.create(_REVIEWS, review)
        return bool(response and response["status"].get("allowed"))

    # --- requests ------------------------------------------------------------------------------

    def asked(self, counts: Callable[[Request], bool]) -> Callable[[], bool]:
        """Return a function that checks whether a matching request was received from now on."""
        began = time.time()
        return lambda: any(
            request.at >= began and counts(request) for request in self.log.requests()
        )

    def refused(self, right: Right, *, by: str = "") -> Callable[[], bool]:
        """Return a function that checks whether a request was forbidden from now on.

        `by` is a part of the request's URI, if several requests need the right.
        """
        return self.asked(
            lambda request: (
                _uses(request, right) and request.status == FORBIDDEN and by in request.uri
            )
        )

    def answered(self, right: Right) -> Callable[[], bool]:
        """Return a function that checks whether a request was permitted from now on.

        No request uses the verb that the guard checks: patches of pods need it.
        """
        if right.resource == "holds":
            right = right._replace(group="", resource="pods", verb="patch")
        return self.asked(lambda request: _uses(request, right) and request.status in GRANTED)

    def await_refusal(self, right: Right, *, by: str = "") -> None:
        """Wait until another request is rejected because a right is missing."""
        self.ns.eventually(self.refused(right, by=by))

    def unexplained(self) -> list[Request]:
        # at startup, the controller tests in a dry run whether the guard rejects a change
        denials = [
            call
            for call in self.log.requests()
            if call.status == FORBIDDEN and not (call.verb == "patch" and "dryRun=All" in call.uri)
        ]
        return [call for call in denials if not any(_explains(call, *gap) for gap in self.times)]


def holder(right: Right) -> str:
    """Return who has a right: `controller`, `webhook`, `releaser` or `approver`."""
    return str(right).partition(":")[0]


def _uses(request: Request, right: Right) -> bool:
    needs = (right.group, right.resource, right.verb)
    return (
        request.account == holder(right)
        and needs in request.needed
        and right.name in {"", request.name}
    )


def _explains(request: Request, right: Right, began: float, ended: float) -> bool:
    return _uses(request, right) and began <= request.at <= ended


def _rule(right: Right) -> dict[str, list[str]]:
    rule = {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]}
    return rule | ({"resourceNames": [right.name]} if right.name else {})


@contextmanager
def staged(folder: Path) -> Iterator[RightsFixture]:
    """Install Holdfast with its rights for KubeVirt, and run it with these rights only."""
    with installation(folder) as installed, Proxy(installed.plane) as proxy:
        plane = installed.plane
        fake_kubevirt.define(plane, *KINDS)
        for process in ("controller", "webhook"):
            plane.kubectl("apply", "-f", str(kubevirt_rights(process)))
        installed.ns.kubectl(
            "create", "rolebinding", ADMIN, f"--user={ADMIN}", "--clusterrole=admin"
        )
        for role in ("edit", "holdfast-approver"):
            binding = (f"{APPROVER}-{role}", f"--user={APPROVER}", f"--clusterrole={role}")
            installed.ns.kubectl("create", "rolebinding", *binding)
        installed.ns.eventually(lambda: not refusal(installed.ns.kubectl, "get", "vm,vmi,vmim"))
        by_token = ("holdfast-controller", proxy.url), ("holdfast-webhook", "")
        files = [
            token_kubeconfig(plane, folder / f"{account}.token", account, url)
            for account, url in by_token
        ]
        names = {f"system:serviceaccount:{NAMESPACE}:{account}": account for account, _ in by_token}
        accounts = {user: name.removeprefix("holdfast-") for user, name in names.items()}
        log = AuditLog(plane.audit_log, accounts | {user: name for name, user in PEOPLE.items()})
        installed.stack.callback(log.close)
        stage = RightsFixture(installed, proxy, log)
        installed.ns.eventually(lambda: all(map(stage.allowed, stage.rights)))
        installed.module, installed.kubeconfig = short_intervals.__name__, files[0]
        installed.replica("--kubeconfig", str(files[1]))
        installed.controller()
        installed.ready()
        yield stage
