"""What is done to KubeVirt's own objects before they are created."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from controlplane.kubevirt import objects

CA = b"PEM"
BUNDLE = b64encode(CA).decode()


def make(kind: str, **rest: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "it"}, **rest}


@pytest.mark.parametrize("kind", ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"])
def test_webhooks_are_called_on_this_machine(kind: str) -> None:
    service = {"namespace": "kubevirt", "name": "virt-api", "path": "/x"}
    given = make(kind, webhooks=[{"name": "a", "clientConfig": {"service": service}}])
    (webhook,) = objects.served_at(given, 8443, CA)["webhooks"]
    assert webhook["clientConfig"] == {"service": {**service, "port": 8443}, "caBundle": BUNDLE}
    assert given["webhooks"][0]["clientConfig"] == {"service": service}


def test_an_aggregated_api_is_called_on_this_machine() -> None:
    given = make("APIService", spec={"group": "g", "service": {"name": "virt-api"}})
    spec = objects.served_at(given, 8443, CA)["spec"]
    assert spec["service"] == {"name": "virt-api", "port": 8443}
    assert spec["caBundle"] == BUNDLE


@pytest.mark.parametrize(
    ("kind", "namespace", "expected"),
    [
        pytest.param("Namespace", None, "/api/v1/namespaces", id="core"),
        pytest.param(
            "Role", "a", "/apis/rbac.authorization.k8s.io/v1/namespaces/a/roles", id="namespaced"
        ),
        pytest.param(
            "APIService", None, "/apis/apiregistration.k8s.io/v1/apiservices", id="plural"
        ),
    ],
)
def test_where_an_object_is_created(kind: str, namespace: str | None, expected: str) -> None:
    given = make(kind)
    if namespace:
        given["metadata"]["namespace"] = namespace
    assert objects.folder(given) == expected


def test_a_definition_adds_each_version_that_is_served() -> None:
    versions = [{"name": "v1", "served": True}, {"name": "v1alpha1", "served": False}]
    spec = {"group": "kubevirt.io", "names": {"plural": "vms"}, "versions": versions}
    assert objects.resources(make(objects.DEFINITION, spec=spec)) == {
        ("/apis/kubevirt.io/v1", "vms")
    }
