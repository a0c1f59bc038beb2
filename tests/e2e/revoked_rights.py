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
    def without(self, *taken: Right) -> Iterator[None]:
        with ExitStack() as stack:
            for right in taken:
                stack.enter_context(self._without(right))
            yield

    @contextmanager
    def _without(self, right: Right) -> Iterator[None]:
        began = time.time()
        taken = {  # two roles may grant it
            each for each in self.rights if each[2:] == right[2:] and holder(each) == holder(right)
        }
        self.missing |= taken
        try:
            for each in taken:
                self._write(each)
            self.ns.eventually(lambda: not self.allowed(right))
            yield
        finally:
            self.missing -= taken
            for each in taken:
                self._write(each)
            self.ns.eventually(lambda: self.allowed(right))
            self.times.append((right, began, time.time() + LAG))

    def _write(self, one: Right) -> None:
        """Update a role, with a rule for each right that is not missing."""
        kept = [each for each in self.rights - self.missing if each[:2] == one[:2]]
        where = f"/namespaces/{NAMESPACE}" if one.kind == "Role" else ""
        path = f"{_RBAC}{where}/{one.kind.lower()}s/{one.role}"
        self.installed.plane.api.patch(path, {"rules": [_rule(each) for each in kept]})

    def allowed(self, right: Right) -> bool:
        """Return whether the account that the manifests grant a right has it now."""
        user = f"system:serviceaccount:{NAMESPACE}:holdfast-{holder(right)}"
        place = NAMESPACE if right.kind == "Role" else ""
        if person := PEOPLE.get(holder(right)):
            user, place = person, self.ns.namespace
        about = {"verb": right.verb, "group": right.group, "resource": right.resource}
        about |= {"name": right.name, "namespace": place}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": about},
        }
        answer = self.installed.plane.api.create(_REVIEWS, review)
        return bool(answer and answer["status"].get("allowed"))

    # --- requests ------------------------------------------------------------------------------

    def asked(self, counts: Callable[[Request], bool]) -> Callable[[], bool]:
        """Return a function that checks whether a matching request was received from now on."""
        began = time.time()
        return lambda: any(one.at >= began and counts(one) for one in self.log.requests())

    def refused(self, right: Right, *, by: str = "") -> Callable[[], bool]:
        """Return a function that checks whether a request was forbidden from now on.

        `by` is a part of the request's URI, if several requests need the right.
        """
        return self.asked(
            lambda one: _uses(one, right) and one.status == FORBIDDEN and by in one.uri
        )

    def answered(self, right: Right) -> Callable[[], bool]:
        """Return a function that checks whether a request was permitted from now on.

        No request uses the verb that the guard checks: patches of pods need it.
        """
        if right.resource == "holds":
            right = right._replace(group="", resource="pods", verb="patch")
        return self.asked(lambda one: _uses(one, right) and one.status in GRANTED)

    def await_refusal(self, right: Right, *, by: str = "") -> None:
        """Wait until another request is rejected because a right is missing."""
        self.ns.eventually(self.refused(right, by=by))

    def unexplained(self) -> list[Request]:
        # at startup, the controller tests in a dry run whether the guard rejects a change
        refused = [
            one
            for one in self.log.requests()
            if one.status == FORBIDDEN and not (one.verb == "patch" and "dryRun=All" in one.uri)
        ]
        return [one for one in refused if not any(_explains(one, *each) for each in self.times)]


def holder(right: Right) -> str:
    """Return who has a right: `controller`, `webhook`, `releaser` or `approver`."""
    return str(right).partition(":")[0]


def _uses(one: Request, right: Right) -> bool:
    needs = (right.group, right.resource, right.verb)
    return one.account == holder(right) and needs in one.needed and right.name in {"", one.name}


def _explains(one: Request, right: Right, began: float, ended: float) -> bool:
    return _uses(one, right) and began <= one.at <= ended


def _rule(right: Right) -> dict[str, list[str]]:
    rule = {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]}
    return rule | ({"resourceNames": [right.name]} if right.name else {})


@contextmanager
def staged(folder: Path) -> Iterator[RightsFixture]:
    """Install Holdfast with its rights for KubeVirt, and run it with these rights only."""
    with installation(folder) as made, Proxy(made.plane) as proxy:
        plane = made.plane
        fake_kubevirt.define(plane, *KINDS)
        for process in ("controller", "webhook"):
            plane.kubectl("apply", "-f", str(kubevirt_rights(process)))
        made.ns.kubectl("create", "rolebinding", ADMIN, f"--user={ADMIN}", "--clusterrole=admin")
        for role in ("edit", "holdfast-approver"):
            binding = (f"{APPROVER}-{role}", f"--user={APPROVER}", f"--clusterrole={role}")
            made.ns.kubectl("create", "rolebinding", *binding)
        made.ns.eventually(lambda: not refusal(made.ns.kubectl, "get", "vm,vmi,vmim"))
        by_token = ("holdfast-controller", proxy.url), ("holdfast-webhook", "")
        files = [
            token_kubeconfig(plane, folder / f"{account}.token", account, url)
            for account, url in by_token
        ]
        names = {f"system:serviceaccount:{NAMESPACE}:{account}": account for account, _ in by_token}
        known = {user: name.removeprefix("holdfast-") for user, name in names.items()}
        log = AuditLog(plane.audit_log, known | {user: name for name, user in PEOPLE.items()})
        made.stack.callback(log.close)
        stage = RightsFixture(made, proxy, log)
        made.ns.eventually(lambda: all(map(stage.allowed, stage.rights)))
        made.module, made.kubeconfig = short_intervals.__name__, files[0]
        made.replica("--kubeconfig", str(files[1]))
        made.controller()
        made.ready()
        yield stage
