"""The policies as a whole, and what happens without them."""

import json
import os
from collections.abc import Mapping
from contextlib import closing

import pytest

from controlplane import versions
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.policies import guard_check
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.policies.namespaces import FREEZE_POLICY
from holdfast.webhook.policies.vms import CONTROLLER_VMS
from tests.e2e.accounts import MANIFESTS
from tests.e2e.guard.changes import (
    CONTROLLER_MAY_NOT,
    FREEZER_MAY_NOT,
    HOLD_CHANGES,
    MACHINE_MAY_NOT,
    Row,
)
from tests.e2e.guard.cluster import POLICIES, Guarded
from tests.e2e.guard.objects import full, held, machine
from tests.e2e.guard.webhooks import KINDS, REJECTED_WEBHOOKS, configuration
from tests.e2e.kubectl_user import refusal
from tests.e2e.namespace import Namespace, Object

pytestmark = pytest.mark.xdist_group("guard")


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_pass_type_checking(guarded: Guarded, policy: str) -> None:
    def checked() -> Object:
        text = guarded.plane.kubectl("get", "validatingadmissionpolicy", policy, "-o", "json")
        manifest: Object = json.loads(text)
        status = manifest.get("status", {})
        current = status.get("observedGeneration") == manifest["metadata"]["generation"]
        return status if current and "typeChecking" in status else {}

    ns = Namespace(guarded.plane, "default")
    warnings = ns.eventually(checked)["typeChecking"].get("expressionWarnings", [])
    if os.environ.get(versions.VARIABLE, versions.NEWEST) != versions.NEWEST:
        # older type checkers mistake the field for a reserved word of CEL; evaluation does not
        warnings = [
            warning
            for warning in warnings
            if "undefined field 'namespace'" not in warning["warning"]
        ]
    assert warnings == []


def test_applying_the_manifests_again_changes_nothing(guarded: Guarded) -> None:
    for folder in ("rbac", "guard"):
        lines = guarded.plane.kubectl("apply", "-k", str(MANIFESTS / folder)).splitlines()
        assert [line for line in lines if not line.endswith(" unchanged")] == []


@pytest.mark.parametrize(
    ("policy", "name", "changes"),
    [
        (pod_policies.HOLD, "held", HOLD_CHANGES),
        (pod_policies.CONTROLLER_PODS, "full", CONTROLLER_MAY_NOT),
        (CONTROLLER_VMS, "vm", MACHINE_MAY_NOT),
        (FREEZE_POLICY, "namespace", FREEZER_MAY_NOT),
    ],
    ids=["hold", "pods", "vms", "freeze"],
)
def test_changes_are_permitted_without_the_policy(
    guarded: Guarded, ns: Namespace, policy: str, name: str, changes: Mapping[str, Row]
) -> None:
    ns.apply(held("held"), full("full"), machine("vm"))
    for command in ("annotate", "label"):
        ns.kubectl(command, "namespace", ns.namespace, "team=a")
    users = {"held": "jane", "namespace": "fred"}
    actor = guarded.user(ns, users[name]) if name in users else guarded.controller(ns)
    kind = name if name in {"vm", "namespace"} else "pod"
    name = ns.namespace if name == "namespace" else name
    with guarded.without_binding(ns, policy):
        messages = {
            key: refusal(actor.patch, name, operations, kind=kind)
            for key, (operations, _) in changes.items()
        }
        assert messages == dict.fromkeys(changes, "")


def test_controller_may_register_any_webhook_without_the_policy(
    guarded: Guarded, ns: Namespace
) -> None:
    controller = guarded.controller(ns)
    with guarded.without_binding(ns, pod_policies.CONTROLLER_WEBHOOKS):
        manifests = [configuration(KINDS[0], **change) for change, _ in REJECTED_WEBHOOKS.values()]
        assert refusal(controller.create, *manifests) == ""


def test_guard_check_detects_missing_policies(guarded: Guarded) -> None:
    ns = guarded.ns()
    ns.apply(held("probed"))
    with closing(Cluster.connect(guarded.token_kubeconfig)) as api:
        assert guard_check.refuses(api, ns.namespace) is True
        with (
            guarded.without_binding(ns, pod_policies.CONTROLLER_PODS),
            guarded.without_binding(ns, pod_policies.APPROVAL),
        ):
            assert guard_check.refuses(api, ns.namespace) is False
