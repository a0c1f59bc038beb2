import logging
from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.webhook.errors import ClusterError, ConfigurationError
from holdfast.webhook.framework import conditions
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.framework.pipeline import AdmissionPipeline
from holdfast.webhook.framework.plugin import Code, Context, Result, reject
from holdfast.webhook.framework.profiles import Verdict
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.edits import AddFinalizer, Edit, PreferNodes, Requirement, RequireNodes
from holdfast.webhook.model.objects import Metadata, Pod
from holdfast.webhook.plugins.sticky import Sticky
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.plugins.virt_controller import AUTO
from tests.support.builders import Document, make_pipeline, make_pod, read_review
from tests.support.fakes import FakeLookup, apply_patch, status_error, unreachable
from tests.support.matching import admits, make_node
from tests.support.vm_builders import VM_UID, VMI_UID, make_launcher, make_vm, make_vmi, owner_of

FINALIZER = AddFinalizer("holdfast.dev/sticky")
ON_NODE_1 = Requirement("metadata.name", "In", ("node-1",), is_field=True)
PIN = RequireNodes((ON_NODE_1,))
RECORD = {kubevirt.STICKY_NODE: "node-1", kubevirt.STICKY_NODE_UID: VM_UID}
LEGACY = "example.com/sticky-node"
VM_PATH = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines/vm"
VMI_PATH = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances/vm"
MIGRATION = {kubevirt.MIGRATION_JOB: "7d1f"}
KUBEVIRT = {"username": kubevirt.CONTROLLER_ACCOUNT}
STICKY_ALONE = (
    "profiles: [{plugins: {disabled: [{name: '*'}], enabled: [{name: sticky}]}, "
    "pluginConfig: [{name: sticky, args: %s}]}]"
)


def cluster(vm: Document | None, vmi: Document | None = None) -> FakeLookup:
    objects = {VM_PATH: vm, VMI_PATH: make_vmi() if vmi is None else vmi}
    return FakeLookup({path: found for path, found in objects.items() if found is not None})


def sticky(lookup: FakeLookup, **args: Any) -> Sticky:
    handle = Handle()
    handle.connect(lookup=lookup)
    return Sticky(StickyArgs(**{"account": kubevirt.CONTROLLER_ACCOUNT, **args}), handle)


def context_of(pod: Document, **request: Any) -> Context:
    review = read_review(pod, **{"userInfo": KUBEVIRT, **request})
    return Context(review, "*", 0)


def mutate(plugin: Sticky, pod: Document | None = None, **request: Any) -> Result:
    context = context_of(make_launcher() if pod is None else pod, **request)
    return plugin.mutate(context.review.pod, context)


def validate(plugin: Sticky, pod: Document, **request: Any) -> Result:
    context = context_of(pod, **request)
    return plugin.validate(context.review.pod, context)


def edits(vm: Document, vmi: Document | None = None, pod: Any = None, **args: Any) -> list[Edit]:
    return list(mutate(sticky(cluster(vm, vmi), **args), pod).edits)


# --- mutating launcher pods --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "args", "expected"),
    [
        pytest.param(None, {}, [FINALIZER], id="no node yet"),
        pytest.param({kubevirt.STICKY_NODE: ""}, {}, [FINALIZER], id="an empty record"),
        pytest.param(RECORD, {}, [FINALIZER, PIN], id="a node"),
        pytest.param(
            {kubevirt.STICKY_NODE: "node-1"}, {}, [FINALIZER, PIN], id="an admin's record"
        ),
        pytest.param(
            {**RECORD, kubevirt.STICKY_NODE_UID: "another"}, {}, [FINALIZER], id="a clone's record"
        ),
        pytest.param(
            RECORD,
            {"affinity": "preferred"},
            [FINALIZER, PreferNodes(100, (ON_NODE_1,))],
            id="preferred",
        ),
        pytest.param(
            {LEGACY: "node-1"}, {"node_annotation": LEGACY}, [FINALIZER, PIN], id="legacy"
        ),
        pytest.param(RECORD, {"node_annotation": LEGACY}, [FINALIZER], id="another key's record"),
        pytest.param({**RECORD, kubevirt.STICKY: "false"}, {}, [], id="opted out"),
        pytest.param({**RECORD, kubevirt.STICKY: "true"}, {}, [FINALIZER, PIN], id="opted in"),
        pytest.param(RECORD, {"select": "annotated"}, [], id="annotated only, not annotated"),
        pytest.param(RECORD, {"namespaces": ("default",)}, [FINALIZER, PIN], id="its namespace"),
        pytest.param(RECORD, {"namespaces": ("other",)}, [], id="another namespace"),
    ],
)
def test_mutate(
    annotations: Mapping[str, str] | None, args: dict[str, Any], expected: list[Edit]
) -> None:
    assert edits(make_vm(annotations), **args) == expected


def test_vm_and_vmi_are_read_for_each_review() -> None:
    lookup = cluster(make_vm())
    plugin = sticky(lookup)
    assert list(mutate(plugin).edits) == [FINALIZER]

    lookup.objects[VM_PATH] = make_vm(RECORD)
    assert list(mutate(plugin).edits) == [FINALIZER, PIN]
    assert lookup.asked == [VMI_PATH, VM_PATH] * 2


def test_pod_in_another_namespace_is_skipped_without_a_lookup() -> None:
    lookup = cluster(make_vm(RECORD))
    assert mutate(sticky(lookup, namespaces=("other",))) == Result(Code.SKIP)
    assert lookup.asked == []


@pytest.mark.parametrize(
    ("pod", "phase", "expected"),
    [
        pytest.param(make_launcher(labels=MIGRATION), "Running", [FINALIZER], id="migration"),
        pytest.param(
            make_launcher(labels=MIGRATION),
            "WaitingForSync",
            [FINALIZER],
            id="migration from another cluster",
        ),
        pytest.param(
            make_launcher(labels=MIGRATION),
            "",
            [FINALIZER, PIN],
            id="label from the template, unset phase",
        ),
        pytest.param(
            make_launcher(labels=MIGRATION),
            "Scheduling",
            [FINALIZER, PIN],
            id="label from the template, scheduling",
        ),
        pytest.param(
            make_launcher({kubevirt.EPHEMERAL_PROVISIONING: "true"}),
            "Pending",
            [PIN],
            id="ephemeral provisioning",
        ),
    ],
)
def test_mutate_migration_targets_and_provisioning_pods(
    pod: Document, phase: str, expected: list[Edit]
) -> None:
    assert edits(make_vm(RECORD), make_vmi(phase=phase, node="node-1"), pod) == expected


def test_node_is_required_in_every_node_selector_term() -> None:
    pod = make_launcher()
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    terms.append({"matchExpressions": [{"key": "disk", "operator": "Exists"}]})

    made = apply_patch(pod, patch(Pod.of(pod), edits(make_vm(RECORD), None, pod)))
    assert made["metadata"]["finalizers"] == ["holdfast.dev/sticky"]
    assert admits(made, make_node("node-1", {}))
    assert not admits(made, make_node("node-2", {"disk": "fast"}))
    obsolete = {"node-labeller.kubevirt.io/obsolete-host-model": "x"}
    assert not admits(made, make_node("node-1", obsolete))
    assert admits(made, make_node("node-1", {**obsolete, "disk": "fast"}))


@pytest.mark.parametrize(
    "owners",
    [
        pytest.param([], id="standalone"),
        pytest.param(
            [owner_of("VirtualMachineInstanceReplicaSet", "vm", VM_UID)], id="replica set"
        ),
        pytest.param(
            [owner_of(kubevirt.VM, "vm", VM_UID, controller=False)], id="not the controller"
        ),
        pytest.param([owner_of(kubevirt.VM, "other", VM_UID)], id="VM of another name"),
        pytest.param(
            [owner_of(kubevirt.VM, "vm", VM_UID, api_version="example.com/v1")],
            id="another API's VM",
        ),
    ],
)
def test_vmi_without_a_vm_is_skipped(owners: list[Document]) -> None:
    lookup = cluster(make_vm(RECORD), make_vmi(owners=owners))
    assert mutate(sticky(lookup)) == Result(Code.SKIP)
    assert lookup.asked == [VMI_PATH]


# --- missing owners, invalid records and failed lookups ----------------------------------------

GONE = (
    '%s default/"vm" with UID "%s" no longer exists, so the pod\'s node is unknown: KubeVirt '
    "creates another pod if one is needed"
)


@pytest.mark.parametrize(
    ("vm", "vmi", "expected"),
    [
        pytest.param(make_vm(), {}, GONE % (kubevirt.VMI, VMI_UID), id="VMI gone"),
        pytest.param(
            make_vm(), make_vmi(uid="new"), GONE % (kubevirt.VMI, VMI_UID), id="recreated VMI"
        ),
        pytest.param(None, make_vmi(), GONE % (kubevirt.VM, VM_UID), id="VM gone"),
        pytest.param(
            make_vm(uid="new"), make_vmi(), GONE % (kubevirt.VM, VM_UID), id="recreated VM"
        ),
    ],
)
@pytest.mark.parametrize("point", [mutate, validate], ids=["mutate", "validate"])
def test_missing_or_recreated_owner_is_rejected(
    point: Any, vm: Document | None, vmi: Document, expected: str
) -> None:
    lookup = cluster(vm, vmi)
    if not vmi:
        del lookup.objects[VMI_PATH]
    assert point(sticky(lookup), make_launcher()) == Result(Code.REJECT, (), expected)


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "A", "x" * 254])
def test_invalid_owner_name_is_rejected_without_a_lookup(name: str) -> None:
    lookup = cluster(make_vm(RECORD))
    result = mutate(sticky(lookup), make_launcher(owners=[owner_of(kubevirt.VMI, name, VMI_UID)]))

    assert result.code is Code.REJECT
    assert lookup.asked == []


@pytest.mark.parametrize(
    "node",
    ["node 1", "Node-1", "a/b", "-", "node-1\n", "x" * 254, "node-1,node-2", "\u2019; DROP", "."],
)
def test_invalid_node_name_in_a_record_is_rejected(node: str) -> None:
    result = mutate(sticky(cluster(make_vm({kubevirt.STICKY_NODE: node}))))

    assert result.code is Code.REJECT
    assert result.reason.startswith(
        'VirtualMachine default/vm: annotation holdfast.dev/sticky-node: invalid value "'
    )
    assert result.reason.endswith(
        ": use a node name, or remove the annotation to let the VM start anywhere"
    )
    assert result.reason.isprintable()


@pytest.mark.parametrize(
    "error", [unreachable(), status_error(403), status_error(404), status_error(503)], ids=str
)
@pytest.mark.parametrize("before", [0, 1], ids=["the VMI", "the VM"])
@pytest.mark.parametrize("point", [mutate, validate], ids=["mutate", "validate"])
def test_failed_lookup_raises(point: Any, before: int, error: ClusterError) -> None:
    class FailsAt(FakeLookup):
        def get(self, path: str, *, max_age: float = 0.0) -> Document | None:  # noqa: ARG002
            if len(self.asked) == before:
                raise error
            return super().get(path)

    lookup = FailsAt(cluster(make_vm(RECORD)).objects)
    with pytest.raises(type(error)) as caught:
        point(sticky(lookup), make_launcher())
    assert caught.value is error


def test_malformed_object_raises() -> None:
    lookup = cluster({"metadata": {"uid": 7}})
    with pytest.raises(ValueError, match=r"Expected `str`, got `int` - at `\$.metadata.uid`"):
        mutate(sticky(lookup))


# --- forged pods -------------------------------------------------------------------------------

FORGERIES: Mapping[str, tuple[Document, Document]] = {
    "another creator": (make_launcher(), {"userInfo": {"username": "jane"}}),
    "no username": (make_launcher(), {"userInfo": {}}),
    "similar account name": (
        make_launcher(),
        {"userInfo": {"username": "system:serviceaccount:default:not-kubevirt-controller"}},
    ),
    "malformed account name": (
        make_launcher(),
        {"userInfo": {"username": "system:serviceaccount:a:b:kubevirt-controller"}},
    ),
    "another cluster controller": (
        make_launcher(),
        {"userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"}},
    ),
    "an owner that is not the controller": (
        make_launcher(owners=[owner_of(kubevirt.VMI, "vm", VMI_UID, controller=False)]),
        {},
    ),
    "an owner of another API": (
        make_launcher(
            owners=[owner_of(kubevirt.VMI, "vm", VMI_UID, api_version="kubevirt.io.evil/v1")]
        ),
        {},
    ),
    "a hotplug pod": (make_launcher(owners=[owner_of("Pod", "p", "u", api_version="v1")]), {}),
    "labels alone": (make_launcher(owners=[]), {}),
}


@pytest.mark.parametrize(("pod", "request_"), FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("vm_exists", [True, False], ids=["VM exists", "no VM"])
@pytest.mark.parametrize("point", [mutate, validate], ids=["mutate", "validate"])
def test_forged_pod_is_skipped_without_a_lookup(
    point: Any, vm_exists: bool, pod: Document, request_: Document
) -> None:
    lookup = cluster(make_vm(RECORD)) if vm_exists else FakeLookup()
    assert point(sticky(lookup), pod, **request_) == Result(Code.SKIP)
    assert lookup.asked == []


OTHER_ACCOUNT = "system:serviceaccount:openshift-cnv:kubevirt-controller"


@pytest.mark.parametrize("vm_exists", [True, False], ids=["VM exists", "no VM"])
@pytest.mark.parametrize("point", [mutate, validate], ids=["mutate", "validate"])
def test_kubevirt_account_other_than_the_configured_one_is_rejected(
    point: Any, *, vm_exists: bool
) -> None:
    lookup = cluster(make_vm(RECORD)) if vm_exists else FakeLookup()
    plugin = sticky(lookup)
    rejected = point(plugin, make_launcher(), userInfo={"username": OTHER_ACCOUNT})

    assert rejected == reject(
        f"this pod of a VirtualMachineInstance is created by {OTHER_ACCOUNT}, but plugin sticky is "
        "configured with account 'system:serviceaccount:kubevirt:kubevirt-controller': set the "
        "argument account to auto"
    )
    assert lookup.asked == []
    for harmless, fields in (
        (make_launcher(owners=[]), {}),
        (make_launcher(), {"operation": "UPDATE", "old": make_launcher()}),
    ):
        result = point(plugin, harmless, userInfo={"username": OTHER_ACCOUNT}, **fields)
        assert result == Result(Code.SKIP)


@pytest.mark.parametrize("point", [mutate, validate], ids=["mutate", "validate"])
def test_any_account_may_create_pods_in_other_namespaces(point: Any) -> None:
    plugin = sticky(cluster(make_vm(RECORD)), namespaces=("elsewhere",))

    assert point(plugin, make_launcher(), userInfo={"username": OTHER_ACCOUNT}) == Result(Code.SKIP)


@pytest.mark.parametrize(("pod", "request_"), FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("point", ["mutate", "validate"])
def test_forged_pod_with_the_finalizer_is_rejected(
    point: str, pod: Document, request_: Document
) -> None:
    lookup = cluster(make_vm(RECORD))
    forged = {**pod, "metadata": {**pod["metadata"], "finalizers": [kubevirt.STICKY]}}
    review = read_review(forged, **{"userInfo": KUBEVIRT, **request_})

    verdict = getattr(sticky_pipeline(lookup), point)(review, now_ms=0)
    assert verdict.message == (
        'finalizer "holdfast.dev/sticky" is reserved for Holdfast: remove it '
        "(a restore should leave out the pods of VMs)"
    )
    assert lookup.asked == []


def test_ephemeral_pod_with_the_finalizer_is_rejected() -> None:
    pod = make_launcher({kubevirt.EPHEMERAL_PROVISIONING: "true"}, finalizers=[kubevirt.STICKY])
    review = read_review(pod, userInfo=KUBEVIRT)
    assert sticky_pipeline(cluster(make_vm())).mutate(review, now_ms=0).code is Code.REJECT


def test_update_by_kubevirt_that_adds_the_finalizer_is_rejected() -> None:
    review = read_review(
        make_launcher(finalizers=[kubevirt.STICKY]),
        operation="UPDATE",
        old=make_launcher(),
        userInfo=KUBEVIRT,
    )
    assert sticky_pipeline(cluster(make_vm())).validate(review, now_ms=0).code is Code.REJECT


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE"])
def test_update_and_delete_are_skipped_without_a_lookup(operation: str) -> None:
    lookup = cluster(make_vm(RECORD))
    assert mutate(sticky(lookup), operation=operation) == Result(Code.SKIP)
    assert validate(sticky(lookup), make_launcher(), operation=operation) == Result(Code.SKIP)
    assert lookup.asked == []


# --- reinvocation and validation ---------------------------------------------------------------


def sticky_pipeline(lookup: FakeLookup, args: str = "{}") -> AdmissionPipeline:
    handle = Handle()
    handle.connect(lookup=lookup)
    return make_pipeline(STICKY_ALONE % args, handle=handle)


def patched(pipeline: AdmissionPipeline, pod: Document) -> Document:
    verdict = pipeline.mutate(read_review(pod, userInfo=KUBEVIRT), now_ms=0)
    assert verdict.code is Code.SUCCESS
    made: Document = apply_patch(pod, patch(Pod.of(pod), verdict.edits))
    return made


def test_reinvocation_is_idempotent() -> None:
    pipeline = sticky_pipeline(cluster(make_vm(RECORD)))
    once = patched(pipeline, make_launcher())
    assert patched(pipeline, once) == once
    accepted = pipeline.validate(read_review(once, userInfo=KUBEVIRT), now_ms=0)
    assert accepted == Verdict(Code.SUCCESS, (), [], [])


def test_mutated_pods_are_valid() -> None:
    for vm in (make_vm(), make_vm(RECORD), make_vm({kubevirt.STICKY: "false"})):
        for pod in (make_launcher(), make_launcher({kubevirt.EPHEMERAL_PROVISIONING: ""})):
            for args in ("{}", "{affinity: preferred}"):
                pipeline = sticky_pipeline(cluster(vm), args)
                review = read_review(patched(pipeline, pod), userInfo=KUBEVIRT)
                assert pipeline.validate(review, now_ms=0).code is Code.SUCCESS


LOST = (
    "%s is missing from a pod of a sticky VM: another mutating webhook removed it; or the "
    "VM has just been changed, and KubeVirt's retry succeeds"
)
BOTH = 'finalizer holdfast.dev/sticky and required node affinity "metadata.name In [node-1]"'


def test_pod_without_finalizer_and_node_affinity_is_rejected() -> None:
    result = validate(sticky(cluster(make_vm(RECORD))), make_launcher())
    assert result == Result(Code.REJECT, (), LOST % BOTH)


def test_pod_without_the_node_in_one_term_is_rejected() -> None:
    pod = patched(sticky_pipeline(cluster(make_vm(RECORD))), make_launcher())
    affinity = pod["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    terms.append({"matchExpressions": [{"key": "a", "operator": "Exists"}]})

    result = validate(sticky(cluster(make_vm(RECORD))), pod)
    assert result.reason == LOST % 'required node affinity "metadata.name In [node-1]"'


def test_pod_that_requires_an_outdated_node_is_rejected() -> None:
    pod = patched(sticky_pipeline(cluster(make_vm(RECORD))), make_launcher())
    other = {**RECORD, kubevirt.STICKY_NODE: "node-2"}
    result = validate(sticky(cluster(make_vm(other))), pod)
    assert result.reason == LOST % 'required node affinity "metadata.name In [node-2]"'


def named(*nodes: str) -> Document:
    """Return a node selector term with one name requirement per node."""
    return {
        "matchFields": [
            {"key": "metadata.name", "operator": "In", "values": [node]} for node in nodes
        ]
    }


def requiring(*terms: Document) -> Document:
    """Return a mutated launcher pod with these terms instead of KubeVirt's."""
    pod = make_launcher(finalizers=[kubevirt.STICKY])
    required = {"nodeSelectorTerms": list(terms)}
    pod["spec"]["affinity"]["nodeAffinity"] = {
        "requiredDuringSchedulingIgnoredDuringExecution": required
    }
    return pod


CONTRADICTION = (
    'no node can meet the required node affinity "metadata.name In [node-1]" and '
    '"metadata.name In [node-2]": correct the VM\'s own affinity or its recorded node; or '
    "the VM has just been changed, and KubeVirt's retry succeeds"
)


def test_pod_that_requires_two_nodes_is_rejected() -> None:
    """If the record changes before a reinvocation, `mutate` adds the second node."""
    once = patched(sticky_pipeline(cluster(make_vm(RECORD))), make_launcher())
    pipeline = sticky_pipeline(cluster(make_vm({**RECORD, kubevirt.STICKY_NODE: "node-2"})))
    twice = patched(pipeline, once)

    verdict = pipeline.validate(read_review(twice, userInfo=KUBEVIRT), now_ms=0)
    assert verdict.reasons == [CONTRADICTION]
    assert pipeline.mutate(read_review(make_launcher(), userInfo=KUBEVIRT), now_ms=0).code is (
        Code.SUCCESS
    )


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        pytest.param([named("node-1")], Code.SUCCESS, id="one node"),
        pytest.param([named("node-2", "node-1")], Code.REJECT, id="two nodes"),
        pytest.param(
            [named("node-2", "node-1"), named("node-1")], Code.SUCCESS, id="one satisfiable term"
        ),
        pytest.param(
            [named("node-2", "node-1"), named("node-3", "node-1"), {}],
            Code.REJECT,
            id="no satisfiable term",
        ),
        pytest.param([{}], Code.SUCCESS, id="only an empty term"),
    ],
)
def test_unsatisfiable_node_names_are_rejected(terms: list[Any], code: Code) -> None:
    assert validate(sticky(cluster(make_vm(RECORD))), requiring(*terms)).code is code


def test_unsatisfiable_node_names_are_allowed_if_preferred_or_migrating() -> None:
    pod = requiring(named("node-2", "node-3"))
    preferring = sticky(cluster(make_vm(RECORD)), affinity="preferred")
    assert validate(preferring, pod).code is Code.SUCCESS

    pod["metadata"]["labels"] |= MIGRATION
    running = sticky(cluster(make_vm(RECORD), make_vmi(phase="Running", node="node-1")))
    assert validate(running, pod).code is Code.SUCCESS


def test_message_lists_only_some_of_many_node_names() -> None:
    names = [*(f"node-{number}" for number in range(9)), "node-1"]
    reason = validate(sticky(cluster(make_vm(RECORD))), requiring(named(*names))).reason
    assert '"metadata.name In [node-2]" and 6 more: correct' in reason


def test_missing_preference_is_allowed_but_missing_finalizer_is_not() -> None:
    plugin = sticky(cluster(make_vm(RECORD)), affinity="preferred")
    assert validate(plugin, make_launcher(finalizers=[kubevirt.STICKY])).code is Code.SUCCESS
    assert validate(plugin, make_launcher()).reason == LOST % "finalizer holdfast.dev/sticky"


# --- matching ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(make_pod(), False, id="a pod"),
        pytest.param(make_pod({"delay": "15"}), False, id="a pod with a delay"),
        pytest.param(make_launcher(), True, id="a launcher pod"),
        *(
            pytest.param(pod, not name.startswith(("an owner", "a hotplug", "labels")), id=name)
            for name, (pod, _) in FORGERIES.items()
        ),
    ],
)
def test_only_pods_of_vmis_may_block(pod: Document, expected: bool) -> None:
    assert make_pipeline().may_block(read_review(pod)) is expected


def test_match_covers_pods_but_not_templates() -> None:
    plugin = Sticky(StickyArgs())
    assert plugin.match("object.spec.template") == "false"
    assert plugin.match("object") == (
        "has(object.metadata.ownerReferences) && (object.metadata.ownerReferences.size() > 100 || "
        "object.metadata.ownerReferences.exists(one, has(one.controller) && one.controller && "
        "one.kind == 'VirtualMachineInstance' && one.apiVersion.startsWith('kubevirt.io/')))"
    )


def test_match_is_limited_to_the_configured_namespaces() -> None:
    plugin = Sticky(StickyArgs(namespaces=("a", "b")))
    everywhere = Sticky(StickyArgs()).match("object")
    assert plugin.match("object") == f"{everywhere} && request.namespace in ['a', 'b']"
    assert plugin.match("object.spec.template") == "false"
    for namespace, expected in (("a", True), ("b", True), ("c", False), ("", True)):
        assert plugin.concerns(Pod.of(make_launcher(namespace=namespace))) is expected


def test_controller_is_found_at_any_position_among_the_owners() -> None:
    others = [owner_of("Deployment", "d", "u", api_version="apps/v1", controller=False)]
    launcher = Pod.of(make_launcher(owners=[*others, owner_of(kubevirt.VMI, "vm", VMI_UID)]))
    found = kubevirt.controller_of(launcher.metadata, kubevirt.VMI)
    assert found is not None
    assert found.uid == VMI_UID
    assert kubevirt.controller_of(Metadata(), kubevirt.VMI) is None


# --- validating VMs ----------------------------------------------------------------------------

KIND = {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachine"}
INVALID_VALUE = (
    'metadata: annotation holdfast.dev/sticky: invalid value "%s": use "true" or "false"'
)
INVALID_NODE = (
    'metadata: annotation %s: invalid value "%s": use a node name, or remove the '
    "annotation to let the VM start anywhere"
)


@pytest.mark.parametrize(
    ("annotations", "args", "expected"),
    [
        pytest.param(None, "{}", [], id="none"),
        pytest.param({kubevirt.STICKY: "true", **RECORD}, "{}", [], id="valid"),
        pytest.param({kubevirt.STICKY: "True"}, "{}", [INVALID_VALUE % "True"], id="True"),
        pytest.param(
            {kubevirt.STICKY_NODE: "Node 1"},
            "{}",
            [INVALID_NODE % (kubevirt.STICKY_NODE, "Node 1")],
            id="invalid node name",
        ),
        pytest.param(
            {kubevirt.STICKY: "no", kubevirt.STICKY_NODE: "_"},
            "{}",
            [
                INVALID_VALUE % "no"
                + "; "
                + (INVALID_NODE % (kubevirt.STICKY_NODE, "_"))[len("metadata: ") :]
            ],
            id="both",
        ),
        pytest.param(
            {LEGACY: "_"},
            f"{{nodeAnnotation: {LEGACY}}}",
            [INVALID_NODE % (LEGACY, "_")],
            id="legacy",
        ),
        pytest.param({LEGACY: "_"}, "{}", [], id="another key"),
    ],
)
def test_vm_annotations_are_validated(
    annotations: Mapping[str, str] | None, args: str, expected: list[str]
) -> None:
    review = read_review(make_vm(annotations), kind=KIND)
    verdict = sticky_pipeline(FakeLookup(), args).validate(review, now_ms=0)
    assert list(verdict.reasons) == expected
    assert (verdict.code is Code.REJECT) == bool(expected)


def test_update_validates_only_changed_annotations() -> None:
    """Otherwise the controller could not record a node on a VM with an invalid annotation."""
    old = make_vm({kubevirt.STICKY: "maybe"})
    new = make_vm({kubevirt.STICKY: "maybe", **RECORD})
    review = read_review(new, kind=KIND, operation="UPDATE", old=old)
    assert sticky_pipeline(FakeLookup()).validate(review, now_ms=0).code is Code.SUCCESS

    worse = read_review(make_vm({kubevirt.STICKY: "no"}), kind=KIND, operation="UPDATE", old=old)
    assert sticky_pipeline(FakeLookup()).validate(worse, now_ms=0).reasons == [INVALID_VALUE % "no"]


COPIED = {kubevirt.STICKY_NODE: "node-1", kubevirt.STICKY_NODE_UID: "another"}
IGNORED = (
    'metadata: annotation holdfast.dev/sticky-node: "%s" would be ignored: '
    "holdfast.dev/sticky-node-uid is another VM's, copied by a clone: remove it in the same change"
)


@pytest.mark.parametrize(
    ("before", "after", "effective"),
    [
        pytest.param(COPIED, {**COPIED, kubevirt.STICKY_NODE: "node-2"}, False, id="a clone's"),
        pytest.param({kubevirt.STICKY_NODE_UID: "another"}, COPIED, False, id="a cleared clone's"),
        pytest.param(COPIED, {kubevirt.STICKY_NODE: "node-2"}, True, id="without the UID"),
        pytest.param(COPIED, RECORD, True, id="recorded"),
        pytest.param(RECORD, COPIED, True, id="restored from a copy"),
        pytest.param(COPIED, {kubevirt.STICKY_NODE_UID: "another"}, True, id="removed"),
        pytest.param(COPIED, {**COPIED, kubevirt.STICKY: "true"}, True, id="unchanged"),
        pytest.param(RECORD, {**RECORD, kubevirt.STICKY_NODE: "node-2"}, True, id="a VM's own"),
    ],
)
def test_node_that_would_be_ignored_on_a_clone_is_rejected(
    before: dict[str, str], after: dict[str, str], effective: bool
) -> None:
    old, new = make_vm(before), make_vm(after)
    review = read_review(new, kind=KIND, operation="UPDATE", old=old)
    verdict = sticky_pipeline(FakeLookup()).validate(review, now_ms=0)
    expected = [] if effective else [IGNORED % after[kubevirt.STICKY_NODE]]
    assert list(verdict.reasons) == expected
    created = sticky_pipeline(FakeLookup()).validate(read_review(new, kind=KIND), now_ms=0)
    assert created.code is Code.SUCCESS


def test_errors_in_template_and_vm_are_reported_together() -> None:
    vm = make_vm({kubevirt.STICKY: "maybe"})
    vm["spec"]["template"]["metadata"] = {"annotations": {"delay": "soon"}}
    verdict = make_pipeline().validate(read_review(vm, kind=KIND), now_ms=0)
    template, own = verdict.reasons
    assert template.startswith('spec.template.metadata: annotation delay: invalid value "soon"')
    assert own == INVALID_VALUE % "maybe"


def test_match_conditions_cover_annotations_of_vms() -> None:
    profiles = sticky_pipeline(FakeLookup()).profiles
    assert conditions.create_condition(profiles, "object.spec.template") == (
        "(request.kind.kind == 'VirtualMachine' && has(object.metadata.annotations) && "
        "('holdfast.dev/sticky' in object.metadata.annotations || "
        "'holdfast.dev/sticky-node' in object.metadata.annotations))"
    )
    assert conditions.update_condition(profiles, "object.spec.template") == (
        "request.kind.kind == 'VirtualMachine' && ("
        "object.?metadata.?annotations[?'holdfast.dev/sticky'] != "
        "oldObject.?metadata.?annotations[?'holdfast.dev/sticky'] || "
        "object.?metadata.?annotations[?'holdfast.dev/sticky-node'] != "
        "oldObject.?metadata.?annotations[?'holdfast.dev/sticky-node'])"
    )
    assert conditions.create_condition(profiles, "object.spec.jobTemplate.spec.template") == "false"


# --- records erased by an update ---------------------------------------------------------------

OWN_UID = {kubevirt.STICKY_NODE_UID: VM_UID}


@pytest.mark.parametrize(
    ("old", "new", "restored"),
    [
        pytest.param(RECORD, None, RECORD, id="all annotations"),
        pytest.param(RECORD, {"team": "a"}, {"team": "a", **RECORD}, id="the record"),
        pytest.param(OWN_UID, {}, OWN_UID, id="a cleared record"),
        pytest.param(
            RECORD,
            {kubevirt.STICKY_NODE: "node-2"},
            {**RECORD, kubevirt.STICKY_NODE: "node-2"},
            id="the UID, with another node in the template",
        ),
        pytest.param({"team": "a"}, None, None, id="no record"),
        pytest.param(None, None, None, id="no annotations"),
    ],
)
def test_record_erased_by_an_update_is_restored(
    old: dict[str, str] | None, new: dict[str, str] | None, restored: dict[str, str] | None
) -> None:
    vm = make_vm(new)
    review = read_review(vm, kind=KIND, operation="UPDATE", old=make_vm(old))
    verdict = sticky_pipeline(FakeLookup()).mutate(review, now_ms=0)
    changed = apply_patch(vm, patch(review.target, verdict.edits))

    assert changed == make_vm(restored)
    assert verdict.code is Code.SUCCESS


def test_record_is_restored_without_a_lookup() -> None:
    lookup = FakeLookup()
    review = read_review(make_vm(), kind=KIND, operation="UPDATE", old=make_vm(RECORD))
    sticky_pipeline(lookup).mutate(review, now_ms=0)
    assert lookup.asked == []


def test_match_condition_for_updates_that_may_erase_a_record() -> None:
    owners = "oldObject.metadata.ownerReferences"
    assert sticky(FakeLookup(), account=AUTO).restore_match() == (
        "(request.userInfo.username.startsWith('system:serviceaccount:') "
        "&& request.userInfo.username.endsWith(':kubevirt-controller')) && "
        f"(has({owners}) && ({owners}.size() > 100 || {owners}.exists(one, "
        "has(one.controller) && one.controller && one.kind == 'VirtualMachinePool' "
        "&& one.apiVersion.startsWith('pool.kubevirt.io/')))) "
        "&& (['holdfast.dev/sticky-node', 'holdfast.dev/sticky-node-uid'].exists(key, "
        "key in oldObject.?metadata.?annotations.orValue({}) && "
        "!(key in object.?metadata.?annotations.orValue({}))))"
    )
    limited = sticky(FakeLookup(), namespaces=("a",), node_annotation=LEGACY).restore_match()
    assert limited.startswith(f"(request.userInfo.username == '{kubevirt.CONTROLLER_ACCOUNT}')")
    assert limited.endswith(" && (request.namespace in ['a'])")
    assert f"['{LEGACY}', 'holdfast.dev/sticky-node-uid']" in limited


# --- arguments and startup ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param(
            {"node_annotation": "a b"},
            (
                'nodeAnnotation: "a b" is not a valid annotation key: use one like '
                "example.com/sticky-node"
            ),
            id="invalid key",
        ),
        pytest.param(
            {"node_annotation": "holdfast.dev/sticky"},
            "nodeAnnotation: 'holdfast.dev/sticky' is reserved: use another key",
            id="reserved key",
        ),
        pytest.param(
            {"namespaces": ("a", "B")},
            'namespaces[1]: "B" is not a valid namespace: use a name like default',
            id="invalid namespace",
        ),
        pytest.param(
            {"account": ""},
            "account: must not be empty: use auto, or name the account of virt-controller",
            id="empty account",
        ),
    ],
)
def test_invalid_arguments(args: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Sticky(StickyArgs(**args))
    assert str(caught.value) == expected


IDLE = "plugin sticky: KubeVirt is not installed; idle until it is"


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        pytest.param([], [], id="with KubeVirt"),
        pytest.param([status_error(404)], [IDLE], id="without"),
    ],
)
def test_missing_kubevirt_is_logged_at_startup(
    failures: list[Exception], expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.plugins")
    lookup = FakeLookup()
    lookup.failures.extend(failures)
    sticky(lookup).start()
    assert lookup.asked == ["/apis/kubevirt.io/v1"]
    assert [record.getMessage() for record in caplog.records] == expected


def test_start_raises_if_the_lookup_fails() -> None:
    lookup = FakeLookup()
    lookup.failures.append(status_error(503))
    with pytest.raises(ClusterError):
        sticky(lookup).start()
