"""The policies on a real API server, with real users, the shipped roles, and the controller
under its own ServiceAccount. Pods are created with gates, so no webhook is needed.
"""

import copy
import itertools
import json
import os
import string
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane import versions
from controlplane.launcher import ControlPlane
from demo.command import Command
from holdfast.webhook.framework.profiles import Selectors
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.model.approvals import APPROVED_BY, DENIED_BY, KEY, MARKS
from holdfast.webhook.model.approvals import GATE as APPROVAL_GATE
from holdfast.webhook.model.freezes import FREEZE, FREEZE_UNTIL
from holdfast.webhook.model.objects import KUEUE_GROUP, REVISION_LABEL
from holdfast.webhook.policies import guard_check
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.policies.builder import InstallationNames, make_binding
from holdfast.webhook.policies.namespaces import FREEZE_POLICY, FREEZE_ROLES_POLICY
from holdfast.webhook.policies.secrets import CONTROLLER_SECRETS
from holdfast.webhook.policies.vms import CONTROLLER_VMS
from holdfast.webhook.policies.webhooks import webhooks_policy
from holdfast.webhook.registration.configurations import NOT_YET
from tests.e2e import vms
from tests.e2e.accounts import MANIFESTS, controller_kubeconfig
from tests.e2e.kubectl_user import KubectlUser, Operation, refusal
from tests.e2e.namespace import DEFINITIONS, Namespace, Object, gates, pod

pytestmark = pytest.mark.xdist_group("guard")

VMS = "virtualmachines.kubevirt.io"
RECORD = "holdfast.dev/sticky-node"
PACE, RELEASED = "holdfast.dev/pace", "holdfast.dev/released"
GATE, FOREIGN_GATE = "holdfast.dev/delay", "example.com/mine"
CONTROLLER = "system:serviceaccount:holdfast-system:holdfast-controller"
POLICIES = (
    pod_policies.HOLD,
    pod_policies.PACE,
    pod_policies.APPROVAL,
    FREEZE_POLICY,
    FREEZE_ROLES_POLICY,
    pod_policies.CONTROLLER_PODS,
    CONTROLLER_VMS,
    pod_policies.CONTROLLER_WEBHOOKS,
)

Row = tuple[Sequence[Operation], str]
"""A JSON patch, and a part of the rejection message."""

_numbers = itertools.count(1)


def annotation(key: str, value: str | None) -> Operation:
    path = f"/metadata/annotations/{key.replace('/', '~1')}"
    return remove(path) if value is None else write(path, value)


def write(path: str, value: Any) -> Operation:
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> Operation:
    return {"op": "remove", "path": path}


def rows(changes: Mapping[str, Mapping[str, Sequence[Operation]]]) -> Mapping[str, Row]:
    """Map the name of each change to the change and its message."""
    return {name: (one, what) for what, each in changes.items() for name, one in each.items()}


STRIP = remove("/spec/schedulingGates/0")
FINALIZER = "/metadata/finalizers/-"
TOLERATION = write("/spec/tolerations/-", {"key": "a", "operator": "Exists"})
OTHER_OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}
OWNER = write("/metadata/ownerReferences", [OTHER_OWNER])
OWNED = {**OTHER_OWNER, "controller": True}
NOT_BEFORE = annotation("holdfast.dev/not-before", "2020-01-01T00:00:00Z")
HOLD_CHANGES = rows(
    {
        "release it": {"gate removed": [STRIP]},
        "change delay": {
            "delay 0": [annotation("delay", "0")],
            "delay removed": [annotation("delay", None)],
        },
        "change holdfast.dev/delay": {
            "second delay annotation": [annotation("holdfast.dev/delay", "0")]
        },
        "change holdfast.dev/not-before": {"not-before added": [NOT_BEFORE]},
        "change holdfast.dev/jitter": {"jitter added": [annotation("holdfast.dev/jitter", "1h")]},
        "change holdfast.dev/held": {
            "hint changed": [annotation("holdfast.dev/held", "delay=1s")],
            "hint removed": [annotation("holdfast.dev/held", None)],
        },
        "change holdfast.dev/profile": {
            "profile changed": [annotation("holdfast.dev/profile", "x")]
        },
        "change delay, holdfast.dev/held, holdfast.dev/profile": {
            "all annotations removed": [remove("/metadata/annotations")]
        },
        pod_policies.MOVED: {
            "another controlling owner": [write("/metadata/ownerReferences", [OWNED])],
            "group label": [write("/metadata/labels", {KUEUE_GROUP: "g1"})],
            "revision label": [write("/metadata/labels", {REVISION_LABEL: "web-1"})],
        },
        "release it or change delay": {"both": [STRIP, annotation("delay", "0")]},
    }
)
PACE_CHANGES: Mapping[str, Sequence[Operation]] = {
    "label removed": [remove("/metadata/labels/holdfast.dev~1pace")],
    "all labels removed": [remove("/metadata/labels")],
    "label changed": [write("/metadata/labels/holdfast.dev~1pace", "b")],
    "another pace": [annotation(PACE, "9")],
    "no pace": [annotation(PACE, None)],
    "an earlier release": [annotation(RELEASED, "2020-01-01T00:00:00Z")],
    "no release": [annotation(RELEASED, None)],
}
LEVEL = write("/metadata/labels/pod-security.kubernetes.io~1enforce", "privileged")
NO_OWNER = {"apiVersion": "v1", "kind": "PersistentVolume", "name": "gone", "uid": "gone"}
FREEZER_MAY_NOT = rows(
    {
        "annotations other than": {
            "node selector of PodNodeSelector": [
                annotation("scheduler.alpha.kubernetes.io/node-selector", "a=b")
            ],
            "unrelated annotation": [annotation("team", "b")],
            "all annotations": [remove("/metadata/annotations")],
            "other Holdfast annotation": [annotation("holdfast.dev/delay", "1h")],
        },
        "metadata.labels": {
            "Pod Security level": [LEVEL],
            "label removed": [remove("/metadata/labels/team")],
        },
        "metadata.ownerReferences": {
            "owner that does not exist": [write("/metadata/ownerReferences", [NO_OWNER])]
        },
        "metadata.finalizers": {"finalizer": [write("/metadata/finalizers", ["example.com/mine"])]},
    }
)
CONTROLLER_MAY_NOT = rows(
    {
        "spec.containers": {"image": [write("/spec/containers/0/image", "evil")]},
        "spec.initContainers": {
            "image of an init container": [write("/spec/initContainers/0/image", "evil")]
        },
        "spec.activeDeadlineSeconds": {
            "active deadline": [write("/spec/activeDeadlineSeconds", 1)]
        },
        "spec.tolerations": {
            "toleration": [TOLERATION],
            "toleration of every taint": [write("/spec/tolerations/-", {"operator": "Exists"})],
            "toleration with the release": [TOLERATION, STRIP],
        },
        "metadata.labels": {
            "label": [write("/metadata/labels/app", "other")],
            "label added": [write("/metadata/labels/new", "one")],
            "labels removed": [remove("/metadata/labels")],
            "Holdfast label changed": [write("/metadata/labels/holdfast.dev~1held", "no")],
        },
        "annotations outside holdfast.dev/": {
            "unrelated annotation": [annotation("team", "b")],
            "unrelated annotation added": [annotation("example.com/new", "b")],
            "unrelated annotation removed": [annotation("team", None)],
            "the user's delay": [annotation("delay", "0")],
        },
        "metadata.ownerReferences": {"owner": [OWNER]},
        "spec.schedulingGates": {
            "foreign gate": [remove("/spec/schedulingGates/1")],
            "all gates": [remove("/spec/schedulingGates")],
        },
        "metadata.finalizers": {
            "foreign finalizer": [remove("/metadata/finalizers/1")],
            "all finalizers": [remove("/metadata/finalizers")],
            "finalizer added": [write(FINALIZER, "example.com/new")],
            "Holdfast finalizer added": [write(FINALIZER, "holdfast.dev/new")],
        },
    }
)
VM_TEMPLATE = "/spec/template/metadata/annotations"
MACHINE_MAY_NOT = rows(
    {
        "spec": {
            "run strategy": [write("/spec/runStrategy", "Always")],
            "template": [write(VM_TEMPLATE, {"holdfast.dev/delay": "1h"})],
        },
        "metadata.labels": {"label": [write("/metadata/labels/app", "other")]},
        "metadata.finalizers": {
            "finalizers": [remove("/metadata/finalizers")],
            "Holdfast finalizer": [write(FINALIZER, "holdfast.dev/sticky")],
        },
        "metadata.ownerReferences": {"owner": [OWNER]},
        "annotations of a VirtualMachine other than": {
            "unrelated annotation": [annotation("team", "b")],
            "unrelated annotation removed": [annotation("team", None)],
            "the user's choice": [annotation("holdfast.dev/sticky", "false")],
            "other Holdfast annotation": [annotation("holdfast.dev/new", "a")],
        },
    }
)
MACHINE_MAY: Mapping[str, tuple[Object, Sequence[Operation]]] = {
    "missing architecture filled in": ({}, [write("/spec/template/spec/architecture", "amd64")]),
    "missing machine filled in": (
        {},
        [write("/spec/template/spec/domain/machine", {"type": "q35"})],
    ),
    "empty machine filled in": (
        {"domain": {"devices": {}, "machine": {"type": ""}}},
        [write("/spec/template/spec/domain/machine/type", "q35")],
    ),
    "empty timestamps dropped": (
        {},
        [
            remove("/spec/template/metadata/creationTimestamp"),
            remove("/spec/dataVolumeTemplates/0/metadata/creationTimestamp"),
        ],
    ),
    "empty metadata dropped": ({}, [remove("/spec/template/metadata")]),
}
"""The spec of a VM of an older KubeVirt, and what KubeVirt's webhook changes when it is written."""

FILLED = {"architecture": "amd64", "domain": {"devices": {}, "machine": {"type": "q35"}}}
MACHINE_FILLED_MAY_NOT: Mapping[str, Sequence[Operation]] = {
    "another architecture": [write("/spec/template/spec/architecture", "arm64")],
    "no architecture": [remove("/spec/template/spec/architecture")],
    "another machine": [write("/spec/template/spec/domain/machine/type", "pc")],
    "no machine": [remove("/spec/template/spec/domain/machine")],
    "devices": [write("/spec/template/spec/domain/devices/rng", {})],
    "CPUs": [write("/spec/template/spec/domain/cpu", {"cores": 64})],
    "a node": [write("/spec/template/spec/nodeSelector", {"disk": "fast"})],
    "a grace period": [write("/spec/template/spec/terminationGracePeriodSeconds", 7)],
    "a label": [write("/spec/template/metadata/labels", {"a": "b"})],
    "another volume": [write("/spec/dataVolumeTemplates/0/spec/pvc/volumeName", "b")],
    "a renamed volume": [write("/spec/dataVolumeTemplates/0/metadata/name", "b")],
    "an additional volume": [
        write("/spec/dataVolumeTemplates/-", {"metadata": {"name": "b"}, "spec": {}})
    ],
    "no volumes": [remove("/spec/dataVolumeTemplates")],
    "another run strategy": [write("/spec/runStrategy", "Always")],
    "an instance type": [write("/spec/instancetype", {"name": "huge"})],
}

NODE_1 = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
AFFINITY = {"nodeSelectorTerms": [{"matchFields": [NODE_1]}]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NOT_READY = {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}
CONTROLLER_MAY: Mapping[str, Sequence[Operation]] = {
    "release": [STRIP],
    "Holdfast finalizer removed": [remove("/metadata/finalizers/0")],
    "Holdfast annotations": [
        annotation("holdfast.dev/held", None),
        annotation("holdfast.dev/new", "a"),
    ],
    "node selector": [write("/spec/nodeSelector", {"disk": "fast"})],
    "default toleration": [write("/spec/tolerations/-", NOT_READY)],
    "affinity with the release": [
        write("/spec/affinity", {"nodeAffinity": {REQUIRED: AFFINITY}}),
        STRIP,
    ],
}
SERVICE = {"service": {"namespace": "holdfast-system", "name": "holdfast-webhook", "path": "/x"}}


def rule(**changes: list[str]) -> Object:
    usual = {"apiGroups": [""], "resources": ["pods"], "operations": ["CREATE", "UPDATE"]}
    return {**usual, "apiVersions": ["v1"], **changes}


METADATA_NAME = "kubernetes.io/metadata.name"


def all_but(*namespaces: str) -> Object:
    key = METADATA_NAME
    return {"matchExpressions": [{"key": key, "operator": "NotIn", "values": list(namespaces)}]}


def configuration(
    kind: str,
    name: str = "holdfast",
    *,
    client: Object = SERVICE,
    rules: Sequence[Object] = (),
    namespaces: Object | None = None,
) -> Object:
    webhook = {
        "name": "pods.holdfast.dev",
        "clientConfig": client,
        "rules": list(rules) or [rule()],
        "namespaceSelector": EXCLUDING_SELECTOR if namespaces is None else namespaces,
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
        "matchConditions": [NOT_YET],  # so that stored configurations have no effect
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "webhooks": [webhook],
    }


EXCLUDED = ("kube-system", "holdfast-system")
EXCLUDING_SELECTOR = all_but(*EXCLUDED)
IN = {"key": "team", "operator": "In", "values": ["a", "b"]}
EXISTS = {"key": "tier", "operator": "Exists"}
LABEL = {"app.kubernetes.io/name": "holdfast"}
KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
_OTHER_NAME = "may only write webhook configurations named holdfast"
_OTHER_SERVICE = "may only register webhooks for the Service holdfast-system/holdfast-webhook"
_EXPRESSIONS = "namespaceSelector.matchExpressions"
_OTHER_RULES = "may only register webhooks for CREATE and UPDATE of pods and workloads"
_OTHER_NAMESPACES = (
    "may only register webhooks that exclude the namespaces kube-system and holdfast-system"
)


def selecting(**changes: Any) -> Object:
    """Make Holdfast's selector, with a changed field."""
    return {"matchExpressions": [{**EXCLUDING_SELECTOR["matchExpressions"][0], **changes}]}


def and_also(key: str, *values: str, operator: str = "NotIn") -> Object:
    """Make Holdfast's selector, with another requirement."""
    (ours,) = EXCLUDING_SELECTOR["matchExpressions"]
    return {"matchExpressions": [ours, {"key": key, "operator": operator, "values": [*values]}]}


REJECTED_WEBHOOKS: Mapping[str, tuple[dict[str, Any], str]] = {
    "another name": ({"name": "other"}, _OTHER_NAME),
    "a url": ({"client": {"url": "https://evil.example.com/x"}}, _OTHER_SERVICE),
    **{
        f"another {field}": (
            {"client": {"service": {**SERVICE["service"], key: "evil"}}},
            _OTHER_SERVICE,
        )
        for field, key in (("namespace", "namespace"), ("service", "name"))
    },
    **{
        name: ({"rules": [rule(), one]}, _OTHER_RULES)
        for name, one in {
            "secrets": rule(resources=["secrets"]),
            "every resource": rule(resources=["*"]),
            "a subresource": rule(resources=["pods/exec"]),
            "every group": rule(apiGroups=["*"]),
            "deletion": rule(operations=["DELETE"]),
            "every operation": rule(operations=["*"]),
        }.items()
    },
    **{
        name: ({"namespaces": one}, _OTHER_NAMESPACES)
        for name, one in {
            "no namespace excluded": {},
            "kube-system not excluded": all_but("holdfast-system"),
            "holdfast-system not excluded": all_but("kube-system", "others"),
            "only the excluded namespaces": selecting(operator="In"),
            "another label key": selecting(key="team"),
        }.items()
    },
    **{
        name: ({"namespaces": one}, f"may not add or change {what} of webhooks")
        for name, (one, what) in {
            "no namespace selected": (
                and_also(METADATA_NAME, "nowhere", operator="In"),
                _EXPRESSIONS,
            ),
            "another namespace excluded": (all_but(*EXCLUDED, "team-a"), _EXPRESSIONS),
            "another namespace excluded separately": (
                and_also(METADATA_NAME, "team-a"),
                _EXPRESSIONS,
            ),
            "labelled namespaces excluded": (and_also("team", "gke-a"), _EXPRESSIONS),
            "only labelled namespaces": (
                {**EXCLUDING_SELECTOR, "matchLabels": {"team": "a"}},
                "namespaceSelector.matchLabels",
            ),
        }.items()
    },
}


@dataclass(frozen=True)
class Guarded:
    """A cluster with the shipped roles and policies, and the controller."""

    plane: ControlPlane
    token_kubeconfig: Path

    def ns(self) -> Namespace:
        """Make a namespace with a developer, jane, and an admin, amy.

        Fred may freeze it, and so may another admin, fay.
        """
        ns = Namespace.create_new(self.plane, f"guard-{next(_numbers)}")
        for role, users in {
            "edit": ["jane"],
            "admin": ["amy", "fay"],
            "holdfast-freezer": ["fred", "fay"],
        }.items():
            subjects = [f"--user={user}" for user in users]
            ns.kubectl("create", "rolebinding", role, f"--clusterrole={role}", *subjects)
        return ns

    def controller(self, ns: Namespace) -> KubectlUser:
        return KubectlUser(ns, self.token_kubeconfig)

    def user(self, ns: Namespace, name: str) -> KubectlUser:
        return KubectlUser(ns, self.plane.kubeconfig_for(name))

    def apply_guard(self) -> None:
        self.plane.kubectl("apply", "-k", str(MANIFESTS / "guard"))

    def probe(self, ns: Namespace, policy: str) -> str:
        """Request, in a dry run, a change that only this policy rejects; return the message."""
        probes = {
            pod_policies.HOLD: lambda: self.user(ns, "jane").patch("probed", [STRIP]),
            pod_policies.PACE: lambda: self.user(ns, "jane").patch(
                "probed", [write("/metadata/labels", {PACE: "a"})]
            ),
            pod_policies.APPROVAL: lambda: self.user(ns, "jane").patch(
                "probed", [annotation(APPROVED_BY, "jane")]
            ),
            FREEZE_POLICY: lambda: self.user(ns, "fred").patch(
                ns.namespace, [LEVEL], kind="namespace"
            ),
            FREEZE_ROLES_POLICY: lambda: self.user(ns, "fay").create(
                role("probed", "namespaces", "patch")
            ),
            pod_policies.CONTROLLER_PODS: lambda: self.controller(ns).patch(
                "probed", [write("/metadata/labels", {"a": "b"})]
            ),
            CONTROLLER_VMS: lambda: self.controller(ns).patch(
                "probed", [write("/metadata/labels", {"a": "b"})], kind="vm"
            ),
            pod_policies.CONTROLLER_WEBHOOKS: lambda: self.controller(ns).create(
                configuration(KINDS[0], "other")
            ),
            CONTROLLER_SECRETS: lambda: self.controller(ns).create(secret(type=TOKEN)),
        }
        return refusal(probes[policy])

    def await_policy(self, ns: Namespace, policy: str) -> None:
        """Wait until the API server enforces a policy, which takes a moment."""
        ns.eventually(lambda: policy in self.probe(ns, policy))

    @contextmanager
    def without_binding(self, ns: Namespace, policy: str) -> Iterator[None]:
        """Delete a policy's binding until the block ends."""
        ns.apply(held("probed"), machine("probed"))
        self.plane.kubectl("delete", "validatingadmissionpolicybinding", policy)
        try:
            ns.eventually(lambda: not self.probe(ns, policy))
            yield
        finally:
            self.apply_guard()
            self.await_policy(ns, policy)


def role(name: str, resource: str, *verbs: str) -> Object:
    rule = {"apiGroups": [""], "resources": [resource], "verbs": [*verbs]}
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
    return {**kind, "metadata": {"name": name}, "rules": [rule]}


def held(name: str, **annotations: str) -> Object:
    """Make a pod as edited by the webhook, with a long hold."""
    hint = {"holdfast.dev/held": "delay=1000s", "holdfast.dev/profile": "*"}
    return pod(name, {"delay": "1000", **hint, **annotations}, schedulingGates=[{"name": GATE}])


def full(name: str) -> Object:
    """Make a held pod that sets every kind of field that the controller must not change."""
    made = held(name, team="a")
    made["metadata"]["labels"] = {"app": "mine"}
    made["metadata"]["finalizers"] = ["holdfast.dev/sticky", "example.com/mine"]
    spec = made["spec"]
    spec["schedulingGates"].append({"name": FOREIGN_GATE})
    spec["initContainers"] = [{"name": "first", "image": "busybox"}]
    spec["tolerations"] = [{"key": "mine", "operator": "Exists"}]
    return made


def machine(name: str) -> Object:
    made = vms.vm(name, {"team": "a", "holdfast.dev/sticky": "true"}, run_strategy="Halted")
    made["metadata"]["labels"] = {"app": "mine"}
    made["metadata"]["finalizers"] = ["example.com/mine"]
    return made


def secret(**changes: Any) -> Object:
    """Make a Secret that could hold a token of the namespace's own account."""
    account = {"kubernetes.io/service-account.name": "default"}
    metadata = {"name": "holdfast-ca", "annotations": account}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, **changes}


TOKEN = "kubernetes.io/service-account-token"


def stored(name: str, **spec: Any) -> Object:
    """Make a VM as stored by an older KubeVirt, with a data volume template."""
    made = machine(name)
    made["spec"]["template"]["metadata"] = {"creationTimestamp": None}
    made["spec"]["template"]["spec"] |= spec
    volume = {"creationTimestamp": None, "name": "disk"}
    made["spec"]["dataVolumeTemplates"] = [{"metadata": volume, "spec": {"pvc": {}}}]
    return made


def grant_excess_rights(plane: ControlPlane) -> None:
    """Grant the controller rights that it never has, so that only the policies limit it."""
    name = "far-too-much"
    kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
    plane.kubectl(
        *("create", "clusterrole", name, "--verb=*"),
        f"--resource=pods,pods/status,secrets,leases,{VMS},{VMS}/status,{kinds}",
    )
    plane.kubectl(
        "create", "clusterrolebinding", name, f"--clusterrole={name}", f"--user={CONTROLLER}"
    )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guard")
    with ControlPlane(nodes=1, audit=True) as plane:
        token_kubeconfig = controller_kubeconfig(plane, folder / "controller.kubeconfig")
        plane.api.create(DEFINITIONS, vms.definition(VMS))
        running = Guarded(plane, token_kubeconfig)
        running.apply_guard()
        ns = running.ns()
        ns.eventually(lambda: not refusal(ns.kubectl, "get", "vm"))
        grant_excess_rights(plane)
        ns.apply(held("probed"), machine("probed"))
        for policy in POLICIES:
            running.await_policy(ns, policy)
        arguments = ["--kubeconfig", str(token_kubeconfig), "--health-port", "0"]
        with Command("controller", *arguments, log=folder / "controller.log"):
            yield running


@pytest.fixture
def ns(guarded: Guarded) -> Namespace:
    return guarded.ns()


@pytest.fixture(scope="module")
def shared(guarded: Guarded) -> Namespace:
    """A namespace with pods, shared by all tests that use dry runs only."""
    ns = guarded.ns()
    ns.apply(held("held"), full("full"), machine("vm"), stored("filled", **FILLED))
    return ns


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_pass_type_checking(guarded: Guarded, policy: str) -> None:
    def checked() -> Object:
        seen = guarded.plane.kubectl("get", "validatingadmissionpolicy", policy, "-o", "json")
        found: Object = json.loads(seen)
        status = found.get("status", {})
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        return status if current and "typeChecking" in status else {}

    ns = Namespace(guarded.plane, "default")
    found = ns.eventually(checked)["typeChecking"].get("expressionWarnings", [])
    if os.environ.get(versions.VARIABLE, versions.NEWEST) != versions.NEWEST:
        # older type checkers mistake the field for a reserved word of CEL; evaluation does not
        found = [one for one in found if "undefined field 'namespace'" not in one["warning"]]
    assert found == []


def test_applying_the_manifests_again_changes_nothing(guarded: Guarded) -> None:
    for folder in ("rbac", "guard"):
        lines = guarded.plane.kubectl("apply", "-k", str(MANIFESTS / folder)).splitlines()
        assert [line for line in lines if not line.endswith(" unchanged")] == []


@pytest.mark.parametrize(("change", "what"), HOLD_CHANGES.values(), ids=HOLD_CHANGES)
def test_developer_cannot_release_or_change_a_hold(
    guarded: Guarded, shared: Namespace, change: Sequence[Operation], what: str
) -> None:
    message = refusal(guarded.user(shared, "jane").patch, "held", change, dry_run=False)
    where = shared.namespace
    assert message.endswith(
        f"pod {where}/held is held by holdfast.dev/delay: jane may not {what}: this needs "
        f"the verb 'release' on holds.holdfast.dev in namespace {where} (role holdfast-releaser)"
    )


def test_key_in_the_hint_is_guarded_even_if_unconfigured(guarded: Guarded, ns: Namespace) -> None:
    hint = {"example.com/wait": "1000", "holdfast.dev/held": "example.com/wait=1000s,jitter=1s"}
    ns.apply(pod("old", hint, schedulingGates=[{"name": GATE}]))
    jane = guarded.user(ns, "jane")
    message = refusal(jane.patch, "old", [annotation("example.com/wait", "0")])
    assert "jane may not change example.com/wait:" in message
    jane.patch("old", [annotation("jitter", "mine")])


def test_annotations_cannot_be_changed_through_the_pod_status(
    guarded: Guarded, ns: Namespace
) -> None:
    ns.apply(held("held"))
    ns.kubectl("create", "role", "status", "--verb=get,patch", "--resource=pods/status")
    ns.kubectl("create", "rolebinding", "status", "--user=jane", "--role=status")
    jane = guarded.user(ns, "jane")
    message = refusal(jane.patch, "held", [annotation("delay", "0")], "--subresource=status")
    assert "jane may not change delay:" in message
    jane.patch("held", [annotation("team", "a")], "--subresource=status")


def test_namespace_admin_may_release_and_change_holds(guarded: Guarded, ns: Namespace) -> None:
    ns.apply(held("held"))
    amy = guarded.user(ns, "amy")
    ns.eventually(lambda: not refusal(amy.patch, "held", [STRIP]))  # wait for role aggregation
    messages = {name: refusal(amy.patch, "held", c) for name, (c, _) in HOLD_CHANGES.items()}
    assert messages == dict.fromkeys(HOLD_CHANGES, "")
    amy.patch("held", [STRIP], dry_run=False)
    assert gates(ns.get("pod", "held")) == []


def test_freezer_may_only_change_freeze_annotations(guarded: Guarded, ns: Namespace) -> None:
    for what in ("annotate", "label"):
        ns.kubectl(what, "namespace", ns.namespace, "team=a")
    fred, name = guarded.user(ns, "fred"), ns.namespace
    for change, what in FREEZER_MAY_NOT.values():
        message = refusal(fred.patch, name, change, kind="namespace")
        assert f"with the verb 'freeze' alone, you may not change {what}" in message
    freeze = [annotation(FREEZE, "x"), annotation(FREEZE_UNTIL, "2020-01-01T00:00:00Z")]
    fred.patch(name, freeze, kind="namespace", dry_run=False)
    fred.patch(name, [annotation(FREEZE, None)], kind="namespace", dry_run=False)

    ns.kubectl("create", "role", "own", "--verb=update", "--resource=namespaces")
    ns.kubectl("create", "rolebinding", "own", "--user=fred", "--role=own")
    ns.eventually(lambda: not refusal(fred.patch, name, [LEVEL], kind="namespace"))
    for user in (KubectlUser(ns, ns.plane.kubeconfig), fred):
        for change, _ in FREEZER_MAY_NOT.values():
            user.patch(name, change, kind="namespace")


def test_freezer_cannot_grant_patch_on_namespaces(guarded: Guarded, ns: Namespace) -> None:
    """An account that may patch namespaces, without the verb 'freeze', may change every field."""
    fay, may_patch = guarded.user(ns, "fay"), role("labeler", "namespaces", "get", "patch")
    message = (
        "you may not grant the verb 'patch' on namespaces: bind the ClusterRole holdfast-freezer"
    )
    ns.eventually(lambda: message in refusal(fay.create, may_patch))
    reading = role("labeler", "namespaces", "get")
    empty = role("empty", "pods") | {"rules": None}
    fay.create(reading, role("reader", "pods", "get", "patch"), empty, dry_run=False)
    fay.patch("empty", [write("/metadata/labels", {"team": "a"})], kind="role")
    change = [write("/rules", may_patch["rules"])]
    for name in ("labeler", "empty"):
        assert message in refusal(fay.patch, name, change, kind="role")

    ns.kubectl("patch", "role", "labeler", "--type=json", f"--patch={json.dumps(change)}")
    fay.patch("labeler", [write("/metadata/labels", {"team": "a"})], kind="role")
    account = f"system:serviceaccount:{ns.namespace}:default"
    ns.kubectl("annotate", "namespace", ns.namespace, "team=a")
    fay.kubectl("create", "rolebinding", "x", "--clusterrole=holdfast-freezer", f"--user={account}")
    bound = guarded.user(ns, account)
    freeze = [annotation(FREEZE, "x")]
    ns.eventually(lambda: not refusal(bound.patch, ns.namespace, freeze, kind="namespace"))
    assert "you may not change metadata.labels" in refusal(
        bound.patch, ns.namespace, [LEVEL], kind="namespace"
    )

    ns.kubectl("create", "role", "own", "--verb=update", "--resource=namespaces")
    ns.kubectl("create", "rolebinding", "own", "--user=fay", "--role=own")
    ns.eventually(lambda: not refusal(fay.create, role("other", "namespaces", "patch")))


def test_namespace_with_held_pods_can_be_deleted(guarded: Guarded) -> None:
    ns = guarded.ns()
    ns.apply(held("held"))
    ns.plane.kubectl("delete", "namespace", ns.namespace, "--timeout=60s")


def test_role_named_in_the_message_permits_the_release(guarded: Guarded, ns: Namespace) -> None:
    ns.apply(held("held"))
    jane = guarded.user(ns, "jane")
    assert "(role holdfast-releaser)" in refusal(jane.patch, "held", [STRIP])
    ns.kubectl("create", "rolebinding", "cure", "--user=jane", "--clusterrole=holdfast-releaser")
    ns.eventually(lambda: not refusal(jane.patch, "held", [STRIP]))


def test_developer_cannot_change_pace_accounting(guarded: Guarded, ns: Namespace) -> None:
    """Neither on a released pod, nor by labelling another one."""
    paced = pod("paced", {PACE: "jvm", RELEASED: "2026-01-01T00:00:00Z", "team": "a"})
    paced["metadata"]["labels"] = {PACE: "jvm", "app": "web"}
    ns.apply(paced, pod("other", {PACE: "jvm", RELEASED: "2026-01-01T00:00:00Z"}))
    jane, amy = guarded.user(ns, "jane"), guarded.user(ns, "amy")

    messages = [refusal(jane.patch, "paced", change) for change in PACE_CHANGES.values()]
    messages.append(refusal(jane.patch, "other", [write("/metadata/labels", {PACE: "jvm"})]))
    denied = "'holdfast-pace' denied request: a pace counts"
    assert [one for one in messages if denied not in one] == []
    jane.patch("paced", [annotation("team", "b"), write("/metadata/labels/app", "db")])
    jane.patch("other", [annotation(RELEASED, None)])
    ns.eventually(lambda: not refusal(amy.patch, "paced", PACE_CHANGES["label removed"]))


def test_developer_cannot_create_an_ungated_pod_with_the_pace_label(
    guarded: Guarded, ns: Namespace
) -> None:
    """In a namespace that the webhook does not review, nothing else removes the label."""
    counted = pod("counted", {PACE: "jvm"})
    counted["metadata"]["labels"] = {PACE: "jvm"}
    unnamed = copy.deepcopy(counted)
    unnamed["metadata"]["generateName"] = f"{unnamed['metadata'].pop('name')}-"
    waiting = copy.deepcopy(counted)
    waiting["spec"]["schedulingGates"] = [{"name": FOREIGN_GATE}, {"name": PACE}]
    elsewhere = copy.deepcopy(counted)
    elsewhere["spec"]["schedulingGates"] = [{"name": FOREIGN_GATE}]
    jane, amy = guarded.user(ns, "jane"), guarded.user(ns, "amy")
    for made in (counted, unnamed, elsewhere):
        assert "'holdfast-pace' denied request: a pace counts" in refusal(jane.create, made)
    jane.create(waiting, pod("unlabelled", {PACE: "jvm"}))
    ns.eventually(lambda: not refusal(amy.create, unnamed))


def test_only_approvers_approve_and_only_in_their_own_name(guarded: Guarded, ns: Namespace) -> None:
    gated = {"schedulingGates": [{"name": APPROVAL_GATE}]}
    ns.apply(*(pod(name, {KEY: "a test"}, **gated) for name in ("asks", "other")))
    for role in ("edit", "holdfast-approver"):
        ns.kubectl("create", "rolebinding", f"ann-{role}", "--user=ann", f"--clusterrole={role}")
    jane, amy, ann = (guarded.user(ns, name) for name in ("jane", "amy", "ann"))
    approved, denied = annotation(APPROVED_BY, "ann"), annotation(DENIED_BY, "ann")
    ns.eventually(lambda: not refusal(ann.patch, "asks", [approved]))
    for user, name in ((jane, "jane"), (amy, "amy")):  # the admin may release, but not approve
        message = refusal(user.patch, "asks", [annotation(APPROVED_BY, name)])
        assert message.endswith(
            f"{name} may not approve or deny pod {ns.namespace}/asks: this needs the verb "
            f"'approve' on holds.holdfast.dev in namespace {ns.namespace} (role holdfast-approver)"
        )
    for key in (APPROVED_BY, DENIED_BY):
        assert "must be the name of the user" in refusal(
            ann.patch, "asks", [annotation(key, "amy")]
        )
    assert "may not release it" in refusal(ann.patch, "asks", [STRIP])
    for mark in MARKS:  # without a hold annotation, no webhook reviews it
        forged = pod("forged", {mark: "amy"})
        assert "may not approve or deny pod" in refusal(jane.create, forged)
    ann.create(forged)
    ann.patch("other", [denied], dry_run=False)
    ann.patch("asks", [approved], dry_run=False)
    ns.eventually(lambda: "asks" in ns.releases())
    assert gates(ns.get("pod", "other")) == [APPROVAL_GATE]
    assert "must be the name" in refusal(ann.patch, "asks", [annotation(APPROVED_BY, "amy")])
    (approver,) = {
        event["user"]["username"]
        for event in ns.audit()
        if event["verb"] == "patch"
        and event["objectRef"]["name"] == "asks"
        and event["responseStatus"]["code"] == 200
        and event["user"]["username"] != CONTROLLER
        and "subresource" not in event["objectRef"]
        and "dryRun" not in event["requestURI"]
    }
    assert approver == "ann"


def test_only_approvers_change_containers_of_pods_with_approval(
    guarded: Guarded, ns: Namespace
) -> None:
    first = [{"name": "first", "image": "busybox"}]
    for name, gate, annotations in (
        ("asks", APPROVAL_GATE, {KEY: "a test"}),
        ("waits", FOREIGN_GATE, {KEY: "a test", APPROVED_BY: "ann"}),
        ("free", FOREIGN_GATE, {}),
    ):
        ns.apply(pod(name, annotations, schedulingGates=[{"name": gate}], initContainers=first))
    for role in ("edit", "holdfast-approver"):
        ns.kubectl("create", "rolebinding", f"ann-{role}", "--user=ann", f"--clusterrole={role}")
    ns.kubectl("create", "role", "debug", "--verb=get,patch", "--resource=pods/ephemeralcontainers")
    for user in ("jane", "ann"):
        ns.kubectl("create", "rolebinding", f"{user}-debug", f"--user={user}", "--role=debug")
    jane, ann = guarded.user(ns, "jane"), guarded.user(ns, "ann")
    ns.eventually(lambda: not refusal(ann.patch, "asks", [annotation(APPROVED_BY, "ann")]))
    debugger = write("/spec/ephemeralContainers", [{"name": "more", "image": "evil"}])
    for change in (
        [[write("/spec/containers/0/image", "evil")]],
        [[write("/spec/initContainers/0/image", "evil")]],
        [[debugger], "--subresource=ephemeralcontainers"],
    ):
        assert refusal(jane.patch, "free", *change) == ""
        for name in ("asks", "waits"):
            message = refusal(jane.patch, name, *change)
            assert (
                f"jane may not change the containers of pod {ns.namespace}/{name}: this" in message
            )
            assert refusal(ann.patch, name, *change) == ""
    assert refusal(jane.patch, "asks", [write("/metadata/labels", {"a": "b"})]) == ""


def test_replica_set_orphans_and_adopts_held_pods(guarded: Guarded, ns: Namespace) -> None:
    """The garbage collector removes the owner reference, and the ReplicaSet controller adds it."""
    template = held("web")
    metadata = {**template["metadata"], "labels": {"app": "web"}}
    web = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": metadata, "spec": template["spec"]},
        },
    }

    def owned(number: int) -> set[str]:
        """Return the UIDs of both pods once each has this number of owners."""
        found = [one["metadata"] for one in ns.all("pods")]
        alike = all(len(one.get("ownerReferences", ())) == number for one in found)
        return {one["uid"] for one in found} if alike and len(found) == 2 else set()

    ns.apply(web)
    before = ns.eventually(lambda: owned(1))
    ns.kubectl("delete", "replicaset", "web", "--cascade=orphan")
    assert ns.eventually(lambda: owned(0)) == before
    ns.apply(web)
    assert ns.eventually(lambda: owned(1)) == before
    assert [gates(one) for one in ns.all("pods")] == [[GATE]] * 2


def test_shared_controller_manager_account_may_move_held_pods(
    guarded: Guarded, ns: Namespace
) -> None:
    """It may run without a ServiceAccount for each controller."""
    ns.apply(held("held"))
    name = "system:kube-controller-manager"
    ns.kubectl("create", "rolebinding", "kcm", f"--user={name}", "--clusterrole=edit")
    manager = guarded.user(ns, name)
    ns.eventually(lambda: "forbidden" not in refusal(manager.kubectl, "get", "pods"))
    for change, what in HOLD_CHANGES.values():
        message = refusal(manager.patch, "held", change)
        assert "may not" in message if what != pod_policies.MOVED else message == ""


def test_pod_with_5000_owners_can_be_updated(guarded: Guarded, ns: Namespace) -> None:
    made = held("owned")
    account = ns.all("serviceaccounts")[0]["metadata"]
    owner = {"apiVersion": "v1", "kind": "ServiceAccount"}
    owner |= {key: account[key] for key in ("name", "uid")}
    made["metadata"]["ownerReferences"] = [owner] * 5_000
    ns.create(made)
    jane = guarded.user(ns, "jane")
    jane.patch("owned", [annotation("team", "a")])
    jane.patch("owned", [remove("/metadata/ownerReferences/0")])
    message = refusal(jane.patch, "owned", [write("/metadata/ownerReferences/0", OWNED)])
    assert f"jane may not {pod_policies.MOVED}:" in message


def test_release_right_is_limited_to_its_namespace(
    guarded: Guarded, ns: Namespace, shared: Namespace
) -> None:
    ns.kubectl("create", "rolebinding", "more", "--user=amy", "--clusterrole=edit")
    shared.kubectl("create", "rolebinding", "guest", "--user=ann", "--clusterrole=edit")
    ns.kubectl("create", "rolebinding", "chief", "--user=ann", "--clusterrole=admin")
    message = refusal(guarded.user(shared, "ann").patch, "held", [STRIP])
    assert "ann may not release it" in message


def test_developer_can_make_other_changes_to_a_held_pod(guarded: Guarded, ns: Namespace) -> None:
    ns.apply(full("full"))
    jane = guarded.user(ns, "jane")
    jane.kubectl("label", "pod", "full", "app=other", "--overwrite")
    jane.kubectl("annotate", "pod", "full", "team=b", "sticky=yes", "--overwrite")
    jane.patch("full", [remove("/spec/schedulingGates/1")], dry_run=False)
    jane.patch("full", [remove("/metadata/finalizers")], dry_run=False)
    assert gates(ns.get("pod", "full")) == [GATE]
    jane.kubectl("delete", "pod", "full")
    assert ns.all("pods") == []


def test_guard_ignores_pods_without_our_gate(guarded: Guarded, ns: Namespace) -> None:
    foreign = {"schedulingGates": [{"name": FOREIGN_GATE}]}
    ns.apply(pod("free", {"delay": "15"}), pod("others", {"delay": "15"}, **foreign))
    jane = guarded.user(ns, "jane")
    for name in ("free", "others"):
        jane.kubectl("annotate", "pod", name, "delay=0", "holdfast.dev/held=x", "--overwrite")
        jane.kubectl("annotate", "pod", name, "delay-", "holdfast.dev/held-")
    jane.patch("others", [STRIP], dry_run=False)


def test_controller_releases_with_its_own_account(guarded: Guarded, ns: Namespace) -> None:
    ns.apply(pod("soon", {"delay": "1"}, schedulingGates=[{"name": GATE}, {"name": FOREIGN_GATE}]))
    ns.eventually(lambda: "soon" in ns.releases())
    assert gates(ns.get("pod", "soon")) == [FOREIGN_GATE]
    (who,) = {
        event["user"]["username"]
        for event in ns.audit()
        if event["verb"] == "patch"
        and event["userAgent"] == "holdfast"
        and event["objectRef"]["resource"] == "pods"
    }
    assert who == CONTROLLER


def test_largest_pod_is_released_and_guarded(guarded: Guarded, ns: Namespace) -> None:
    large = pod(
        "large",
        {"delay": "3"} | {f"example.com/key-{number:05}": "x" * 40 for number in range(4000)},
        schedulingGates=[
            *({"name": f"example.com/gate-{number}"} for number in range(1000)),
            {"name": GATE},
        ],
        initContainers=[{"name": f"first-{number}", "image": "busybox"} for number in range(200)],
    )
    large["metadata"]["labels"] = {f"label-{number:05}": "x" * 60 for number in range(4_999)}
    jane = guarded.user(ns, "jane")
    jane.create(large, dry_run=False)
    jane.kubectl("label", "pod", "large", "app=mine")
    message = refusal(jane.patch, "large", [annotation("delay", "0")])
    assert "jane may not change delay:" in message
    ns.eventually(lambda: "large" in ns.releases())
    assert len(gates(ns.get("pod", "large"))) == 1000


def test_pod_with_2000_holdfast_gates_can_be_updated(guarded: Guarded, ns: Namespace) -> None:
    many = [{"name": f"holdfast.dev/gate-{number}"} for number in range(2000)]
    made = pod("many", {"delay": "1000"}, schedulingGates=many)
    made["metadata"]["finalizers"] = ["holdfast.dev/sticky", "example.com/mine"]
    jane = guarded.user(ns, "jane")
    jane.create(made, dry_run=False)
    jane.patch("many", [remove("/metadata/finalizers/1")], dry_run=False)
    controller = guarded.controller(ns)
    controller.patch("many", [remove("/metadata/finalizers")])
    controller.patch("many", [remove("/spec/schedulingGates")])
    assert "many" in refusal(jane.patch, "many", [STRIP])


def test_pod_with_15000_holdfast_gates_is_released(guarded: Guarded, ns: Namespace) -> None:
    """The webhook would reject it, and the API server rejects a JSON Patch of this length."""
    many = pod("many", {"delay": "1"}, schedulingGates=[{"name": FOREIGN_GATE}])
    many["spec"]["schedulingGates"] += [{"name": f"holdfast.dev/{n}"} for n in range(15_000)]
    ns.create(many)
    ns.eventually(lambda: gates(ns.get("pod", "many")) == [FOREIGN_GATE])


@pytest.mark.slow
def test_pod_with_75000_annotations_is_released_and_deleted(
    guarded: Guarded, ns: Namespace
) -> None:
    many = held("many", **dict.fromkeys(short_keys(75_000), ""))
    many["metadata"]["annotations"] |= {"delay": "1", "holdfast.dev/held": "delay=1s"}
    many["metadata"]["finalizers"] = ["holdfast.dev/sticky"]
    ns.create(many)
    assert "patched" in guarded.controller(ns).patch("many", [remove("/metadata/finalizers")])
    ns.eventually(lambda: "many" in ns.releases())
    ns.kubectl("delete", "pod", "many", "--wait=false")
    controller = guarded.controller(ns)

    def is_deleted() -> bool:
        message = ""
        if ns.all("pods"):
            message = refusal(
                controller.patch, "many", [remove("/metadata/finalizers")], dry_run=False
            )
        assert "orbidden" not in message  # a busy API server may exceed its own deadline, though
        return ns.all("pods") == []

    ns.eventually(is_deleted, 200)


def test_pod_at_the_annotation_size_limit_is_released(guarded: Guarded, ns: Namespace) -> None:
    full = held("full")
    annotations = full["metadata"]["annotations"]
    annotations |= {"delay": "1", "holdfast.dev/held": "delay=1s", "filled": ""}
    used = sum(map(len, (*annotations, *annotations.values())))
    annotations["filled"] = "x" * ((256 << 10) - used)
    ns.create(full)
    ns.eventually(lambda: "full" in ns.releases())


def short_keys(number: int) -> Iterator[str]:
    """Make three-character keys: an object's annotations are limited to 256 KiB."""
    characters = string.ascii_letters + string.digits
    return map("".join, itertools.islice(itertools.product(characters, repeat=3), number))


def test_held_pod_with_40000_labels_is_released(guarded: Guarded, ns: Namespace) -> None:
    many = held("many")
    many["metadata"]["annotations"] |= {"delay": "1", "holdfast.dev/held": "delay=1s"}
    many["metadata"]["labels"] = dict.fromkeys(short_keys(40_000), "")
    many["metadata"]["labels"] |= {"holdfast.dev/held": "true"}
    ns.create(many)
    ns.eventually(lambda: "many" in ns.releases())


def test_developer_cannot_add_too_many_annotations_or_labels(
    guarded: Guarded, ns: Namespace
) -> None:
    ns.apply(held("held"))
    jane = guarded.user(ns, "jane")
    for field in ("annotations", "labels"):
        message = refusal(
            jane.patch,
            "held",
            [write(f"/metadata/{field}", dict.fromkeys(short_keys(5_001), ""))],
        )
        assert "give it more than 5000 annotations or labels" in message


def test_oversized_hint_does_not_block_updates(guarded: Guarded, ns: Namespace) -> None:
    hint = {"delay": "1000", "holdfast.dev/held": "," * 250_000}
    made = pod("hint", hint, schedulingGates=[{"name": GATE}])
    made["metadata"]["finalizers"] = ["example.com/mine"]
    ns.create(made)
    jane = guarded.user(ns, "jane")
    assert "jane may not change delay" in refusal(jane.patch, "hint", [annotation("delay", "0")])
    jane.patch("hint", [remove("/metadata/finalizers")], dry_run=False)


def test_record_is_written_to_a_vm_with_1000_volumes(guarded: Guarded, ns: Namespace) -> None:
    large = machine("large")
    large["spec"]["dataVolumeTemplates"] = [
        {"metadata": {"name": f"disk-{number}"}, "spec": {}} for number in range(1000)
    ]
    ns.create(large)
    controller = guarded.controller(ns)
    assert "patched" in controller.patch("large", [annotation(RECORD, "node-1")], kind="vm")


@pytest.mark.parametrize(("change", "what"), CONTROLLER_MAY_NOT.values(), ids=CONTROLLER_MAY_NOT)
def test_controller_cannot_change_other_fields_of_a_pod(
    guarded: Guarded, shared: Namespace, change: Sequence[Operation], what: str
) -> None:
    message = refusal(guarded.controller(shared).patch, "full", change)
    assert (
        f"'holdfast-controller-pods' denied request: {CONTROLLER} may not change {what}" in message
    )


def test_uninstall_job_is_limited_like_the_controller(guarded: Guarded, shared: Namespace) -> None:
    name = InstallationNames().uninstaller
    for role in ("far-too-much", "holdfast-releaser"):
        binding = ("create", "clusterrolebinding", f"uninstall-{role}", f"--clusterrole={role}")
        guarded.plane.kubectl(*binding, f"--user={name}")
    job = guarded.user(shared, name)
    shared.eventually(lambda: not refusal(job.patch, "full", [STRIP]))
    for change, what in CONTROLLER_MAY_NOT.values():
        assert f"may not change {what}" in refusal(job.patch, "full", change)


@pytest.mark.parametrize("change", CONTROLLER_MAY.values(), ids=CONTROLLER_MAY)
def test_controller_can_make_the_changes_it_needs(
    guarded: Guarded, shared: Namespace, change: Sequence[Operation]
) -> None:
    assert "patched" in guarded.controller(shared).patch("full", change)


@pytest.mark.parametrize(("change", "what"), MACHINE_MAY_NOT.values(), ids=MACHINE_MAY_NOT)
def test_controller_cannot_change_other_fields_of_a_vm(
    guarded: Guarded, shared: Namespace, change: Sequence[Operation], what: str
) -> None:
    message = refusal(guarded.controller(shared).patch, "vm", change, kind="vm")
    assert (
        f"'holdfast-controller-vms' denied request: {CONTROLLER} may not change {what}" in message
    )


@pytest.mark.parametrize(("spec", "filled"), MACHINE_MAY.values(), ids=MACHINE_MAY)
def test_record_is_written_when_kubevirt_adds_defaults(
    guarded: Guarded, ns: Namespace, spec: Object, filled: Sequence[Operation]
) -> None:
    ns.create(stored("old", **spec))  # apply would drop the nulls
    record = [annotation(RECORD, "node-1"), *filled]
    assert "patched" in guarded.controller(ns).patch("old", record, kind="vm", dry_run=False)


@pytest.mark.parametrize("change", MACHINE_FILLED_MAY_NOT.values(), ids=MACHINE_FILLED_MAY_NOT)
def test_controller_cannot_change_existing_vm_spec_fields(
    guarded: Guarded, shared: Namespace, change: Sequence[Operation]
) -> None:
    message = refusal(guarded.controller(shared).patch, "filled", change, kind="vm")
    assert f"'holdfast-controller-vms' denied request: {CONTROLLER} may not change spec" in message


def test_controller_records_and_clears_a_vms_node(guarded: Guarded, shared: Namespace) -> None:
    controller = guarded.controller(shared)
    record = [
        annotation("holdfast.dev/sticky-node", "node-1"),
        annotation("holdfast.dev/sticky-node-uid", "1234"),
    ]
    assert "patched" in controller.patch("vm", record, kind="vm", dry_run=False)
    assert "patched" in controller.patch("vm", [annotation(RECORD, "node-2")], kind="vm")
    assert "patched" in controller.patch("vm", [annotation(RECORD, None)], kind="vm")


def test_controller_cannot_change_vm_status(guarded: Guarded, shared: Namespace) -> None:
    change = [write("/status", {"ready": True})]
    call = guarded.controller(shared).patch
    message = refusal(call, "vm", change, "--subresource=status", kind="vm")
    assert f"{CONTROLLER} may not change a subresource of a VirtualMachine" in message


def test_controller_cannot_change_pod_status(guarded: Guarded, shared: Namespace) -> None:
    change = [write("/status/message", "all is well")]
    message = refusal(guarded.controller(shared).patch, "full", change, "--subresource=status")
    assert f"{CONTROLLER} may not change a subresource of a pod" in message


def test_gates_cannot_be_added_to_an_existing_pod(guarded: Guarded, shared: Namespace) -> None:
    for actor in (guarded.controller(shared), guarded.user(shared, "amy")):
        add = [write("/spec/schedulingGates/-", {"name": "holdfast.dev/other"})]
        assert "only deletion is allowed" in refusal(actor.patch, "full", add)


def test_controller_can_write_only_plain_secrets_and_leases(
    guarded: Guarded, ns: Namespace
) -> None:
    thief = guarded.controller(ns)
    assert "may only write Secrets of type Opaque or" in refusal(thief.create, secret(type=TOKEN))
    owned = secret()
    owned["metadata"]["ownerReferences"] = [OTHER_OWNER]
    assert "may not change ownerReferences" in refusal(thief.create, owned)
    assert "may not make Secrets immutable" in refusal(thief.create, secret(immutable=True))
    full = secret()
    full["metadata"]["labels"] = {f"label-{number}": "" for number in range(65)}
    assert "with more than 64 labels" in refusal(thief.create, full)
    thief.create(secret(), dry_run=False)
    fill = write("/metadata/labels", full["metadata"]["labels"])
    assert "with more than 64 labels" in refusal(thief.patch, "holdfast-ca", [fill], kind="secret")
    for change in (OWNER, write("/metadata/finalizers", ["example.com/new"])):
        message = refusal(thief.patch, "holdfast-ca", [change], kind="secret")
        assert "may not change ownerReferences or finalizers of Secrets" in message
    thief.patch("holdfast-ca", [write("/data", {"tls.key": ""})], kind="secret")
    lease: Object = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    lease["metadata"] = {"name": "holdfast-controller", "namespace": ns.namespace}
    thief.create(lease, dry_run=False)
    thief.patch("holdfast-controller", [write("/spec", {"holderIdentity": "thief"})], kind="lease")
    for change in (OWNER, write("/metadata/finalizers", ["example.com/new"])):
        message = refusal(thief.patch, "holdfast-controller", [change], kind="lease")
        assert "may not change ownerReferences or finalizers of Secrets and Leases" in message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("change", "what"), REJECTED_WEBHOOKS.values(), ids=REJECTED_WEBHOOKS)
def test_controller_cannot_register_other_webhooks(
    guarded: Guarded, shared: Namespace, kind: str, change: dict[str, Any], what: str
) -> None:
    controller = guarded.controller(shared)
    message = refusal(controller.create, configuration(kind, **change))
    assert f"'holdfast-controller-webhooks' denied request: {CONTROLLER} {what}" in message


@pytest.mark.parametrize("kind", KINDS)
def test_controller_may_update_only_its_webhook_configurations(
    guarded: Guarded, shared: Namespace, kind: str
) -> None:
    """An empty list is permitted too: a condition of `false` has the same effect."""
    controller = guarded.controller(shared)
    ours, theirs = configuration(kind), configuration(kind, "others")
    ours["webhooks"][0]["rules"] += [
        rule(apiGroups=["apps"], resources=["deployments", "statefulsets", "daemonsets"]),
        rule(apiGroups=["batch"], resources=["jobs", "cronjobs"]),
        rule(apiGroups=["kubevirt.io"], resources=["virtualmachines"]),
    ]
    shared.plane.kubectl("create", "-f", "-", stdin=yaml.safe_dump(theirs))
    controller.create({**ours, "webhooks": []}, dry_run=False)
    evil = {"url": "https://evil.example.com/x"}
    more = and_also(METADATA_NAME, "kube-system", "gke-managed-cim", "gmp-public")  # as GKE does
    everywhere = {**ours["webhooks"][0], "name": "templates.holdfast.dev", "namespaceSelector": {}}

    def replace(made: Object) -> str:
        return controller.kubectl("replace", "-f", "-", stdin=yaml.safe_dump(made))

    replace(ours)
    replace({**ours, "webhooks": [{**one, "namespaceSelector": more} for one in ours["webhooks"]]})
    assert _OTHER_SERVICE in refusal(replace, configuration(kind, client=evil))
    second = {**ours, "webhooks": [*ours["webhooks"], everywhere]}
    assert _OTHER_NAMESPACES in refusal(replace, second)
    assert _OTHER_NAME in refusal(replace, theirs)
    assert _OTHER_NAME in refusal(controller.kubectl, "delete", kind, "others")
    assert _OTHER_NAME in refusal(controller.kubectl, "delete", kind, "--all")
    assert refusal(controller.kubectl, "get", kind, "others") == ""
    shared.plane.kubectl("delete", kind, "others", "holdfast", "--ignore-not-found")


@pytest.mark.parametrize(
    "metadata",
    [
        {
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "gone"}
            ]
        },
        {"finalizers": ["example.com/never"]},
        {"annotations": {"cert-manager.io/inject-ca-from": "evil/evil"}},
        {"labels": {"argocd.argoproj.io/instance": "evil"}},
    ],
    ids=lambda metadata: next(iter(metadata)),
)
@pytest.mark.parametrize("kind", KINDS)
def test_controller_cannot_change_metadata_of_its_configurations(
    guarded: Guarded, shared: Namespace, kind: str, metadata: Object
) -> None:
    """An admin may: with an owner that does not exist, the garbage collector deletes them."""
    controller, ours = guarded.controller(shared), configuration(kind)
    changed = {**ours, "metadata": {**ours["metadata"], **metadata}}
    with_label = {**ours, "metadata": {**ours["metadata"], "labels": LABEL}}
    refused = "may not change ownerReferences, finalizers, annotations or labels"

    def replaced(made: Object) -> str:
        text = yaml.safe_dump(made)
        return refusal(controller.kubectl, "replace", "--dry-run=server", "-f", "-", stdin=text)

    try:
        shared.plane.kubectl("create", "-f", "-", stdin=yaml.safe_dump(ours))
        assert refused in replaced(changed)
        assert replaced(with_label) == ""  # its own
        shared.plane.kubectl("replace", "-f", "-", stdin=yaml.safe_dump(changed))
        if "ownerReferences" in metadata:
            shared.eventually(lambda: refusal(shared.plane.kubectl, "get", kind, "holdfast"))
            return
        assert refused in replaced(ours)
        assert replaced(changed) == ""
    finally:
        patch = '{"metadata": {"finalizers": null}}'
        refusal(shared.plane.kubectl, "patch", kind, "holdfast", "--type=merge", f"-p={patch}")
        shared.plane.kubectl("delete", "--ignore-not-found", kind, "holdfast")


def added(made: Object, value: str) -> Object:
    """Return a configuration with an admin's additions of every kind."""
    condition = {"name": "mine", "expression": f"'{value}' != ''"}
    selecting = {
        "matchConditions": [NOT_YET, condition],
        "objectSelector": {
            "matchLabels": {"nobody": value},
            "matchExpressions": [{"key": value, "operator": "Exists"}],
        },
        "namespaceSelector": {**and_also("team", value), "matchLabels": {"nobody": "a"}},
    }
    (webhook,) = made["webhooks"]
    ours, theirs = ({**webhook, **selecting}, {**webhook, "name": f"{value}.example.com"})
    return {**made, "webhooks": [ours, theirs]}


@pytest.mark.parametrize("kind", KINDS)
def test_controller_may_keep_or_remove_an_admins_additions(
    guarded: Guarded, shared: Namespace, kind: str
) -> None:
    """Otherwise it could not renew the caBundle."""
    controller = guarded.controller(shared)
    ours = configuration(kind)
    shared.plane.kubectl("create", "-f", "-", stdin=yaml.safe_dump(added(ours, "a")))

    def replace(made: Object) -> str:
        text = yaml.safe_dump(made)
        return controller.kubectl("replace", "--dry-run=server", "-f", "-", stdin=text)

    renewed = added(ours, "a")
    for webhook in renewed["webhooks"]:
        webhook["clientConfig"] = {**SERVICE, "caBundle": "LS0tLS0="}
    try:
        assert [refusal(replace, made) for made in (renewed, ours)] == ["", ""]
        changed = added(ours, "b")["webhooks"]
        one, other = renewed["webhooks"]
        both = [*one["namespaceSelector"]["matchExpressions"], IN]
        for selector in (changed[0]["namespaceSelector"], {"matchExpressions": both}):
            made = {**ours, "webhooks": [{**one, "namespaceSelector": selector}, other]}
            assert f"may not add or change {_EXPRESSIONS} of webhooks" in refusal(replace, made)
        for field in ("matchConditions", "objectSelector"):
            made = {**ours, "webhooks": [{**one, field: changed[0][field]}, other]}
            assert f"{CONTROLLER} may " in refusal(replace, made), field
        another = {**ours, "webhooks": [*renewed["webhooks"], changed[1]]}
        assert "may only register webhooks named" in refusal(replace, another)
    finally:
        shared.plane.kubectl("delete", kind, "holdfast")


def test_controller_may_write_only_configured_selectors(
    guarded: Guarded, shared: Namespace
) -> None:
    """Another account's policy, for another configuration."""
    labels = [{"matchLabels": {"a": "b"}, "matchExpressions": [one]} for one in (IN, EXISTS)]
    where = InstallationNames(account="other")
    made = webhooks_policy("configured", ["pods.holdfast.dev"], where, Selectors(*labels))
    guarded.plane.kubectl(
        "create", "-f", "-", stdin=yaml.safe_dump_all([made, make_binding("configured")])
    )
    guarded.plane.kubectl(
        *("create", "clusterrolebinding", "other", "--clusterrole=far-too-much"),
        f"--user={where.controller}",
    )
    (ours,) = EXCLUDING_SELECTOR["matchExpressions"]
    namespaces = {**labels[0], "matchExpressions": [ours, IN]}
    user = guarded.user(shared, where.controller)

    def created(name: str = "pods.holdfast.dev", **selectors: Object) -> str:
        made = configuration(KINDS[0], namespaces=namespaces)
        made["webhooks"][0] |= {"objectSelector": labels[1], "name": name, **selectors}
        return refusal(user.create, made)

    more = {"key": "more", "operator": "Exists"}
    shared.eventually(lambda: "may only register" in created(name="b.example.com"))
    assert created() == created(namespaceSelector=EXCLUDING_SELECTOR, objectSelector={}) == ""
    for place, selector in {"namespaceSelector": namespaces, "objectSelector": labels[1]}.items():
        for field, value in {
            "matchLabels": {"a": "b", "c": "d"},
            "matchExpressions": [*selector["matchExpressions"], more],
        }.items():
            changed: Object = {**selector, field: value}
            message = created("pods.holdfast.dev", **{place: changed})
            assert f"may not add or change {place}.{field} of webhooks" in message
    guarded.plane.kubectl("delete", "validatingadmissionpolicybinding", "configured")


@pytest.mark.parametrize("kind", KINDS)
def test_controller_works_alongside_an_admins_webhook(
    guarded: Guarded, shared: Namespace, kind: str
) -> None:
    """The admin's webhook is protected, and the controller can still renew its own caBundle."""
    controller, ours = guarded.controller(shared), configuration(kind)
    (webhook,) = ours["webhooks"]
    theirs = {
        **webhook,
        "name": "theirs.example.com",
        "clientConfig": {"url": "https://theirs.example.com/check"},
        "rules": [{**webhook["rules"][0], "operations": ["*"], "resources": ["nodes"]}],
        "namespaceSelector": {},
        "failurePolicy": "Ignore",
        "matchConditions": [NOT_YET],
    }
    made = {**ours, "webhooks": [webhook, theirs]}
    shared.plane.kubectl("create", "-f", "-", stdin=yaml.safe_dump(made))

    def replaced(*webhooks: Object) -> str:
        text = yaml.safe_dump({**ours, "webhooks": list(webhooks)})
        return refusal(controller.kubectl, "replace", "--dry-run=server", "-f", "-", stdin=text)

    renewed = {**webhook, "clientConfig": {**SERVICE, "caBundle": "LS0tLS0="}}
    elsewhere = {**theirs, "clientConfig": {"url": "https://evil.example.com/check"}}
    try:
        assert replaced(renewed, theirs) == replaced(renewed) == ""
        assert _OTHER_SERVICE in replaced(renewed, elsewhere)
        assert _OTHER_SERVICE in replaced(renewed, {**theirs, "name": "more.example.com"})
    finally:
        shared.plane.kubectl("delete", kind, "holdfast")


def test_guard_does_not_limit_other_users_webhooks(shared: Namespace) -> None:
    for kind in KINDS:
        for change, _ in REJECTED_WEBHOOKS.values():
            made = yaml.safe_dump(configuration(kind, **change))
            shared.plane.kubectl("create", "-f", "-", "--dry-run=server", stdin=made)


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
    for what in ("annotate", "label"):
        ns.kubectl(what, "namespace", ns.namespace, "team=a")
    users = {"held": "jane", "namespace": "fred"}
    actor = guarded.user(ns, users[name]) if name in users else guarded.controller(ns)
    kind = name if name in {"vm", "namespace"} else "pod"
    name = ns.namespace if name == "namespace" else name
    with guarded.without_binding(ns, policy):
        found = {key: refusal(actor.patch, name, c, kind=kind) for key, (c, _) in changes.items()}
        assert found == dict.fromkeys(changes, "")


def test_controller_may_register_any_webhook_without_the_policy(
    guarded: Guarded, ns: Namespace
) -> None:
    controller = guarded.controller(ns)
    with guarded.without_binding(ns, pod_policies.CONTROLLER_WEBHOOKS):
        made = [configuration(KINDS[0], **change) for change, _ in REJECTED_WEBHOOKS.values()]
        messages = [refusal(controller.create, m) for m in made]
        assert messages == [""] * len(made)


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
