"""A cluster with the shipped roles and policies."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from controlplane.launcher import ControlPlane
from holdfast.webhook.model.approvals import APPROVED_BY
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.policies.namespaces import FREEZE_POLICY, FREEZE_ROLES_POLICY
from holdfast.webhook.policies.secrets import CONTROLLER_SECRETS
from holdfast.webhook.policies.vms import CONTROLLER_VMS
from tests.e2e.accounts import MANIFESTS
from tests.e2e.guard.changes import LEVEL, STRIP, annotation, write
from tests.e2e.guard.objects import PACE, TOKEN, held, machine, role, secret
from tests.e2e.guard.webhooks import KINDS, configuration
from tests.e2e.kubectl_user import KubectlUser, refusal
from tests.e2e.namespace import Namespace

VMS = "virtualmachines.kubevirt.io"
CONTROLLER = "system:serviceaccount:holdfast-system:holdfast-controller"
POLICIES = (
    pod_policies.HOLD,
    pod_policies.PACE,
    pod_policies.APPROVAL,
    pod_policies.OWN_FIELDS,
    FREEZE_POLICY,
    FREEZE_ROLES_POLICY,
    pod_policies.CONTROLLER_PODS,
    CONTROLLER_VMS,
    pod_policies.CONTROLLER_WEBHOOKS,
)
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Guarded:
    """A cluster with the shipped roles and policies, and the controller."""

    plane: ControlPlane
    token_kubeconfig: Path

    def ns(self) -> Namespace:
        """Make a namespace with a developer, jane, and an admin, amy.

        Fred may freeze it, and so may another admin, fay.
        """
        ns = Namespace.create_new(self.plane, f"guard-{next(_numbers)}")
        for name, users in {
            "edit": ["jane"],
            "admin": ["amy", "fay"],
            "holdfast-freezer": ["fred", "fay"],
        }.items():
            subjects = [f"--user={user}" for user in users]
            ns.kubectl("create", "rolebinding", name, f"--clusterrole={name}", *subjects)
        return ns

    def controller(self, ns: Namespace) -> KubectlUser:
        return KubectlUser(ns, self.token_kubeconfig)

    def user(self, ns: Namespace, name: str) -> KubectlUser:
        return KubectlUser(ns, self.plane.kubeconfig_for(name))

    def apply_guard(self) -> None:
        self.plane.kubectl("apply", "-k", str(MANIFESTS / "guard"))

    def probe(self, ns: Namespace, policy: str) -> str:
        """Request, in a dry run, a change that only this policy rejects; return the message."""
        probes = {
            pod_policies.HOLD: lambda: self.user(ns, "jane").patch("probed", [STRIP]),
            pod_policies.PACE: lambda: self.user(ns, "jane").patch(
                "probed", [write("/metadata/labels", {PACE: "a"})]
            ),
            pod_policies.APPROVAL: lambda: self.user(ns, "jane").patch(
                "probed", [annotation(APPROVED_BY, "jane")]
            ),
            pod_policies.OWN_FIELDS: lambda: self.user(ns, "jane").patch(
                "probed", [write("/metadata/finalizers", ["holdfast.dev/sticky"])]
            ),
            FREEZE_POLICY: lambda: self.user(ns, "fred").patch(
                ns.namespace, [LEVEL], kind="namespace"
            ),
            FREEZE_ROLES_POLICY: lambda: self.user(ns, "fay").create(
                role("probed", "namespaces", "patch")
            ),
            pod_policies.CONTROLLER_PODS: lambda: self.controller(ns).patch(
                "probed", [write("/metadata/labels", {"a": "b"})]
            ),
            CONTROLLER_VMS: lambda: self.controller(ns).patch(
                "probed", [write("/metadata/labels", {"a": "b"})], kind="vm"
            ),
            pod_policies.CONTROLLER_WEBHOOKS: lambda: self.controller(ns).create(
                configuration(KINDS[0], "other")
            ),
            CONTROLLER_SECRETS: lambda: self.controller(ns).create(secret(type=TOKEN)),
        }
        return refusal(probes[policy])

    def await_policy(self, ns: Namespace, policy: str) -> None:
        """Wait until the API server enforces a policy, which takes a moment."""
        ns.eventually(lambda: policy in self.probe(ns, policy))

    @contextmanager
    def without_binding(self, ns: Namespace, policy: str) -> Iterator[None]:
        """Delete a policy's binding until the block ends."""
        ns.apply(held("probed"), machine("probed"))
        self.plane.kubectl("delete", "validatingadmissionpolicybinding", policy)
        try:
            ns.eventually(lambda: not self.probe(ns, policy))
            yield
        finally:
            self.apply_guard()
            self.await_policy(ns, policy)


def grant_excess_rights(plane: ControlPlane) -> None:
    """Grant the controller rights that it never has, so that only the policies limit it."""
    name = "far-too-much"
    kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
    plane.kubectl(
        *("create", "clusterrole", name, "--verb=*"),
        f"--resource=pods,pods/status,secrets,leases,{VMS},{VMS}/status,{kinds}",
    )
    plane.kubectl(
        "create", "clusterrolebinding", name, f"--clusterrole={name}", f"--user={CONTROLLER}"
    )
