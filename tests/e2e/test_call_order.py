"""Delays that other admission plugins add to a pod at creation."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane import versions
from controlplane.errors import ControlPlaneError
from holdfast.webhook.registration.configurations import GROUP
from tests.e2e.foreign_webhook import other_webhook
from tests.e2e.installed import KINDS, Installation, installation
from tests.e2e.manifests import built
from tests.e2e.namespace import Namespace, Object, gates, pod

pytestmark = pytest.mark.xdist_group("call-order")

LATER = "m-adds-a-delay"
"""Name of a webhook that is called after `holdfast` and before `zz-holdfast`."""
DELAY = {"delay": "3600"}
GATE = "holdfast.dev/delay"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("installed")) as new_installation:
        new_installation.replica()
        new_installation.controller()
        new_installation.ready()
        yield new_installation


def add_delay(manifest: Object) -> list[Object]:
    annotations = {**manifest["metadata"].get("annotations", {}), **DELAY}
    return [{"op": "add", "path": "/metadata/annotations", "value": annotations}]


def outcome(ns: Namespace) -> list[str] | str:
    """Create a plain pod in a dry run; return its gates, or the rejection message."""
    try:
        (stored,) = ns.apply(pod("plain"), dry_run=True)
    except ControlPlaneError as exc:
        return str(exc)
    return list(gates(stored))


def test_delay_added_by_a_mutating_policy_is_applied(installed: Installation) -> None:
    ns, plane = installed.ns, installed.plane
    resources = plane.kubectl("api-resources", f"--api-group={GROUP}", "-o", "name")
    if "mutatingadmissionpolicies" not in resources:
        assert os.environ.get(versions.VARIABLE, versions.NEWEST) != versions.NEWEST
        pytest.skip("this API server has no MutatingAdmissionPolicy")
    kind: dict[str, Any] = {"apiVersion": f"{GROUP}/v1", "metadata": {"name": LATER}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    change = "Object{metadata: Object.metadata{annotations: {'delay': '3600'}}}"
    policy = {
        "matchConstraints": {"resourceRules": [{**rule, "resources": ["pods"]}]},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": change}}
        ],
    }
    objects = [
        {**kind, "kind": "MutatingAdmissionPolicy", "spec": policy},
        {**kind, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": LATER}},
    ]
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    ns.eventually(lambda: outcome(ns) == [GATE])
    for manifest in reversed(objects):
        plane.kubectl("delete", manifest["kind"], LATER)
    ns.eventually(lambda: outcome(ns) == [])


def test_delay_from_other_webhook_requires_calling_holdfast_last(
    installed: Installation, tmp_path: Path
) -> None:
    ns, plane = installed.ns, installed.plane
    folder = tmp_path / "kustomization"
    folder.mkdir()
    objects = built(folder, ["call-last"])
    with other_webhook(plane, LATER, add_delay):
        ns.eventually(lambda: "call Holdfast last" in outcome(ns))

        installed.controllers[0].stop()
        kinds = ("ClusterRole", "ValidatingAdmissionPolicy")
        applied = [
            manifest
            for manifest in objects
            if manifest["kind"] in kinds or manifest["kind"].endswith("WebhookConfiguration")
        ]
        plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(applied))
        (argument,) = (
            argument
            for manifest in objects
            if manifest["kind"] == "Deployment"
            for argument in manifest["spec"]["template"]["spec"]["containers"][0]["args"]
            if "webhook-configuration" in argument
        )
        installed.controller(argument)
        ns.eventually(lambda: outcome(ns) == [GATE])
        plane.kubectl("delete", ",".join(KINDS), "holdfast")
        time.sleep(1.0)  # the API server takes a moment to notice
        assert outcome(ns) == [GATE]
