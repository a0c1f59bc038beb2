"""Error messages that do not state the fix, each produced by Holdfast's own code.

`docs.generate` writes them and their notes into docs/how-to/troubleshooting.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from holdfast.webhook.errors import ApiStatusError, UnreachableError
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.kube import listing
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.nodes import Node
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.server.handler import AdmissionHandler
from holdfast.webhook.telemetry.metrics import ServerMetrics
from tests.support.builders import body, make_pipeline, make_pod, make_profiles, read_review
from tests.support.fakes import FakeApi, FakeLookup
from tests.support.vm_builders import make_launcher, make_vm, make_vmi

NOW_MS = 1_772_366_400_000  # 2026-03-01T12:00:00Z
_LAST = (
    "[call Holdfast last](install.md#call-holdfast-last). The same goes for `spec.affinity`, if "
    "the pod lacks a node requirement. `reinvocationPolicy` does not help."
)


class Case(NamedTuple):
    """A message, and a note on how to fix the problem."""

    produce: Callable[[], str]
    note: str


def _validated(annotations: Mapping[str, str]) -> str:
    verdict = make_pipeline().validate(read_review(make_pod(annotations)), now_ms=NOW_MS)
    return verdict.message or verdict.warnings[0]


def _looked_up_in_vain() -> str:
    lookup = FakeLookup()
    lookup.failures.append(
        ApiStatusError(
            'HTTP 403: virtualmachineinstances.kubevirt.io "db" is forbidden: User '
            '"system:serviceaccount:holdfast-system:holdfast-webhook" cannot get resource '
            '"virtualmachineinstances" in API group "kubevirt.io" in the namespace "shop"',
            status=403,
        )
    )
    review = body(make_launcher(), userInfo={"username": kubevirt.CONTROLLER_ACCOUNT})
    pipeline = make_pipeline(handle=_looking_up(lookup))
    handler = AdmissionHandler(pipeline, ServerMetrics(), digest="")
    response = json.loads(handler.handle("/mutate", "application/json", review).body)
    return str(response["response"]["status"]["message"])


def _created_by_another_account() -> str:
    lookup = FakeLookup(
        {
            kubevirt.vmi_path("default", "vm"): make_vmi(),
            kubevirt.vm_path("default", "vm"): make_vm({}),
        }
    )
    args = {"name": "sticky", "args": {"account": kubevirt.CONTROLLER_ACCOUNT}}
    profiles = json.dumps([{"pluginConfig": [args]}])
    account = "system:serviceaccount:openshift-cnv:kubevirt-controller"
    review = read_review(make_launcher(), userInfo={"username": account})
    pipeline = make_pipeline(f"profiles: {profiles}", handle=_looking_up(lookup))
    return pipeline.mutate(review, now_ms=NOW_MS).message


def _looking_up(lookup: FakeLookup) -> Handle:
    handle = Handle()
    handle.connect(lookup=lookup)
    return handle


def _of_guard() -> str:
    manifests = pod_policies.policies(make_profiles())
    specs = (
        manifest["spec"]
        for manifest in manifests
        if manifest["metadata"]["name"] == pod_policies.CONTROLLER_PODS
    )
    policy = next(spec for spec in specs if "validations" in spec)
    return str(policy["validations"][3]["message"])


def _of_another_server() -> str:
    api, path = FakeApi(), "/api/v1/nodes/node-1"
    api.answers[path] = b'"hello"'
    try:
        listing.one(api, path, Node)
    except UnreachableError as exc:
        return str(exc)
    raise AssertionError("nothing was raised")


CASES: Sequence[Case] = (
    Case(
        lambda: _validated({"delay": "15"}),
        f"Configure the other webhook to leave `spec.schedulingGates` alone, or {_LAST}",
    ),
    Case(
        lambda: _validated({"type": "space", "holdfast.dev/placed": "space@00000000"}),
        "Nothing to do: a new configuration is rolling out.",
    ),
    Case(
        _looked_up_in_vain,
        "KubeVirt retries. If the error persists, apply `manifests/kubevirt`, or check the API "
        "server's answer after the colon.",
    ),
    Case(
        _created_by_another_account,
        "Set [`account`](../reference/configuration.md#sticky) if KubeVirt runs in that namespace. "
        "Otherwise find out who uses its account name.",
    ),
    Case(_of_guard, "The controller never does this: find out who uses its account."),
    Case(
        _of_another_server,
        "The server at this address is not an API server. Check `--kubeconfig` and `--context`.",
    ),
)
