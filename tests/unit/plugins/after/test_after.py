from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.webhook.errors import ConfigurationError, InvalidValueError
from holdfast.webhook.framework.plugin import Allow, Code, Reject, Result, Wait
from holdfast.webhook.kube.lookup import ClusterLookup
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.annotations import NOTHING_ASKED
from holdfast.webhook.model.edits import AddGate
from holdfast.webhook.model.objects import ObjectKey, Pod
from holdfast.webhook.plugins.after import conditions as after_conditions
from holdfast.webhook.plugins.after import objects as after_objects
from holdfast.webhook.plugins.after import targets as after_targets
from holdfast.webhook.plugins.after.conditions import WaitedObject
from holdfast.webhook.plugins.after.plugin import After, AfterArgs, CustomKind
from holdfast.webhook.plugins.after.targets import AFTER, BUILT_IN
from holdfast.webhook.policies import roles
from tests.support.after_values import OBJECTS, BadObject
from tests.support.builders import call, handle_with, make_pod, make_profiles
from tests.support.fakes import FakeApi, raising, status_error
from tests.support.vm_builders import owner_of

GATE = "holdfast.dev/after"
KINDS = after_targets.by_name(BUILT_IN[kind] for kind in AfterArgs().kinds)
MIGRATION: Any = {
    "labels": {kubevirt.MIGRATION_JOB: "7d1f"},
    "owners": [owner_of(kubevirt.VMI, "vm", "vmi-uid")],
}
BY_KUBEVIRT = {"userInfo": {"username": "system:serviceaccount:kubevirt:kubevirt-controller"}}


@pytest.mark.parametrize("row", OBJECTS, ids=lambda row: ascii(row.value[:30]))
def test_value(row: Any) -> None:
    if not isinstance(row.outcome, BadObject):
        assert ", ".join(map(str, after_targets.parse(row.value, KINDS))) == row.outcome
        return
    with pytest.raises(InvalidValueError, match=row.outcome) as caught:
        after_targets.parse(row.value, KINDS)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        pytest.param("deploy/web:Ready", "did you mean deployment?", id="short"),
        pytest.param("Job/" + "a" * 250, "did you mean job? Otherwise", id="upper case"),
        pytest.param("cm/settings", '"cm": use one of', id="kind that is not allowed"),
    ],
)
def test_kubectl_short_name_gets_a_hint(value: str, hint: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        after_targets.parse(value, KINDS)
    assert hint in str(caught.value)
    assert len(str(caught.value)) < 250


# --- admission ---------------------------------------------------------------------------------


def review(point: str, pod: Any, **fields: Any) -> Result:
    return call(After(AfterArgs()), point, pod, **fields)


def waiting_pod(value: str = "job/migrate", **fields: Any) -> Any:
    return make_pod({AFTER: value}, **fields)


@pytest.mark.parametrize(
    ("pod", "mutated", "validated", "by"),
    [
        pytest.param(waiting_pod(), "AddGate", "is missing although", {}, id="held"),
        pytest.param(waiting_pod(gates=[GATE]), "AddGate", "", {}, id="gated"),
        pytest.param(waiting_pod(node="n"), "nodeName", "", {}, id="bound"),
        pytest.param(waiting_pod("x"), "invalid object", "invalid object", {}, id="invalid"),
        pytest.param(waiting_pod("pod/web-0"), "for itself", "for itself", {}, id="itself"),
        pytest.param(waiting_pod(**MIGRATION), "", "", BY_KUBEVIRT, id="migration target"),
    ],
)
def test_new_pod(pod: Any, mutated: str, validated: str, by: Any) -> None:
    mutation, validation = review("mutate", pod, **by), review("validate", pod, **by)

    assert mutated in f"{mutation.edits}{mutation.warnings}{mutation.reason}"
    assert (mutation.code is Code.SUCCESS) == (mutated in {"AddGate", "nodeName"})
    assert (AddGate(GATE) in mutation.edits) == (mutated == "AddGate")
    assert validated in validation.reason
    assert (validation.code is Code.REJECT) == bool(validated)


ITSELF = "would wait for itself"


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("Deployment", "deployment/web", ITSELF),
        ("Deployment", "deployment/db", ""),
        ("Deployment", "x", "invalid object"),
        ("StatefulSet", "pod/web-0:PodScheduled", ITSELF),
        ("StatefulSet", "pod/web-x", ""),
        ("StatefulSet", "pod/db-0", ""),
        ("Deployment", "pod/web-0", ""),
    ],
)
def test_template(kind: str, value: str, reason: str) -> None:
    template = {"metadata": {"annotations": {AFTER: value}}, "spec": {}}
    workload = {"metadata": {"name": "web"}, "spec": {"template": template}}

    result = review("validate", workload, kind={"group": "apps", "version": "v1", "kind": kind})

    assert reason in result.reason
    assert (result.code is Code.REJECT) == bool(reason)


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("job/a:complete", "did you mean Complete?"),
        ("deployment/a:Ready", "use one such as Available, Progressing, ReplicaFailure"),
        ("job/a:FailureTarget", ""),
        ("pod/a:PodScheduled, pod/a:example.com/warm", ""),
        ("service/a, statefulset/a", ""),
    ],
)
def test_unknown_condition_gets_a_warning(value: str, advice: str) -> None:
    for operation in ("CREATE", "UPDATE"):
        result = review("validate", waiting_pod(value, gates=[GATE]), operation=operation)
        assert result.code is Code.SUCCESS
        assert len(result.warnings) == bool(advice)
        assert all(advice in warning and len(warning) < 256 for warning in result.warnings)


# --- objects -----------------------------------------------------------------------------------

ROLLED = {"observedGeneration": 2, "readyReplicas": 3, "updatedReplicas": 3}
NOT_UPDATED = {**ROLLED, "updatedReplicas": 0}
PARTITION = {"updateStrategy": {"rollingUpdate": {"partition": 1}}}
COUNTS = ("desiredNumberScheduled", "numberAvailable", "updatedNumberScheduled")


def ready(kind: str, **status: Any) -> Any:
    return {"status": {"conditions": [{"type": kind, "status": "True"}], **status}}


@pytest.mark.parametrize(
    ("target", "document", "met"),
    [
        ("job/x", ready("Complete"), True),
        ("job/x", ready("Failed"), False),
        ("job/x", {"status": {"conditions": [{"type": "Complete", "status": "False"}]}}, False),
        ("job/x", {"status": None}, False),
        ("pod/x:Warm", ready("Warm"), True),
        ("statefulset/x", {"spec": {"replicas": 3}, "status": ROLLED}, True),
        ("statefulset/x", {"spec": {"replicas": 4}, "status": ROLLED}, False),
        ("statefulset/x", {"status": NOT_UPDATED}, False),
        ("statefulset/x", {"spec": PARTITION, "status": NOT_UPDATED}, True),
        ("statefulset/x", {"status": {**ROLLED, "observedGeneration": 1}}, False),
        ("daemonset/x", {"status": {"desiredNumberScheduled": 1}}, False),
        ("daemonset/x", {"status": dict.fromkeys(["observedGeneration", *COUNTS], 2)}, True),
        ("service/x", {"endpoints": [{"conditions": {"ready": True}}]}, True),
        ("service/x", {"endpoints": [{"conditions": {}}]}, True),
        ("service/x", {"endpoints": [{"conditions": {"ready": False}}]}, False),
        ("service/x", {"endpoints": None}, False),
    ],
    ids=str,
)
def test_condition_of_an_object(target: str, document: Any, met: bool) -> None:
    (waited_target,) = after_targets.parse(target, KINDS)
    states: dict[ObjectKey, frozenset[str]] = {}

    key, _ = after_conditions.update(states, waited_target.kind, waited_object(document))

    assert key == ("default", "x")
    assert after_conditions.is_met(waited_target, states[key]) is met
    after_conditions.update(states, waited_target.kind, waited_object(document), deleted=True)
    assert not after_conditions.is_met(waited_target, states.get(key))


def test_conditions_of_a_custom_kind_are_bounded() -> None:
    kind = after_targets.WaitedKind("x", "a.io", "v1", "xs", "Ready", selectable=True)
    types = ["x" * 318, "Ready", *(f"C{n}" for n in range(10_000))]
    document = {
        "status": {"conditions": [{"type": condition, "status": "True"} for condition in types]}
    }
    states: dict[ObjectKey, frozenset[str]] = {}
    cache_size = after_conditions._shared.cache_info().currsize
    after_conditions.update(states, kind, waited_object(document))

    (state,) = states.values()
    assert len(state) == 101
    assert "Ready" in state
    assert max(map(len, state)) <= 317
    assert after_conditions._shared.cache_info().currsize == cache_size


def waited_object(document: Any, name: str = "x", service: str = "x") -> WaitedObject:
    labels = {"kubernetes.io/service-name": service}
    metadata = {"name": name, "namespace": "default", "generation": 2, "labels": labels}
    return msgspec.json.decode(
        msgspec.json.encode({"metadata": metadata, **document}), type=WaitedObject
    )


# --- waiting -----------------------------------------------------------------------------------


class FakeController:
    """A fake controller that is connected to an After plugin."""

    def __init__(self, **args: Any) -> None:
        self.now = 0.0
        self.rechecked: list[ObjectKey] = []
        self.handlers: dict[str, Any] = {}
        self.stopped: list[str] = []
        self.held: set[ObjectKey] = set()
        handle = handle_with(
            waiting=self, follow=self.follow, bounds_ms=lambda: (int(self.now * 1_000), 0)
        )
        self.plugin = After(AfterArgs(**args), handle)

    def follow(self, path: str, _kind: Any, handler: Any, **_: Any) -> Callable[[], None]:
        self.handlers[path] = handler
        return lambda: self.stopped.append(path)

    def recheck(self, key: ObjectKey, at_ms: int = 0) -> None:
        del at_ms
        self.rechecked.append(key)

    def get(self, key: ObjectKey) -> Any:
        return key if key in self.held else None

    def permit(self, value: str = "job/x", name: str = "web-0") -> Any:
        return self.plugin.permit(Pod.of(waiting_pod(value, name=name, uid=name, gates=[GATE])), 0)


JOBS, SLICES = "/apis/batch/v1/jobs", "/apis/discovery.k8s.io/v1/endpointslices"
WEB = ("default", "web-0")


def test_pod_waits_until_all_objects_are_ready() -> None:
    controller = FakeController()

    assert controller.permit("job/x, service/x") == Wait(
        None, "waits for job/x:Complete, service/x:Ready"
    )
    controller.handlers[JOBS].on_sync([waited_object({})])
    controller.handlers[SLICES].on_sync([])
    assert controller.rechecked == []
    controller.handlers[JOBS].on_update(waited_object(ready("Complete")))
    assert controller.rechecked == [WEB]
    assert controller.permit("job/x, service/x") == Wait(None, "waits for service/x:Ready")
    slices = [waited_object({"endpoints": [{}]}, name) for name in ("x-1", "x-2")]
    for endpoint_slice in slices:
        controller.handlers[SLICES].on_update(endpoint_slice)
    controller.handlers[SLICES].on_delete(slices[0])
    assert controller.rechecked == [WEB, WEB]
    assert controller.permit("job/x, service/x") == Allow()
    controller.handlers[JOBS].on_delete(waited_object({}))
    assert controller.rechecked == [WEB, WEB]  # it no longer waits for anything


def test_pod_is_indexed_for_a_few_objects_at_a_time() -> None:
    controller = FakeController()
    names = [f"x-{index}" for index in range(3 * after_objects.MAX_INDEXED)]
    value = ",".join(f"job/{name}" for name in names)
    controller.permit(value)
    handler = controller.handlers[JOBS]
    for index, name in enumerate(names):
        assert sum(map(len, handler.pods.values())) == after_objects.MAX_INDEXED
        handler.on_update(waited_object(ready("Complete"), name))
        assert len(controller.rechecked) == index + 1
        result = controller.permit(value)
    assert result == Allow()
    assert handler.pods == {}


def test_failed_job_and_unreadable_or_removed_kind_are_reported() -> None:
    controller = FakeController()
    controller.permit()
    handler = controller.handlers[JOBS]

    for _ in range(2):
        handler.on_unreadable("HTTP 403: no")
    assert controller.rechecked == [WEB]
    assert controller.permit() == Wait(None, "waits for job/x:Complete", "HTTP 403: no")
    handler.on_sync([waited_object(ready("Failed"))])
    assert controller.rechecked == [WEB, WEB]
    assert controller.permit() == Wait(None, "waits for job/x:Complete", "job/x has failed")
    handler.on_unreadable("jobs are not served")
    assert controller.rechecked == [WEB] * 3
    assert controller.permit() == Wait(None, "waits for job/x:Complete", "jobs are not served")
    handler.on_sync([waited_object(ready("Complete"))])
    assert controller.permit() == Allow()


def test_cluster_scoped_kind_is_reported() -> None:
    controller = FakeController(custom_kinds=(CustomKind(**CERTIFICATE, condition="Ready"),))
    value, path = "certificates.cert-manager.io/x", "/apis/cert-manager.io/v1/certificates"
    problem = Wait(None, f"waits for {value}:Ready", f"{path} is not namespaced")
    certificate = msgspec.convert({"metadata": {"name": "x"}}, WaitedObject)
    controller.permit(value)
    handler = controller.handlers[path]
    handler.on_sync([certificate])
    assert controller.rechecked == [WEB]
    assert controller.permit(value) == problem
    handler.on_sync([])
    assert controller.permit(value) == Wait(None, f"waits for {value}:Ready")
    handler.on_update(certificate)
    handler.on_update(certificate)
    assert controller.rechecked == [WEB] * 3
    assert controller.permit(value) == problem


def test_slice_moved_to_another_service_counts_only_there() -> None:
    controller = FakeController()
    value = "service/x, job/x"
    controller.permit(value)
    handler = controller.handlers[SLICES]
    handler.on_sync([waited_object({"endpoints": [{}]}, "x-1")])
    assert controller.permit(value) == Wait(None, "waits for job/x:Complete")
    handler.on_update(waited_object({"endpoints": [{}]}, "x-1", "y"))
    assert controller.rechecked == [WEB, WEB]
    assert controller.permit(value) == Wait(None, "waits for service/x:Ready, job/x:Complete")
    assert controller.permit("service/y", "web-1") == Allow()
    handler.on_delete(waited_object({"endpoints": [{}]}, "x-1"))
    assert controller.permit("service/y", "web-1") == Wait(None, "waits for service/y:Ready")


def test_kind_is_watched_only_while_pods_wait_for_it() -> None:
    controller = FakeController()
    assert not controller.handlers
    controller.permit()
    controller.held.add(WEB)
    handler = controller.handlers[JOBS]
    controller.now = 10 * after_objects.IDLE_SECONDS
    handler.on_sync([])
    assert not controller.stopped
    controller.plugin.forget("web-0")
    controller.plugin.forget("web-0")
    handler.on_sync([])
    assert not controller.stopped
    controller.now += after_objects.IDLE_SECONDS
    handler.on_sync([])
    assert controller.stopped == [JOBS]
    controller.permit()
    assert controller.handlers[JOBS] is not handler


def test_waiter_that_is_no_longer_held_is_dropped() -> None:
    controller = FakeController()
    controller.permit()
    controller.now = after_objects.SETTLED_SECONDS + 1
    controller.handlers[JOBS].on_sync([])
    controller.handlers[JOBS].on_update(waited_object(ready("Complete")))
    assert controller.rechecked == []


def test_thousand_waiters_are_rechecked() -> None:
    controller = FakeController()
    for number in range(1_000):
        controller.permit(name=f"web-{number}")
    controller.handlers[JOBS].on_sync([waited_object(ready("Complete"))])
    assert len(set(controller.rechecked)) == 1_000


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (make_pod(gates=[GATE]), Allow(NOTHING_ASKED)),
        (waiting_pod("job/x"), Wait(None, "waits for (state unknown) job/x:Complete")),
        (waiting_pod("node/x"), Reject),
    ],
    ids=["no annotation", "objects", "a kind that is no longer allowed"],
)
def test_permit_outside_the_controller(pod: Any, expected: Any) -> None:
    result = After(AfterArgs()).permit(Pod.of(pod), 0)

    assert result == expected or type(result) is expected


COMPLETE, FAILED = ready("Complete"), ready("Failed")
READY_SLICE = {"metadata": {"labels": {"kubernetes.io/service-name": "db"}}, "endpoints": [{}]}


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ({}, Wait(None, "waits for job/x:Complete, service/db:Ready")),
        ({"jobs/x": COMPLETE}, Wait(None, "waits for service/db:Ready")),
        (
            {"jobs/x": FAILED, "endpointslices/db-1": READY_SLICE},
            Wait(None, "waits for job/x:Complete", "job/x has failed"),
        ),
        ({"jobs/x": COMPLETE, "endpointslices/db-1": READY_SLICE}, Allow()),
        (
            {"jobs/x": None},
            Wait(None, "waits for service/db:Ready, (state unknown) job/x:Complete"),
        ),
    ],
    ids=["neither", "job", "failed job", "both", "forbidden job"],
)
def test_command_looks_up_the_objects(objects: dict[str, Any], expected: Any) -> None:
    api = FakeApi()
    api.kinds.add(SLICES)
    for path, document in objects.items():
        kind, _, name = path.partition("/")
        root = SLICES if kind == "endpointslices" else JOBS
        namespace = f"{root.rpartition('/')[0]}/namespaces/default/{kind}"
        if document is None:
            api.before("GET", raising(status_error(403)))
        else:
            metadata = {"namespace": "default", "name": name, **document.get("metadata", {})}
            api.put(f"{namespace}/{name}", {**document, "metadata": metadata})
    plugin = After(AfterArgs(), handle_with(lookup=ClusterLookup(lambda: api)))
    pod = Pod.of(waiting_pod("job/x, service/db", gates=[GATE]))

    assert plugin.permit(pod, 0) == expected
    request_count = len(api.requests)
    assert plugin.permit(pod, 0) == expected
    assert len(api.requests) == request_count  # results and errors are cached


def test_lookups_for_very_many_objects_are_limited() -> None:
    api = FakeApi()
    lookup = ClusterLookup(lambda: api, per_minute=100)
    plugin = After(AfterArgs(), handle_with(lookup=lookup))
    for pod in range(20):
        names = ", ".join(f"job/x-{pod}-{number}" for number in range(32))
        result = plugin.permit(Pod.of(waiting_pod(names, gates=[GATE])), 0)
    assert isinstance(result, Wait)
    assert result.reason.startswith("waits for (state unknown) job/x-19-0:Complete, job/x-19-1:")
    assert len(api.requests) == 100


def test_lookup_limit_resets_after_a_minute() -> None:
    now, results = [0.0], []
    lookup = ClusterLookup(FakeApi, per_minute=1, timer=lambda: now[0])
    plugin = After(AfterArgs(), handle_with(lookup=lookup))
    for now[0], name in ((0.0, "a"), (0.0, "b"), (60.0, "b")):
        results.append(plugin.permit(Pod.of(waiting_pod(f"job/{name}", gates=[GATE])), 0))
    reasons = "job/a:Complete", "(state unknown) job/b:Complete", "job/b:Complete"
    assert results == [Wait(None, f"waits for {reason}") for reason in reasons]


# --- configuration -----------------------------------------------------------------------------

CERTIFICATE = {"group": "cert-manager.io", "version": "v1", "resource": "certificates"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, ""),
        ({"version": "1"}, 'version: "1" is not valid'),
        ({"resource": "pods/status"}, 'resource: "pods/status" is not valid'),
        ({"group": "A"}, 'group: "A" is not valid'),
        ({"condition": "a b"}, 'condition: "a b" is not valid'),
    ],
    ids=str,
)
def test_custom_kind(change: Any, message: str) -> None:
    kinds = (CustomKind(**{**CERTIFICATE, "condition": "Ready", **change}),)
    if message:
        with pytest.raises(ConfigurationError, match=message):
            After(AfterArgs(custom_kinds=kinds))
        return
    controller = FakeController(custom_kinds=kinds)
    assert controller.permit("certificates.cert-manager.io/x") == Wait(
        None, "waits for certificates.cert-manager.io/x:Ready"
    )
    controller.handlers["/apis/cert-manager.io/v1/certificates"].on_sync(
        [waited_object(ready("Ready"))]
    )
    assert controller.permit("certificates.cert-manager.io/x") == Allow()


def test_shipped_role_matches_the_default_kinds() -> None:
    shipped = Path(__file__).parents[4] / "manifests" / "rbac" / "after.yaml"
    assert shipped.read_text() == roles.after_role(make_profiles(), "holdfast-system"), (
        "regenerate: .venv/bin/holdfast rbac > manifests/rbac/after.yaml"
    )
    none = "profiles: [{plugins: {disabled: [{name: after}]}}]"
    assert "rules: []" in roles.after_role(make_profiles(none), "elsewhere")
