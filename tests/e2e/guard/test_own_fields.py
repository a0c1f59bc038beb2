"""Nobody may add Holdfast's fields to a pod where the webhook is not called."""

import json
from typing import Any

import pytest

from tests.e2e.guard.changes import remove, write
from tests.e2e.guard.cluster import Guarded
from tests.e2e.kubectl_user import refusal
from tests.e2e.namespace import Namespace, pod

pytestmark = pytest.mark.xdist_group("guard")

MESSAGE = "only Holdfast adds finalizers, annotations and labels under holdfast.dev/ to a pod"


@pytest.mark.parametrize("subresource", [[], ["--subresource=status"]], ids=["pod", "status"])
def test_finalizer_cannot_be_added(guarded: Guarded, ns: Namespace, subresource: list[str]) -> None:
    ns.apply(pod("p"))
    ns.kubectl("create", "role", "status", "--verb=get,patch", "--resource=pods/status")
    ns.kubectl("create", "rolebinding", "status", "--user=jane", "--role=status")
    jane = guarded.user(ns, "jane")

    add = [write("/metadata/finalizers", ["holdfast.dev/sticky"])]
    assert MESSAGE in refusal(jane.patch, "p", add, *subresource)
    jane.patch("p", [write("/metadata/finalizers", ["a.io/b"])], *subresource, dry_run=False)
    jane.patch("p", [remove("/metadata/finalizers/0")], *subresource, dry_run=False)


@pytest.mark.parametrize("path", ["pods/p/binding", "bindings"])
@pytest.mark.parametrize("field", ["annotations", "labels"])
def test_binding_cannot_set_holdfasts_fields(ns: Namespace, path: str, field: str) -> None:
    ns.apply(pod("p", schedulingGates=[{"name": "a.io/b"}]))

    def bound(entries: dict[str, str]) -> str:
        binding: Any = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "p", "namespace": ns.namespace, field: entries},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
        }
        url = f"/api/v1/namespaces/{ns.namespace}/{path}"
        create = ("create", "--raw", url, "-f", "-")
        return refusal(lambda: ns.kubectl(*create, stdin=json.dumps(binding)))

    assert MESSAGE in bound({"holdfast.dev/pace": "jvm"})
    assert MESSAGE not in bound({"team": "a"})
