"""The extra cost of placement rules and sticky VMs over a review with only a delay."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from bench import reviews
from bench.results import Outcome
from bench.rows.server import compare, ratios
from bench.same import text
from bench.servers import BenchError, Server, holdfast, serving
from bench.size import Size
from bench.world import Object, World
from controlplane.ports import free_ports
from holdfast.webhook.model import kubevirt

DELAY, RULES, STICKY = "delay", "500 rules", "sticky"
NUMBER = 500
NAMESPACE, NODE = "default", "node-1"


def measure(world: World, size: Size, step: Callable[[str], None]) -> Outcome:
    """Compare the CPU of the three reviews, each on its own server."""
    with ExitStack() as stack:
        rules = world.certificate.folder / "rules.yaml"
        rules.write_text(yaml.safe_dump(_configuration()))
        bodies = {DELAY: reviews.review(), RULES: _placed(), STICKY: _sticky(world)}
        configs: Mapping[str, Path | None] = {DELAY: None, RULES: rules, STICKY: None}
        servers = []
        for name, config in configs.items():
            port = free_ports(1)[0]
            command = holdfast(world.certificate, port, world.kubeconfig, config)
            servers.append(stack.enter_context(serving(name, port, command)))
        for server in servers:
            _check(server, bodies[server.name])
        rounds = compare(servers, size, step, bodies=bodies)
    costs = {name: [sample["cpu_us"] for sample in samples] for name, samples in rounds.items()}
    pairs = {
        "rules_500_cost_ratio": (costs[RULES], costs[DELAY]),
        "sticky_cpu_ratio": (costs[STICKY], costs[DELAY]),
    }
    return ratios(pairs, rounds)


def _check(server: Server, body: bytes) -> None:
    """Check that a server returns a patch for the review. Raises BenchError if not."""
    response = json.loads(text(server, "/mutate", body))["response"]
    if not response["allowed"] or "patch" not in response:
        raise BenchError(f"{server.name}: expected a patch, got {response}")


def _configuration() -> Object:
    """Return a configuration with NUMBER rules, of which only the last matches the pod."""
    rules = [
        {
            "name": f"rule-{number}",
            "when": {"annotation": "type", "equals": f"kind-{number}"},
            "require": [{"key": "example.com/role", "operator": "In", "values": [f"r{number}"]}],
        }
        for number in range(NUMBER)
    ]
    plugins = {"enabled": [{"name": "delay"}, {"name": "placement"}]}
    profile = {
        "schedulerName": "*",
        "plugins": plugins,
        "pluginConfig": [{"name": "placement", "args": {"rules": rules}}],
    }
    return {
        "apiVersion": "holdfast.dev/v1beta1",
        "kind": "HoldfastConfiguration",
        "profiles": [profile],
    }


def _placed() -> bytes:
    annotations = {reviews.ANNOTATION: "15", "type": f"kind-{NUMBER - 1}"}
    return reviews.review(reviews.pod(annotations))


def _sticky(world: World) -> bytes:
    """Create a VM with a recorded node and its VMI, and return the review of the VMI's pod."""
    for kind in (kubevirt.VM, kubevirt.VMI):
        world.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _definition(kind))
    vm = _create(
        world, kubevirt.vm_path(NAMESPACE, "bench"), kubevirt.VM, {kubevirt.STICKY_NODE: NODE}, []
    )
    owner = _owner(kubevirt.VM, vm)
    vmi = _create(world, kubevirt.vmi_path(NAMESPACE, "bench"), kubevirt.VMI, {}, [owner])
    pod = reviews.pod({})
    pod["metadata"]["ownerReferences"] = [_owner(kubevirt.VMI, vmi)]
    return reviews.review(pod, userInfo={"username": kubevirt.CONTROLLER_ACCOUNT})


def _create(
    world: World, path: str, kind: str, annotations: Mapping[str, str], owners: list[Object]
) -> Object:
    collection = path.rpartition("/")[0]
    world.until(lambda: world.has(collection))
    metadata = {"name": "bench", "annotations": dict(annotations), "ownerReferences": owners}
    content = {"apiVersion": f"{kubevirt.GROUP}/v1", "kind": kind, "metadata": metadata, "spec": {}}
    return world.post(collection, content)


def _owner(kind: str, owner: Object) -> Object:
    return {
        "apiVersion": f"{kubevirt.GROUP}/v1",
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }


def _definition(kind: str) -> Object:
    """Return a CustomResourceDefinition for a KubeVirt kind that accepts any content."""
    plural = f"{kind.lower()}s"
    schema: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{kubevirt.GROUP}"},
        "spec": {
            "group": kubevirt.GROUP,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }
