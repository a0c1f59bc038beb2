"""How Argo CD and Flux treat the objects that Holdfast writes to, emulated with kubectl.

Argo CD applies client-side, as kubectl does, or server-side. Flux first takes over all fields that
were written with kubectl, then applies server-side. Both force conflicts and reapply periodically.
"""

import json
from functools import reduce
from typing import Any

import pytest
import yaml

from holdfast.webhook.kube.patching import FIELD_MANAGER
from tests.e2e.accounts import MANIFESTS
from tests.e2e.cli.commands import CRDS, Cli
from tests.e2e.installed import KINDS, Installation, empty_configurations
from tests.e2e.namespace import Object

pytestmark = pytest.mark.xdist_group("installed")

REGISTRATION = MANIFESTS / "base" / "registration.yaml"
ARGO, FLUX = "argocd-controller", "kustomize-controller"
SERVER_SIDE = ("--server-side", "--force-conflicts")
RECORD = "holdfast.dev/sticky-node"


@pytest.fixture(scope="module")
def running(installed: Installation) -> Installation:
    """The installation with VM kinds, and with new webhook configurations."""
    installed.kubectl("delete", ",".join(KINDS), "holdfast")
    installed.apply(*empty_configurations())
    installed.ready()
    installed.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(CRDS))
    installed.ns.definitions_established()
    return installed


def managed(installed: Installation, kind: str, name: str) -> list[Object]:
    arguments = ("get", kind, name, "--show-managed-fields", "-o", "json")
    entries = json.loads(installed.ns.kubectl(*arguments))["metadata"]["managedFields"]
    return list(entries)


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    common = {key: merged(first[key], second[key]) for key in first.keys() & second.keys()}
    return {**first, **second, **common}


def take_over(installed: Installation, kind: str, name: str) -> None:
    """Make Flux the owner of fields written with kubectl, so that its next apply reverts them."""
    entries = managed(installed, kind, name)
    flux_entries = [entry for entry in entries if entry["manager"].startswith(("kubectl", FLUX))]
    fields: dict[str, Any] = reduce(merged, (entry["fieldsV1"] for entry in flux_entries), {})
    flux_entry = {**flux_entries[0], "manager": FLUX, "operation": "Apply", "fieldsV1": fields}
    value = [flux_entry, *(entry for entry in entries if entry not in flux_entries)]
    patch = json.dumps([{"op": "replace", "path": "/metadata/managedFields", "value": value}])
    installed.ns.kubectl("patch", kind, name, "--type=json", "-p", patch)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((f"--field-manager={ARGO}",), id="Argo CD"),
        pytest.param((*SERVER_SIDE, f"--field-manager={ARGO}"), id="Argo CD, server-side"),
        pytest.param((*SERVER_SIDE, f"--field-manager={FLUX}"), id="Flux"),
    ],
)
def test_applying_the_manifests_does_not_conflict_with_the_controller(
    running: Installation, arguments: tuple[str, ...]
) -> None:
    before = running.webhooks()
    versions = []
    for _ in range(3):
        for kind in KINDS:
            if FLUX in arguments[-1]:
                take_over(running, kind, "holdfast")
        running.plane.kubectl("apply", *arguments, "-f", str(REGISTRATION))
        versions.append(
            [
                configuration["metadata"]["resourceVersion"]
                for configuration in running.configurations()
            ]
        )
    assert running.webhooks() == before
    assert versions[1] == versions[2]
    for kind in KINDS:
        writers = [
            entry["manager"]
            for entry in managed(running, kind, "holdfast")
            if "f:webhooks" in entry["fieldsV1"]
        ]
        assert writers == [FIELD_MANAGER]


def test_flux_reverts_kubectls_vm_annotation_but_not_holdfasts(
    running: Installation,
) -> None:
    metadata = {"name": "db", "annotations": {"team": "a"}}
    kind = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine"}
    text = yaml.safe_dump({**kind, "metadata": metadata})

    def record_after_apply() -> Any:
        take_over(running, "vm", "db")
        options = (*SERVER_SIDE, f"--field-manager={FLUX}", "-f", "-")
        running.ns.kubectl("apply", *options, stdin=text)
        return running.ns.get("vm", "db")["metadata"]["annotations"].get(RECORD)

    running.ns.kubectl("apply", *SERVER_SIDE, f"--field-manager={FLUX}", "-f", "-", stdin=text)
    Cli(running.plane.kubeconfig, running.ns.namespace).output("sticky", "set", "db", "node-1")
    assert [record_after_apply(), record_after_apply()] == ["node-1", "node-1"]
    running.ns.kubectl("annotate", "vm", "db", f"{RECORD}=node-2", "--overwrite")
    assert record_after_apply() is None
    option = "--field-manager=an-admin"
    running.ns.kubectl("annotate", "vm", "db", f"{RECORD}=node-2", "--overwrite", option)
    assert record_after_apply() == "node-2"
