"""Review the pods of VMs with the sticky plugin, without a cluster."""

from collections.abc import Mapping
from typing import Any

from holdfast.webhook.framework.pipeline import AdmissionPipeline
from holdfast.webhook.framework.plugin import Result
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.edits import AddFinalizer, Edit, Requirement, RequireNodes
from holdfast.webhook.plugins.sticky import Sticky
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from tests.support.builders import Document, call, handle_with, make_pipeline
from tests.support.fakes import FakeLookup
from tests.support.vm_builders import VM_UID, VMI_UID, make_launcher, make_vmi, owner_of

FINALIZER = AddFinalizer("holdfast.dev/sticky")
ON_NODE_1 = Requirement("metadata.name", "In", ("node-1",), is_field=True)
PIN = RequireNodes((ON_NODE_1,))
RECORD = {kubevirt.STICKY_NODE: "node-1", kubevirt.STICKY_NODE_UID: VM_UID}
LEGACY = "example.com/sticky-node"
VM_PATH = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines/vm"
VMI_PATH = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances/vm"
MIGRATION = {kubevirt.MIGRATION_JOB: "7d1f"}
VMI_OWNER = owner_of(kubevirt.VMI, "vm", VMI_UID)
KUBEVIRT = {"username": kubevirt.CONTROLLER_ACCOUNT}
STICKY_ALONE = (
    "profiles: [{plugins: {disabled: [{name: '*'}], enabled: [{name: sticky}]}, "
    "pluginConfig: [{name: sticky, args: %s}]}]"
)


def cluster(vm: Document | None, vmi: Document | None = None) -> FakeLookup:
    objects = {VM_PATH: vm, VMI_PATH: make_vmi() if vmi is None else vmi}
    return FakeLookup(
        {path: document for path, document in objects.items() if document is not None}
    )


def sticky(lookup: FakeLookup, **args: Any) -> Sticky:
    own_args: dict[str, Any] = {"account": kubevirt.CONTROLLER_ACCOUNT, **args}
    return Sticky(StickyArgs(**own_args), handle_with(lookup=lookup))


def mutate(plugin: Sticky, pod: Document | None = None, **request: Any) -> Result:
    return call(plugin, "mutate", pod or make_launcher(), **{"userInfo": KUBEVIRT, **request})


def validate(plugin: Sticky, pod: Document, **request: Any) -> Result:
    return call(plugin, "validate", pod, **{"userInfo": KUBEVIRT, **request})


def edits(vm: Document, vmi: Document | None = None, pod: Any = None, **args: Any) -> list[Edit]:
    return list(mutate(sticky(cluster(vm, vmi), **args), pod).edits)


FORGED_ACCOUNTS = {
    "another creator": "jane",
    "no username": "",
    "similar account name": "system:serviceaccount:default:not-kubevirt-controller",
    "malformed account name": kubevirt.controller_account("a:b"),
    "another cluster controller": "system:serviceaccount:kube-system:replicaset-controller",
}
FORGED_OWNERS: dict[str, list[Document]] = {
    "an owner that is not the controller": [VMI_OWNER | {"controller": False}],
    "an owner of another API": [VMI_OWNER | {"apiVersion": "kubevirt.io.evil/v1"}],
    "a hotplug pod": [owner_of("Pod", "p", "u", api_version="v1")],
    "labels alone": [],
}
FORGERIES: Mapping[str, tuple[Document, Document]] = {
    name: (make_launcher(), {"userInfo": {"username": username}})
    for name, username in FORGED_ACCOUNTS.items()
} | {
    name: (make_launcher(owners=owners), {"userInfo": KUBEVIRT})
    for name, owners in FORGED_OWNERS.items()
}


def sticky_pipeline(lookup: FakeLookup, args: str = "{}") -> AdmissionPipeline:
    return make_pipeline(STICKY_ALONE % args, handle=handle_with(lookup=lookup))
