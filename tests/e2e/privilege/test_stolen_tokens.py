"""Requests that stolen tokens of the webhook and the controller permit."""

import pytest

from tests.e2e.accounts import NAMESPACE
from tests.e2e.fake_kubevirt import RECORD
from tests.e2e.kubectl_user import KubectlUser, refusal, rights_in
from tests.e2e.namespace import Namespace
from tests.e2e.secured import (
    THERE,
    Secured,
)

pytestmark = pytest.mark.xdist_group("privilege")

FORBIDDEN_TO_BOTH: dict[str, tuple[str, ...]] = {
    "secrets": ("get", "secrets"),
    "all secrets": ("get", "secrets", "--all-namespaces"),
    "a user's secret": ("get", "secret", "others"),
    "another secret of Holdfast's namespace": ("get", "secret", "others", "-n", NAMESPACE),
    "configuration": ("get", "configmaps", "--all-namespaces"),
    "a freeze": ("patch", "namespace", "default", "--patch={}", "--dry-run=server"),
    "deletion": ("delete", "pod", "victim", "--dry-run=server"),
    "eviction": ("drain", THERE, "--dry-run=server"),
    "exec": ("exec", "victim", "--", "true"),
    "a pod": ("run", "mine", "--image=busybox", "--dry-run=server"),
    "a Deployment": ("create", "deployment", "mine", "--image=busybox", "--dry-run=server"),
    "a node": ("label", "node", THERE, "a=b", "--dry-run=server"),
    "a token": ("create", "token", "default"),
    "a RoleBinding": ("create", "rolebinding", "x", "--clusterrole=admin", "--user=x"),
    "impersonation": ("get", "pods", "--as=jane"),
    "another webhook": ("delete", "mutatingwebhookconfiguration", "holdfast", "--dry-run=server"),
    "a policy": ("delete", "validatingadmissionpolicybinding", "holdfast-hold"),
}
"""kubectl commands that neither token permits."""
FORBIDDEN_TO_WEBHOOK: dict[str, tuple[str, ...]] = {
    "pods": ("get", "pods"),
    "a pod by name": ("get", "pod", "victim"),
    "namespaces": ("get", "namespaces"),
    "all VMs": ("get", "vm"),
    "all VMIs": ("get", "vmi", "--all-namespaces"),
    "a VM's record": ("annotate", "vm", "vm", f"{RECORD}={THERE}", "--overwrite"),
    "the CA": ("get", "secret", "holdfast-ca", "-n", NAMESPACE),
    "the serving key": ("get", "secret", "holdfast-tls", "-n", NAMESPACE),
    "a release": ("patch", "pod", "victim", "--patch={}"),
    "the webhooks": ("get", "mutatingwebhookconfiguration", "holdfast"),
}


@pytest.mark.parametrize(
    "words",
    (FORBIDDEN_TO_BOTH | FORBIDDEN_TO_WEBHOOK).values(),
    ids=FORBIDDEN_TO_BOTH | FORBIDDEN_TO_WEBHOOK,
)
def test_webhook_token_is_forbidden(
    secured: Secured, robbed: Namespace, words: tuple[str, ...]
) -> None:
    assert "orbidden" in refusal(secured.webhook(robbed).kubectl, *words)


def test_webhook_token_reads_a_vm_by_name(secured: Secured, robbed: Namespace) -> None:
    thief = secured.webhook(robbed)

    assert thief.kubectl("get", "vm", "vm", "-o", "name").strip() == "virtualmachine.kubevirt.io/vm"
    assert "virtualmachineinstance" in thief.kubectl("get", "vmi", "vm", "-o", "name")


@pytest.mark.parametrize("words", FORBIDDEN_TO_BOTH.values(), ids=FORBIDDEN_TO_BOTH)
def test_controller_token_is_forbidden(
    secured: Secured, robbed: Namespace, words: tuple[str, ...]
) -> None:
    assert "orbidden" in refusal(secured.controller(robbed).kubectl, *words)


def rights(actor: KubectlUser, namespace: str) -> set[str]:
    """List what an account may do in a namespace: each resource with its verbs."""
    table = actor.kubectl("auth", "can-i", "--list", "--no-headers", "-n", namespace)
    return {line for line in rights_in(table) if not line.startswith(("[", "self"))}


def test_tokens_have_only_cluster_roles_in_other_namespaces(
    secured: Secured, robbed: Namespace
) -> None:
    """In Holdfast's namespace the controller has more rights, but the webhook does not."""
    webhook, controller = secured.webhook(robbed), secured.controller(robbed)
    other_rights, own_rights = (
        rights(controller, namespace) for namespace in (robbed.namespace, NAMESPACE)
    )
    webhooks = rights(webhook, robbed.namespace)

    assert {line.partition(" ")[0] for line in webhooks} == {
        "kubevirts.kubevirt.io",
        "virtualmachineinstances.kubevirt.io",
        "virtualmachines.kubevirt.io",
    }
    assert all(line.endswith(("[get]", "[list]")) for line in webhooks)
    assert webhooks == rights(webhook, NAMESPACE)
    assert {line.partition(" ")[0] for line in other_rights} == {
        "pods",
        "controllerrevisions.apps",
        "daemonsets.apps",
        "deployments.apps",
        "replicasets.apps",
        "statefulsets.apps",
        "jobs.batch",
        "endpointslices.discovery.k8s.io",
        "namespaces",
        "nodes",
        "events.events.k8s.io",
        "holds.holdfast.dev",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "validatingwebhookconfigurations.admissionregistration.k8s.io",
        "virtualmachines.kubevirt.io",
        "virtualmachineinstances.kubevirt.io",
        "virtualmachineinstancemigrations.kubevirt.io",
    }
    assert other_rights < own_rights
    assert {line.partition(" ")[0] for line in own_rights - other_rights} == {
        "leases.coordination.k8s.io",
        "secrets",
        "deployments.apps",
    }
