"""Uninstallation; a 404 that is not from Kubernetes is never taken for a deleted object."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.webhook.cli.remnants import typed
from holdfast.webhook.cli.removal import Removal
from holdfast.webhook.errors import ApiStatusError, CommandError
from holdfast.webhook.kube import discovery, listing
from holdfast.webhook.kube.api import pod_path
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.registration import configurations
from tests.support.builders import Document, held, make_pod
from tests.support.fakes import ANNOTATION_BYTES, FakeApi, failing, raising, status_error
from tests.support.served import ServedApi
from tests.support.vm_builders import make_launcher

NAMESPACE = "holdfast-system"
DEPLOYMENT = api_path("apps/v1", "deployments", NAMESPACE, "holdfast-controller")
MACHINES = f"{kubevirt.API_PATH}/virtualmachines"
VM = kubevirt.vm_path("shop", "db")
RECORDED = {"name": "db", "namespace": "shop", "annotations": {kubevirt.STICKY_NODE: "node-1"}}
Step = Callable[[Removal], Any]


def installed() -> FakeApi:
    """Create an API with a recorded VM and no other object."""
    api = FakeApi()
    api.put(api_path("v1", "configmaps", NAMESPACE), {"metadata": {}, "items": []})
    for path in configurations.paths(""):
        api.put(path.rstrip("/"), {"metadata": {}, "items": []})
    api.put(MACHINES, {"metadata": {}, "items": [{"metadata": RECORDED}]})
    serve_workloads(api)
    return api


def serve_workloads(api: FakeApi) -> None:
    api.kinds |= {
        "/api/v1/persistentvolumeclaims",
        "/apis/batch/v1/cronjobs",
        *(f"/apis/apps/v1/{kind}" for kind in ("statefulsets", "deployments", "daemonsets")),
    }


def missing(_method: str, path: str) -> None:
    if not path.endswith("webhookconfigurations"):  # an empty list still exists
        raise status_error(404, reason="NotFound")


STEPS: dict[str, Step] = {
    "the webhook configurations": lambda removal: removal.stop_asking(),
    "the controller": lambda removal: removal.stop_controller(),
    "the policies": lambda removal: removal.remove_rest(),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_proxy_404_aborts_a_step(step: Step) -> None:
    api = installed()
    not_found = status_error(404)

    def before(_method: str, _path: str) -> None:
        raise not_found

    api.on_request = before
    with pytest.raises(ApiStatusError) as caught:
        step(Removal(api, NAMESPACE, 1.0))

    assert caught.value is not_found
    assert len(api.requests) == 1


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_missing_objects_are_neither_an_error_nor_reported(step: Step) -> None:
    api = installed()
    api.on_request = missing
    removal = Removal(api, NAMESPACE, 1.0)
    step(removal)
    assert removal.done == []


def test_all_webhook_configurations_except_dev_are_removed() -> None:
    api = installed()
    for path in configurations.paths(""):
        items = [{"metadata": {"name": name}} for name in ("holdfast-dev", "zz-holdfast")]
        api.put(path.rstrip("/"), {"metadata": {}, "items": items})
    api.on_request = missing
    Removal(api, NAMESPACE, 1.0).stop_asking()

    deleted = [path for method, path in api.requests if method == "DELETE"]
    assert deleted == configurations.paths("holdfast") + configurations.paths("zz-holdfast")


def test_record_that_cannot_be_removed_is_reported_unless_its_vm_is_deleted() -> None:
    api = installed()
    api.on_request = failing(VM, reason="NotFound")
    Removal(api, NAMESPACE, 1.0).forget_vms()
    assert ("PATCH", VM) in api.requests

    api.on_request = failing(VM)
    with pytest.raises(
        CommandError,
        match=r"^could not remove the recorded node of 1 VM, such as shop/db \(HTTP "
        r"404: scripted\); run this command again$",
    ):
        Removal(api, NAMESPACE, 1.0).forget_vms()


ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/holdfast-controller"
NOT_RUNNING = (
    "and no controller is running in holdfast-system; start it (kubectl -n holdfast-system scale "
    "deployment holdfast-controller --replicas=1), or uninstall with "
)
LANDED = make_launcher(finalizers=[kubevirt.STICKY], node="node-1")
RUNNING = make_pod(namespace=NAMESPACE, labels={"app.kubernetes.io/component": "controller"})


@pytest.mark.parametrize(
    ("pod", "step", "message"),
    [
        pytest.param(
            held(),
            lambda removal: removal.wait_for_releases(),
            f"held pods wait for their due time (default/web-0), {NOT_RUNNING}--release now",
            id="held",
        ),
        pytest.param(
            LANDED,
            lambda removal: removal.record_landings(purge=False),
            f"the nodes of default/virt-launcher-vm-abcde are not recorded, {NOT_RUNNING}--purge, "
            "which removes all recorded nodes",
            id="not recorded",
        ),
        pytest.param(
            RUNNING,
            lambda removal: removal.stop_controller(),
            "after 0 s the controller has not stopped; see kubectl get pods -n holdfast-system",
            id="not stopped",
        ),
        pytest.param(
            held(),
            lambda removal: removal.clear_pods(),
            "could not remove the gates and finalizers of Holdfast from 1 pod, such as "
            "default/web-0 (HTTP 403: scripted); run this command again",
            id="not cleared",
        ),
    ],
)
def test_unfinished_step_says_what_to_do(pod: Document, step: Step, message: str) -> None:
    api = installed()
    for path in (DEPLOYMENT, ROLE):
        api.put(path, {"metadata": {}})
    api.put_pod(pod)

    def forbid_patches(method: str, path: str) -> None:
        if method == "PATCH" and path != DEPLOYMENT:
            raise status_error(403)

    api.on_request = forbid_patches
    with pytest.raises(CommandError) as caught:
        step(Removal(api, NAMESPACE, 0.0))

    assert str(caught.value) == message


def test_cluster_without_kubevirt_has_no_records() -> None:
    api = installed()
    api.on_request = failing(MACHINES, kubevirt.API_PATH)
    api.put(discovery.GROUPS, {"groups": [{"name": "apps"}]})
    Removal(api, NAMESPACE, 1.0).forget_vms()

    assert api.requests[-1] == ("GET", discovery.GROUPS)


@pytest.mark.parametrize("also", [[], [kubevirt.API_PATH]], ids=["VMs", "KubeVirt API"])
def test_vms_that_cannot_be_listed_are_an_error(also: list[str]) -> None:
    api = installed()
    api.on_request = failing(MACHINES, *also)
    api.put(kubevirt.API_PATH, {"resources": [{"name": "virtualmachines"}]})
    api.put(discovery.GROUPS, {"groups": [{"name": "apps"}, {"name": "kubevirt.io"}]})
    with pytest.raises(ApiStatusError):
        Removal(api, NAMESPACE, 1.0).forget_vms()


def test_remove_made_deletes_only_objects_made_by_the_controller() -> None:
    api = installed()
    api.on_request = missing
    Removal(api, NAMESPACE, 0.0).remove_made()
    namespace_path = f"namespaces/{NAMESPACE}"
    assert api.requests == [
        ("DELETE", f"/api/v1/{namespace_path}/secrets/holdfast-ca"),
        ("DELETE", f"/api/v1/{namespace_path}/secrets/holdfast-tls"),
        ("DELETE", f"/apis/coordination.k8s.io/v1/{namespace_path}/leases/holdfast-controller"),
    ]


def test_gated_pods_created_during_uninstall_are_ignored() -> None:
    """Otherwise a user could block the uninstallation."""
    api = installed()
    api.put(DEPLOYMENT, {"metadata": {}, "status": {"availableReplicas": 1}})
    api.put_pod(held(name="first", uid="first"))
    lists = itertools.count(1)

    def create(method: str, path: str) -> None:
        if (method, path) == ("GET", listing.pods_path("")):
            number = next(lists)
            api.put_pod(held(name=f"theirs-{number}", uid=f"theirs-{number}"))
            if number == 1:
                api.delete(pod_path("default", "first"))

    api.on_response = create
    removal = Removal(api, NAMESPACE, 0.0)
    removal.wait_for_releases()
    removal.clear_pods()
    assert next(lists) == 5


SHOP = api_path("v1", "namespaces", name="shop")
BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/holdfast-controller"
BOUND = [
    {"kind": "User", "name": "jane"},
    {"kind": "ServiceAccount", "name": "holdfast-controller", "namespace": NAMESPACE},
]
CALLED = {"clientConfig": {"service": {"name": "holdfast-webhook", "namespace": NAMESPACE}}}
REGISTERED = {"metadata": {}, "items": [{"metadata": {"name": "holdfast"}, "webhooks": [CALLED]}]}


@pytest.mark.parametrize(
    "path",
    [BINDING, *(path.rstrip("/") for path in configurations.paths(""))],
    ids=["bound", "mutating", "validating"],
)
def test_namespace_without_the_installation_is_rejected(path: str) -> None:
    api = installed()
    api.put(path, {"subjects": BOUND} if path == BINDING else REGISTERED)
    with pytest.raises(CommandError) as caught:
        Removal(api, "shop", 1.0).require_namespace(prepare=False)
    assert str(caught.value) == (
        "Holdfast is installed in namespace holdfast-system, not in shop; add --namespace "
        "holdfast-system"
    )
    Removal(api, NAMESPACE, 1.0).require_namespace(prepare=False)


def test_uninstall_rejects_wrong_namespace_before_any_change(cluster: ServedApi) -> None:
    cluster.api.put(BINDING, {"subjects": BOUND})
    cluster.api.put(SHOP, {"metadata": {"labels": {"app.kubernetes.io/name": "holdfast"}}})
    result = cluster.run("uninstall", "--release", "now", "--yes", "-n", "shop", code=1)
    assert "Holdfast is installed in namespace holdfast-system, not in shop" in result.stderr
    assert cluster.api.writes() == []


def test_chart_hook_reads_no_bindings() -> None:
    api = installed()
    Removal(api, NAMESPACE, 1.0).require_namespace(prepare=True)
    assert BINDING not in [path for _, path in api.requests]


@pytest.mark.parametrize(
    ("metadata", "deployment", "is_deleted"),
    [
        ({}, "", False),
        ({"labels": {"app.kubernetes.io/name": "shop"}}, "web", False),
        ({"labels": {"app.kubernetes.io/name": "holdfast"}}, "", True),
        ({}, "holdfast-webhook", True),
        ({}, "holdfast-controller", True),
        ({"deletionTimestamp": "2026-03-01T12:00:00Z", "finalizers": ["a"]}, "", True),
    ],
    ids=["no trace", "another app", "labelled", "webhook", "controller", "interrupted"],
)
def test_only_a_holdfast_namespace_is_deleted(
    metadata: Document, deployment: str, is_deleted: bool
) -> None:
    api = installed()
    api.put(SHOP, {"metadata": metadata})
    api.put(api_path("apps/v1", "deployments", "shop", deployment), {"metadata": {}})
    api.put(ROLE, {"metadata": {}})
    Removal(api, "shop", 1.0).remove_rest()
    assert (("DELETE", SHOP) in api.requests) is is_deleted
    assert ROLE not in api.objects


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/v1/namespaces/shop/persistentvolumeclaims", "persistentvolumeclaim/data"),
        ("/apis/apps/v1/namespaces/shop/deployments", "deployment.apps/data"),
        ("/api/v1/namespaces/shop/pods", "pod/data"),
    ],
)
def test_namespace_with_foreign_objects_is_rejected(path: str, name: str) -> None:
    api = installed()
    api.put(SHOP, {"metadata": {"labels": {"app.kubernetes.io/name": "holdfast"}}})
    deployment = {"metadata": {"labels": {"app.kubernetes.io/name": "holdfast"}}}
    api.put("/apis/apps/v1/namespaces/shop/deployments/holdfast-webhook", deployment)
    Removal(api, "shop", 1.0).require_namespace(prepare=False)
    api.put(f"{path}/data", {"metadata": {}})
    with pytest.raises(CommandError, match=rf"namespace shop has {name}, too, .*--prepare"):
        Removal(api, "shop", 1.0).require_namespace(prepare=False)
    Removal(api, "shop", 1.0).require_namespace(prepare=True)


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        ((), "and delete namespace holdfast-system?"),
        (("--prepare",), "(namespace holdfast-system)?"),
    ],
)
def test_confirmation_prompt_names_the_namespace(
    cluster: ServedApi, arguments: tuple[str, ...], question: str
) -> None:
    serve_workloads(cluster.api)
    cluster.api.put(DEPLOYMENT, {"metadata": {"labels": {"app.kubernetes.io/name": "holdfast"}}})
    cluster.api.put(api_path("v1", "namespaces", name=NAMESPACE), {"metadata": {}})
    result = cluster.run("uninstall", "--release", "now", *arguments, code=1)
    assert question in result.stderr


def test_thousands_of_gates_and_finalizers_are_removed() -> None:
    """The API server rejects a JSON Patch of more than 10,000 operations."""
    names = [f"holdfast.dev/{number}" for number in range(11_000)]
    api = installed()
    api.put_pod(make_pod(name="gated", uid="gated", gates=[*names, "a.io/b"]))
    api.put_pod(make_pod(name="kept", uid="kept", finalizers=["a.io/b", *names, *names]))

    Removal(api, NAMESPACE, 0.0).clear_pods()

    assert max(len(json.loads(body)) for body in api.bodies) < 10
    assert api.gates(("default", "gated")) == ["a.io/b"]
    assert api.pods["default", "kept"]["metadata"]["finalizers"] == ["a.io/b"]


def test_pod_with_full_annotations_is_released() -> None:
    api = installed()
    api.put_pod(held({"filled": "x" * (ANNOTATION_BYTES - 10)}))

    Removal(api, NAMESPACE, 0.0).clear_pods()

    assert api.gates(("default", "web-0")) == []


def test_finalizers_added_during_uninstall_are_ignored() -> None:
    api = installed()
    api.put(DEPLOYMENT, {"metadata": {}, "status": {"availableReplicas": 1}})
    api.put(ROLE, {"metadata": {}})
    numbers = itertools.count(1)

    def launcher(name: str, **fields: Any) -> Document:
        fields = {"labels": {"kubevirt.io": "virt-launcher"}, **fields}
        return make_pod(name=name, uid=name, node="n1", finalizers=[kubevirt.STICKY], **fields)

    def record(pod: Document) -> None:
        pod["metadata"]["finalizers"] = []

    def create(method: str, path: str) -> None:
        if (method, path) == ("GET", listing.pods_path("")):
            api.put_pod(launcher(f"theirs-{(number := next(numbers))}"))
            if number == 3:
                for name in ("vm", "theirs-1"):
                    api.change(pod_path("default", name), record)

    api.put_pod(launcher("other", labels={}))
    removal = Removal(api, NAMESPACE, 5.0)
    removal.record_landings(purge=False)
    assert len(api.requests) == 1  # no pod of a VM

    api.put_pod(launcher("vm"))
    api.on_response = create
    removal.record_landings(purge=False)
    assert next(numbers) > 3


def test_holdfast_dev_counts_as_a_running_controller() -> None:
    api = installed()
    api.put(configurations.paths("holdfast-dev")[0], {"metadata": {}})
    Removal(api, NAMESPACE, 1.0)._require_controller("pods wait", otherwise="release them")
    with pytest.raises(CommandError, match="there is no Deployment holdfast-controller"):
        Removal(FakeApi(), NAMESPACE, 1.0)._require_controller("pods wait", otherwise="release")


def test_dry_run_reports_each_object(capsys: pytest.CaptureFixture[str]) -> None:
    api = FakeApi(held({"delay": "1h"}))
    for path in ("/api/v1/namespaces/n", *configurations.paths("holdfast")):
        api.put(path, {"metadata": {}})
    api.put(DEPLOYMENT, {"metadata": {}})
    removal = Removal(api, NAMESPACE, 1.0, " (dry run)")
    removal.stop_controller()
    removal.clear_pods()
    removal._delete("all", ["/api/v1/namespaces/n", configurations.paths("holdfast")[0]])
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "deployment.apps/holdfast-controller scaled (dry run)",
        "pod default/web-0 released (dry run)",
        "namespace/n deleted (dry run)",
        "mutatingwebhookconfiguration.admissionregistration.k8s.io/holdfast deleted (dry run)",
    ]
    assert captured.err == ""
    assert [f"{text} (dry run)" for text in removal.done] == captured.out.splitlines()
    assert typed("/apis/a.io/v1/policies/p") == "policy.a.io/p"


def test_wait_names_the_pods_without_a_due_time(capsys: pytest.CaptureFixture[str]) -> None:
    gates = {"web": "delay", "ask": "approval", "job": "after"}
    pods = [
        held(name=name, gates=[f"holdfast.dev/{gate}"], annotations={"delay": "1h"})
        for name, gate in gates.items()
    ]
    api = FakeApi(*pods)
    api.put(DEPLOYMENT, {"status": {"availableReplicas": 1}})
    Removal(api, NAMESPACE, 1.0, " (dry run)").wait_for_releases()
    assert capsys.readouterr().err == (
        "waiting for 3 held pods (default/web, default/ask, default/job); 2 of them have no due "
        "time (default/ask, default/job): approve or release them, or use --release now\n"
    )


def test_dry_run_does_not_wait(capsys: pytest.CaptureFixture[str]) -> None:
    api = FakeApi(held({"delay": "1h"}, finalizers=["holdfast.dev/sticky"]))
    api.put(DEPLOYMENT, {"status": {"availableReplicas": 1}})
    removal = Removal(api, NAMESPACE, 600.0, " (dry run)")
    removal.wait_for_releases()
    removal._wait_until(lambda: False, "nothing happens")
    removal.clear_pods(waited=True)
    assert capsys.readouterr().out == ""  # the pod would have been released
    api.before("PATCH", raising(status_error(403)))
    removal.clear_pods()
    assert api.gates(("default", "web-0"))
