"""Who can reach what: the rows of docs/explanation/security.md that need a whole installation.

The manifests as they ship, a controller and an admission server under the tokens of their own
ServiceAccounts, and a namespace whose pods an admin confines to one node.

Each test was seen to fail once, against a build or an installation that was broken for it: a label
`namespace` on a metric; a ClusterRole of the webhook that lists VMs, or patches them; one of the
controller that reads every Secret; the status page on all addresses, and without its look at the
Host; a lookup that does not compare UIDs; a patch that clears the pod's own `nodeSelector`. Not
those of a namespace's admin, of the rights in another namespace, and of rules with tolerations or
for the release: they were not tried against anything broken.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demo.command import Command
from tests.e2e import machines
from tests.e2e.accounts import NAMESPACE, kubevirt_rights, token_kubeconfig
from tests.e2e.actors import Actor, refusal
from tests.e2e.installed import Installation, installation, own_address, port
from tests.e2e.machines import KUBEVIRT, RECORD, create_as_kubevirt
from tests.e2e.test_status_page import free_port
from tests.e2e.world import Object, World, gates, pod
from tests.unit.builders import make_review

pytestmark = pytest.mark.xdist_group("privilege")

WEBHOOK = f"system:serviceaccount:{NAMESPACE}:holdfast-webhook"
CONFINED_TO = "scheduler.alpha.kubernetes.io/node-selector"
ZONE, ROLE = "topology.kubernetes.io/zone", "kubernetes.io/role"
HERE, THERE = "node-1", "node-2"
"""The nodes of zones `a` and `b`; the second is the edge as well."""
RULES = f"""
apiVersion: holdfast.dev/v1alpha1
kind: HoldfastConfiguration
profiles:
- pluginConfig:
  - name: placement
    args:
      rules:
      - {{name: space, when: {{annotation: type, equals: space}},
         require: [{{key: {ROLE}, operator: In, values: [edge]}}]}}
      - {{name: bearing, when: {{annotation: type, equals: bearing}},
         require: [{{key: {ROLE}, operator: In, values: [edge]}}],
         tolerations: [{{key: example.com/edge, operator: Exists}}]}}
      - {{name: late, when: {{annotation: type, equals: late}}, resolveAtRelease: true,
         require: [{{key: {ROLE}, operator: In, values: [edge]}}]}}
"""
MARKS = {"space": {}, "bearing": {}, "late": {"delay": "1"}}
"""By which rule a pod is placed, and what it asks beside: the last writes at its release alone."""


@dataclass(frozen=True)
class Secured:
    """An installation, and whose tokens were stolen."""

    installed: Installation
    serving: Command
    controlling: Command
    status_port: int
    webhook_token: Path

    def world(self, name: str, *, confined: bool = False) -> World:
        """Make a namespace where jane may edit what is hers, VMs too."""
        world = World.in_new_namespace(self.installed.plane, name)
        if confined:
            world.kubectl("annotate", "namespace", name, f"{CONFINED_TO}={ZONE}=a")
        world.kubectl("create", "rolebinding", "jane", "--user=jane", "--clusterrole=edit")
        rights = ("--verb=*", "--resource=virtualmachines.kubevirt.io")
        world.kubectl("create", "role", "vms", *rights)
        world.kubectl("create", "rolebinding", "vms", "--user=jane", "--role=vms")
        return world

    def jane(self, world: World) -> Actor:
        return Actor(world, self.installed.plane.kubeconfig_for("jane"))

    def controller(self, world: World) -> Actor:
        """Act as who has stolen the controller's token."""
        return Actor(world, self.installed.kubeconfig)

    def webhook(self, world: World) -> Actor:
        """Act as who has stolen the webhook's token."""
        return Actor(world, self.webhook_token)

    def ask(self, path: str, body: Any = None) -> tuple[int, str]:
        """Ask the admission server as any pod on the network can: without any credentials."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return fetch(f"https://127.0.0.1:{port(self.serving)}{path}", data, headers)


def fetch(
    url: str, data: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    """Fetch a page, whatever its status."""
    context = ssl._create_unverified_context()
    request = urllib.request.Request(url, data, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("privilege")
    with installation(folder, "--enable-admission-plugins=PodNodeSelector") as made:
        plane = made.plane
        machines.define(plane, "virtualmachines", "virtualmachineinstances")
        for process in ("controller", "webhook"):
            plane.kubectl("apply", "-f", str(kubevirt_rights(process)))
        plane.kubectl("label", "node", HERE, f"{ZONE}=a")
        plane.kubectl("label", "node", THERE, f"{ZONE}=b", f"{ROLE}=edge")
        token = token_kubeconfig(plane, folder / "webhook.kubeconfig", "holdfast-webhook")
        made.world.eventually(lambda: not refusal(made.world.kubectl, "get", "vm,vmi"))
        rules = folder / "holdfast.yaml"
        rules.write_text(RULES)
        serving = made.replica("--kubeconfig", str(token), "--config", str(rules))
        status_port = free_port()
        controlling = made.controller("--status-port", str(status_port), "--config", str(rules))
        made.ready()
        yield Secured(made, serving, controlling, status_port, token)


def sticky_vm(world: World, node: str) -> Object:
    """Make a VM whose record names a node, and its VMI; return the launcher pod for it."""
    _, instance = machines.make(world, "vm", record=node)
    return machines.launcher(instance)


def refused_by_scheduler(world: World, name: str) -> bool:
    """Tell whether the scheduler has looked at a pod, and found no node for it."""
    seen = world.get("pod", name)
    assert "nodeName" not in seen["spec"], seen["spec"]["nodeName"]
    conditions = seen["status"].get("conditions", ())
    return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)


def node_of(world: World, name: str) -> str:
    return str(world.eventually(lambda: world.get("pod", name)["spec"].get("nodeName")))


# --- any pod on the network --------------------------------------------------------------------


def test_metrics_and_health_name_no_pod_and_no_namespace(secured: Secured) -> None:
    world = secured.world("hushed")
    world.apply(pod("hushed-released", {"delay": "1"}), pod("hushed-held", {"delay": "1h"}))
    assert "soon" in world.refusal(pod("hushed-refused", {"delay": "soon"}))
    world.eventually(lambda: not gates(world.get("pod", "hushed-released")))
    controller = f"http://{secured.controlling.address}"
    inside = [secured.ask(f"/{name}") for name in ("metrics", "healthz", "readyz", "conditions")]
    inside += [fetch(f"{controller}/{name}") for name in ("metrics", "healthz", "readyz")]

    assert [status for status, _ in inside] == [200] * 7
    assert "holdfast_reviews_total" in inside[0][1]
    assert "holdfast_release_lateness_seconds" in inside[4][1]
    assert not [text for _, text in inside if "hushed" in text]
    assert secured.ask("/")[0] == 404 == fetch(f"{controller}/")[0]


def test_forged_review_tells_a_vms_node_only_to_who_knows_the_uid(secured: Secured) -> None:
    world = secured.world("forged")
    launcher = sticky_vm(world, THERE)

    def ask(**owner: str) -> Any:
        forged = {"metadata": dict(launcher["metadata"]), "spec": {"containers": []}}
        forged["metadata"]["ownerReferences"] = [launcher["metadata"]["ownerReferences"][0] | owner]
        user = {"username": KUBEVIRT}
        status, text = secured.ask(
            "/mutate", make_review(forged, namespace=world.namespace, userInfo=user)
        )
        assert status == 200
        return json.loads(text)["response"]

    guess = "00000000-0000-0000-0000-000000000000"
    known, unknown = ask(uid=guess), ask(uid=guess, name="xx")
    assert not known["allowed"]
    message = known["status"]["message"].replace('"vm"', '"xx"')
    assert message == unknown["status"]["message"], "it tells whether there is a VM"
    assert THERE not in message
    assert THERE in base64.b64decode(ask()["patch"]).decode(), "the UID is the key to it"


def test_reviews_make_the_webhook_read_single_vms_and_write_nothing(secured: Secured) -> None:
    world = secured.world("reviewed")
    create_as_kubevirt(world, sticky_vm(world, HERE))
    log = secured.installed.plane.audit_log.read_text().splitlines()
    events = [json.loads(line) for line in log if f'"{WEBHOOK}"' in line]
    seen = {(one["verb"], one["objectRef"]["resource"]) for one in events if "objectRef" in one}

    assert {("get", "virtualmachines"), ("get", "virtualmachineinstances")} <= seen
    assert {verb for verb, _ in seen} == {"get"}


def test_status_page_is_for_people_at_that_machine_alone(secured: Secured) -> None:
    world = secured.world("shown")
    world.apply(pod("shown-held", {"delay": "1h"}))
    here = f"http://localhost:{secured.status_port}/"
    world.eventually(lambda: "shown-held" in fetch(here)[1])

    with socket.socket() as probe:
        assert probe.connect_ex((own_address(), secured.status_port)) != 0
    status, text = fetch(here, headers={"Host": "rebound.example.com"})
    assert status == 403
    assert "shown-held" not in text


# --- who creates pods and VMs in one namespace -------------------------------------------------


def test_sticky_record_leads_to_no_node_that_is_closed_to_the_namespace(secured: Secured) -> None:
    """PodNodeSelector confines the namespace; the record is ANDed with that, and opens nothing."""
    world = secured.world("stuck", confined=True)
    launcher = sticky_vm(world, HERE)
    write = {"op": "add", "path": f"/metadata/annotations/{RECORD.replace('/', '~1')}"}
    secured.jane(world).patch("vm", [{**write, "value": THERE}], kind="vm", dry_run=False)
    stored = create_as_kubevirt(world, launcher)

    assert stored["spec"]["nodeSelector"] == {ZONE: "a"}
    assert THERE in json.dumps(stored["spec"]["affinity"])
    world.eventually(lambda: refused_by_scheduler(world, "virt-launcher-vm"))

    secured.jane(world).patch("vm", [{**write, "value": HERE}], kind="vm", dry_run=False)
    second = {**launcher, "metadata": {**launcher["metadata"], "name": "virt-launcher-vm-2"}}
    create_as_kubevirt(world, second)
    assert node_of(world, "virt-launcher-vm-2") == HERE


@pytest.mark.parametrize("mark", MARKS)
def test_placement_leads_to_no_node_that_is_closed_to_the_namespace(
    secured: Secured, mark: str
) -> None:
    """By a rule of any kind: one that tolerates taints, and one that writes at the release."""
    confined = secured.world(f"placed-{mark}", confined=True)
    free = secured.world(f"placed-{mark}-free")
    for world in (confined, free):
        marked = pod("marked", {"type": mark, **MARKS[mark]})
        secured.jane(world).create(marked, dry_run=False)
    confined.eventually(lambda: not gates(confined.get("pod", "marked")))
    confined.eventually(lambda: refused_by_scheduler(confined, "marked"))
    assert node_of(free, "marked") == THERE


@pytest.mark.parametrize("mark", MARKS)
def test_what_placement_writes_the_creator_may_write_as_well(secured: Secured, mark: str) -> None:
    world = secured.world(f"written-{mark}")
    jane = secured.jane(world)
    jane.create(pod("marked", {"type": mark, **MARKS[mark]}), dry_run=False)
    assert node_of(world, "marked") == THERE
    marked = world.get("pod", "marked")["spec"]
    fields = ("affinity", "nodeSelector", "schedulerName", "tolerations")
    by_hand = {key: marked[key] for key in fields if key in marked}
    jane.create(pod("by-hand", None, **by_hand), dry_run=False)

    assert "affinity" in by_hand
    assert ("example.com/edge" in json.dumps(by_hand["tolerations"])) == (mark == "bearing")
    assert chosen(world.get("pod", "by-hand")["spec"]) == chosen(marked)
    assert node_of(world, "by-hand") == THERE


def chosen(spec: Object) -> Object:
    """Give what somebody chose of a pod: all but its node, and a volume of a random name."""
    made = {key: value for key, value in spec.items() if key not in {"nodeName", "volumes"}}
    containers = [{**one, "volumeMounts": []} for one in spec["containers"]]
    return {**made, "containers": containers}


# --- the admin of a namespace ------------------------------------------------------------------

NOT_AN_ADMINS: dict[str, tuple[str, ...]] = {
    "Holdfast's keys": ("get", "secret", "holdfast-ca", "-n", NAMESPACE),
    "Holdfast's Lease": ("get", "leases", "-n", NAMESPACE),
    "the webhooks": ("get", "mutatingwebhookconfiguration", "holdfast"),
    "the guard": ("delete", "validatingadmissionpolicybinding", "holdfast-hold"),
    "the confinement": ("annotate", "namespace", "ruled", f"{CONFINED_TO}=", "--overwrite"),
    "a node": ("label", "node", HERE, f"{ROLE}=edge", "--dry-run=server"),
    "rights in the cluster": (
        "create",
        "clusterrolebinding",
        "x",
        "--clusterrole=edit",
        "--user=x",
    ),
    "pods elsewhere": ("get", "pods", "-n", NAMESPACE),
    "another's name": ("get", "pods", "--as=jane"),
}


@pytest.fixture(scope="module")
def ruled(secured: Secured) -> World:
    """A confined namespace with an admin, ann."""
    world = secured.world("ruled", confined=True)
    world.kubectl("create", "rolebinding", "ann", "--user=ann", "--clusterrole=admin")
    return world


@pytest.mark.parametrize("words", NOT_AN_ADMINS.values(), ids=NOT_AN_ADMINS)
def test_the_admin_of_a_namespace_cannot(
    secured: Secured, ruled: World, words: tuple[str, ...]
) -> None:
    ann = Actor(ruled, secured.installed.plane.kubeconfig_for("ann"))

    assert "orbidden" in refusal(ann.kubectl, *words)


# --- who has stolen a token --------------------------------------------------------------------

NOBODYS: dict[str, tuple[str, ...]] = {
    "secrets": ("get", "secrets"),
    "all secrets": ("get", "secrets", "--all-namespaces"),
    "a secret of others": ("get", "secret", "others"),
    "another secret of Holdfast's namespace": ("get", "secret", "others", "-n", NAMESPACE),
    "configuration": ("get", "configmaps", "--all-namespaces"),
    "namespaces": ("get", "namespaces"),
    "deletion": ("delete", "pod", "victim", "--dry-run=server"),
    "eviction": ("drain", THERE, "--dry-run=server"),
    "a program in a container": ("exec", "victim", "--", "true"),
    "a pod": ("run", "mine", "--image=busybox", "--dry-run=server"),
    "a Deployment": ("create", "deployment", "mine", "--image=busybox", "--dry-run=server"),
    "a node": ("label", "node", THERE, "a=b", "--dry-run=server"),
    "a token": ("create", "token", "default"),
    "rights": ("create", "rolebinding", "x", "--clusterrole=admin", "--user=x"),
    "another's name": ("get", "pods", "--as=jane"),
    "another webhook": ("delete", "mutatingwebhookconfiguration", "holdfast", "--dry-run=server"),
    "a policy": ("delete", "validatingadmissionpolicybinding", "holdfast-hold"),
}
"""What neither token is good for, in the words of kubectl."""
NOT_THE_WEBHOOKS: dict[str, tuple[str, ...]] = {
    "pods": ("get", "pods"),
    "a pod by name": ("get", "pod", "victim"),
    "all VMs": ("get", "vm"),
    "all VMIs": ("get", "vmi", "--all-namespaces"),
    "a VM's record": ("annotate", "vm", "vm", f"{RECORD}={THERE}", "--overwrite"),
    "the CA": ("get", "secret", "holdfast-ca", "-n", NAMESPACE),
    "the serving key": ("get", "secret", "holdfast-tls", "-n", NAMESPACE),
    "a release": ("patch", "pod", "victim", "--patch={}"),
    "the webhooks": ("get", "mutatingwebhookconfiguration", "holdfast"),
}


@pytest.fixture(scope="module")
def robbed(secured: Secured) -> World:
    """A namespace with a held pod, a VM and somebody's Secret in it."""
    world = secured.world("robbed")
    world.apply(pod("victim", {"delay": "1h"}))
    sticky_vm(world, HERE)
    world.kubectl("create", "secret", "generic", "others", "--from-literal=a=b")
    return world


@pytest.mark.parametrize(
    "words", (NOBODYS | NOT_THE_WEBHOOKS).values(), ids=NOBODYS | NOT_THE_WEBHOOKS
)
def test_webhooks_token_is_good_for_nothing_but(
    secured: Secured, robbed: World, words: tuple[str, ...]
) -> None:
    assert "orbidden" in refusal(secured.webhook(robbed).kubectl, *words)


def test_webhooks_token_reads_a_vm_by_its_name(secured: Secured, robbed: World) -> None:
    thief = secured.webhook(robbed)

    assert thief.kubectl("get", "vm", "vm", "-o", "name").strip() == "virtualmachine.kubevirt.io/vm"
    assert "virtualmachineinstance" in thief.kubectl("get", "vmi", "vm", "-o", "name")


@pytest.mark.parametrize("words", NOBODYS.values(), ids=NOBODYS)
def test_controllers_token_is_not_good_for(
    secured: Secured, robbed: World, words: tuple[str, ...]
) -> None:
    assert "orbidden" in refusal(secured.controller(robbed).kubectl, *words)


def test_controllers_token_at_most(secured: Secured, robbed: World) -> None:
    """What the page owns up to: more than this it must not become unseen."""
    thief = secured.controller(robbed)
    hold = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}]
    wide = [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}]
    away = [
        {"op": "add", "path": "/webhooks/0/clientConfig", "value": {"url": "https://x.example"}}
    ]
    configuration = ("mutatingwebhookconfiguration", "--dry-run=server", "-o", "name")

    assert "victim" in thief.kubectl("get", "pods", "--all-namespaces")
    thief.patch("victim", hold)
    thief.kubectl("annotate", "vm", "vm", f"{RECORD}={THERE}", "--overwrite", "--dry-run=server")
    assert thief.kubectl("get", "secret", "holdfast-ca", "-n", NAMESPACE, "-o", "name")
    thief.patch("holdfast", wide, kind=configuration[0])
    assert "spec.containers" in refusal(thief.patch, "victim", [*hold, *image])
    assert "may only register webhooks of the Service" in refusal(
        thief.patch, "holdfast", away, kind=configuration[0]
    )


def rights(actor: Actor, namespace: str) -> set[str]:
    """List what an account may do with things in a namespace: each resource with its verbs."""
    table = actor.kubectl("auth", "can-i", "--list", "--no-headers", "-n", namespace)
    found = {" ".join(line.split()) for line in table.splitlines()}
    return {line for line in found if not line.startswith(("[", "self"))}


def test_tokens_have_in_another_namespace_what_the_roles_give_everywhere(
    secured: Secured, robbed: World
) -> None:
    """In their own the controller may do more; the webhook no more than anywhere."""
    webhook, controller = secured.webhook(robbed), secured.controller(robbed)
    elsewhere, at_home = (rights(controller, each) for each in (robbed.namespace, NAMESPACE))
    webhooks = rights(webhook, robbed.namespace)

    assert {line.partition(" ")[0] for line in webhooks} == {
        "virtualmachineinstances.kubevirt.io",
        "virtualmachines.kubevirt.io",
    }
    assert all(line.endswith("[get]") for line in webhooks)
    assert webhooks == rights(webhook, NAMESPACE)
    assert {line.partition(" ")[0] for line in elsewhere} == {
        "pods",
        "nodes",
        "events.events.k8s.io",
        "holds.holdfast.dev",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "validatingwebhookconfigurations.admissionregistration.k8s.io",
        "virtualmachines.kubevirt.io",
        "virtualmachineinstances.kubevirt.io",
        "virtualmachineinstancemigrations.kubevirt.io",
    }
    assert elsewhere < at_home
    assert {line.partition(" ")[0] for line in at_home - elsewhere} == {
        "leases.coordination.k8s.io",
        "secrets",
        "endpointslices.discovery.k8s.io",
        "deployments.apps",
    }
