"""Holdfast as installed by its manifests, its stolen tokens, and restricted namespaces.

For tests/e2e/privilege.
"""

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

from controlplane.ports import free_ports
from demo.command import Command
from tests.e2e import fake_kubevirt
from tests.e2e.accounts import NAMESPACE, kubevirt_rights, token_kubeconfig
from tests.e2e.installed import Installation, installation, port
from tests.e2e.kubectl_user import KubectlUser, refusal
from tests.e2e.namespace import Namespace, Object, pod

WEBHOOK = f"system:serviceaccount:{NAMESPACE}:holdfast-webhook"
CONFINED_TO = "scheduler.alpha.kubernetes.io/node-selector"
ZONE, ROLE = "topology.kubernetes.io/zone", "kubernetes.io/role"
TAINT = "example.com/edge"
HERE, THERE = "node-1", "node-2"
"""The nodes of zones `a` and `b`; the second is also the edge node."""
RULES = f"""
apiVersion: holdfast.dev/v1beta1
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
      - {{name: toleration, when: {{annotation: type, equals: late-bearing}},
         tolerations: [{{key: {TAINT}, operator: Exists}}]}}
"""
EDGE = {"key": ROLE, "operator": "In", "values": ["edge"]}
TOLERATION = {"key": TAINT, "operator": "Exists"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class Ban:
    """A policy that forbids something in the pods of a namespace, and a spec that violates it."""

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
"""Operations that a policy matches."""


@dataclass(frozen=True)
class Secured:
    """An installation, with the tokens of its accounts."""

    installed: Installation
    serving: Command
    controlling: Command
    status_port: int
    webhook_token: Path

    def ns(self, name: str, *, confined: bool = False) -> Namespace:
        """Make a namespace where jane has the role `edit`, and may edit VMs."""
        ns = Namespace.create_new(self.installed.plane, name)
        if confined:
            ns.kubectl("annotate", "namespace", name, f"{CONFINED_TO}={ZONE}=a")
        ns.kubectl("create", "rolebinding", "jane", "--user=jane", "--clusterrole=edit")
        rights = ("--verb=*", "--resource=virtualmachines.kubevirt.io")
        ns.kubectl("create", "role", "vms", *rights)
        ns.kubectl("create", "rolebinding", "vms", "--user=jane", "--role=vms")
        return ns

    def banned(self, name: str, ban: Ban, operations: Sequence[str]) -> Namespace:
        """Make a namespace to which a policy of the cluster's admin applies."""
        ns = self.ns(name)
        ns.plane.kubectl(
            "apply", "-f", "-", stdin=yaml.safe_dump_all(policy(name, ban, operations))
        )
        example = pod("example", None, **ban.example)
        ns.eventually(lambda: ban.message in refusal(self.jane(ns).create, example))
        return ns

    def jane(self, ns: Namespace) -> KubectlUser:
        return KubectlUser(ns, self.installed.plane.kubeconfig_for("jane"))

    def controller(self, ns: Namespace) -> KubectlUser:
        return KubectlUser(ns, self.installed.kubeconfig)

    def webhook(self, ns: Namespace) -> KubectlUser:
        return KubectlUser(ns, self.webhook_token)

    def ask(self, path: str, body: Any = None) -> tuple[int, str]:
        """Send a request to the admission server without credentials, as any pod can."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return fetch(f"https://127.0.0.1:{port(self.serving)}{path}", data, headers)


def policy(namespace: str, ban: Ban, operations: Sequence[str]) -> list[Object]:
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
    context = ssl._create_unverified_context()
    request = urllib.request.Request(url, data, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextmanager
def secured_in(folder: Path) -> Iterator[Secured]:
    """Install everything, and start a controller and an admission server."""
    with installation(folder, "--enable-admission-plugins=PodNodeSelector") as installed:
        plane = installed.plane
        fake_kubevirt.define(plane, "virtualmachines", "virtualmachineinstances")
        for process in ("controller", "webhook"):
            plane.kubectl("apply", "-f", str(kubevirt_rights(process)))
        plane.kubectl("label", "node", HERE, f"{ZONE}=a")
        plane.kubectl("label", "node", THERE, f"{ZONE}=b", f"{ROLE}=edge")
        token = token_kubeconfig(
            plane, folder / "holdfast.webhook.kube.kubeconfig", "holdfast-webhook"
        )
        installed.ns.eventually(lambda: not refusal(installed.ns.kubectl, "get", "vm,vmi"))
        rules = folder / "holdfast.yaml"
        rules.write_text(RULES)
        serving = installed.replica("--kubeconfig", str(token), "--config", str(rules))
        (status_port,) = free_ports(1)
        controlling = installed.controller(
            "--status-port", str(status_port), "--config", str(rules)
        )
        installed.ready()
        yield Secured(installed, serving, controlling, status_port, token)


def sticky_vm(ns: Namespace, node: str) -> Object:
    """Make a VM whose record names a node, and its VMI; return the launcher pod for it."""
    _, instance = fake_kubevirt.make(ns, "vm", record=node)
    return fake_kubevirt.launcher(instance)


def refused_by_scheduler(ns: Namespace, name: str) -> bool:
    """Return whether the scheduler has found no node for a pod."""
    manifest = ns.get("pod", name)
    assert "nodeName" not in manifest["spec"], manifest["spec"]["nodeName"]
    conditions = manifest["status"].get("conditions", ())
    return any(
        condition["type"] == "PodScheduled" and condition["status"] == "False"
        for condition in conditions
    )


def node_of(ns: Namespace, name: str) -> str:
    return str(ns.eventually(lambda: ns.get("pod", name)["spec"].get("nodeName")))
