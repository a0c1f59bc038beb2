"""Holdfast as its manifests install it, its stolen tokens, and namespaces that admins confine.

What tests/e2e/test_privilege.py asks about.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from demo.command import Command
from tests.e2e import machines
from tests.e2e.accounts import NAMESPACE, kubevirt_rights, token_kubeconfig
from tests.e2e.actors import Actor, refusal
from tests.e2e.installed import Installation, installation, port
from tests.e2e.test_status_page import free_port
from tests.e2e.world import Object, World, pod

WEBHOOK = f"system:serviceaccount:{NAMESPACE}:holdfast-webhook"
CONFINED_TO = "scheduler.alpha.kubernetes.io/node-selector"
ZONE, ROLE = "topology.kubernetes.io/zone", "kubernetes.io/role"
TAINT = "example.com/edge"
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
         tolerations: [{{key: {TAINT}, operator: Exists}}]}}
      - {{name: late, when: {{annotation: type, in: [late, late-bearing]}}, resolveAtRelease: true,
         require: [{{key: {ROLE}, operator: In, values: [edge]}}]}}
      - {{name: beside, when: {{annotation: type, equals: late-bearing}},
         tolerations: [{{key: {TAINT}, operator: Exists}}]}}
"""
EDGE = {"key": ROLE, "operator": "In", "values": ["edge"]}
TOLERATION = {"key": TAINT, "operator": "Exists"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class Ban:
    """What an admin's policy forbids the pods of a namespace, and a pod's spec that has it."""

    message: str
    test: str
    example: Object


TOLERATING = Ban(
    f"no pod of this namespace may tolerate {TAINT}",
    f"!object.spec.?tolerations.orValue([]).exists(one, one.?key.orValue('') in ['', '{TAINT}'])",
    {"tolerations": [TOLERATION]},
)
REQUIRING = Ban(
    f"no pod of this namespace may require {ROLE}",
    f"!object.spec.?affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms.orValue([])"
    f".exists(term, term.?matchExpressions.orValue([]).exists(one, one.key == '{ROLE}'))",
    {
        "affinity": {
            "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [EDGE]}]}}
        }
    },
)
CREATION, ALWAYS = ("CREATE",), ("CREATE", "UPDATE")
"""When a policy is asked."""


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

    def banned(self, name: str, ban: Ban, operations: Sequence[str]) -> World:
        """Make a namespace where a policy of the cluster's admin forbids something."""
        world = self.world(name)
        world.plane.kubectl(
            "apply", "-f", "-", stdin=yaml.safe_dump_all(policy(name, ban, operations))
        )
        example = pod("example", None, **ban.example)
        world.eventually(lambda: ban.message in refusal(self.jane(world).create, example))
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


def policy(namespace: str, ban: Ban, operations: Sequence[str]) -> list[Object]:
    """Make a policy for the pods of a namespace, and its binding."""
    name, api = f"bans-{namespace}", "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    rules = [{**rule, "operations": list(operations)}]
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    specs = {
        "ValidatingAdmissionPolicy": {
            "matchConstraints": {"resourceRules": rules},
            "validations": [{"expression": ban.test, "message": ban.message}],
        },
        "ValidatingAdmissionPolicyBinding": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": selector},
        },
    }
    return [
        {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}
        for kind, spec in specs.items()
    ]


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


@contextmanager
def secured_in(folder: Path) -> Iterator[Secured]:
    """Install everything, start a controller and an admission server, and give it to nobody."""
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
