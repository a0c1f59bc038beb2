"""The nodes that a pod may run on, as commands read them."""

from typing import Any

import msgspec
import pytest

from holdfast.webhook.cli import nodes
from holdfast.webhook.model.kubevirt import STICKY_NODE, VirtualMachine
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.report.pod_status import NodeState
from tests.support.builders import make_pod
from tests.support.fakes import FakeApi, raising, status_error

HOSTNAME = "kubernetes.io/hostname"
CLAIM = "/api/v1/namespaces/default/persistentvolumeclaims/data"
VOLUME = "/api/v1/persistentvolumes/pv-1"


def cluster() -> FakeApi:
    api = FakeApi()
    for name, host in (("node-1", "host-1"), ("node-2", "host-2")):
        api.put(f"/api/v1/nodes/{name}", {"metadata": {"labels": {HOSTNAME: host}}})
    return api


def on_host(host: str) -> Pod:
    pod = make_pod()
    pod["spec"]["nodeSelector"] = {HOSTNAME: host}
    return Pod.of(pod)


def test_node_whose_hostname_label_is_not_its_name() -> None:
    assert [*nodes.pinned(cluster(), on_host("host-2"), ())] == [NodeState("node-2")]
    (state,) = nodes.pinned(cluster(), on_host("node-2"), ())
    assert (state.name, state.problem) == (f"a node labeled {HOSTNAME}=node-2", "there is none")


def test_only_some_of_very_many_nodes_and_claims_are_read() -> None:
    named = [f"node-{number}" for number in range(50_000)]
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": named}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    pod, api = make_pod(), cluster()
    for name in named[: nodes.MOST_PINS]:
        api.put(f"/api/v1/nodes/{name}", {"metadata": {"labels": {HOSTNAME: name}}})
    pod["spec"]["affinity"] = {"nodeAffinity": required}
    found = [*nodes.pinned(api, Pod.of(pod), named)]
    assert len(found) == nodes.MOST_PINS + 1
    assert found[-1] == NodeState("49,980 other nodes", "they were not checked", unchecked=True)
    assert found[0].remarks == ("49,980 other claims were not checked",)
    assert len(api.requests) <= nodes.MOST_PINS * (1 + nodes.MOST_CLAIMS)


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        pytest.param(None, NodeState("node-1"), id="no volume yet"),
        pytest.param({}, NodeState("node-1"), id="a volume that is everywhere"),
        pytest.param("host-1", NodeState("node-1"), id="a volume on the node"),
        pytest.param(
            "host-2",
            NodeState(
                "node-1",
                f'the volume of claim data requires "{HOSTNAME} In [host-2]"',
                excluded=True,
            ),
            id="a volume on another node",
        ),
    ],
)
def test_volume_of_a_pod(volume: Any, expected: NodeState) -> None:
    api = cluster()
    if volume is not None:
        api.put(CLAIM, {"spec": {"volumeName": "pv-1"}})
        term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [volume]}]}
        affinity = {"required": {"nodeSelectorTerms": [term]}} if volume else {}
        api.put(VOLUME, {"spec": {"nodeAffinity": affinity}})
    assert nodes.node_state(api, "node-1", on_host("host-1"), ["data"]) == expected


def test_volume_that_may_not_be_read() -> None:
    api = cluster()

    def judge(_method: str, path: str) -> None:
        if path == CLAIM:
            raise status_error(403)

    api.on_request = judge
    state = nodes.node_state(api, "node-1", on_host("host-1"), ["data"])
    assert state.problem == ""
    assert state.remarks == ("the volume of claim data cannot be read (HTTP 403: scripted)",)


@pytest.mark.parametrize(
    ("created", "writes", "told"),
    [
        pytest.param("2026-03-02", {"holdfast": STICKY_NODE}, True, id="younger"),
        pytest.param("2026-02-28", {"holdfast": STICKY_NODE}, False, id="older"),
        pytest.param("2026-03-02", {"holdfast": "other"}, False, id="nobody knows"),
        pytest.param("", {"holdfast": STICKY_NODE}, False, id="no node"),
    ],
)
def test_node_that_is_younger_than_the_record(
    created: str, writes: dict[str, str], *, told: bool
) -> None:
    api = FakeApi()
    if created:
        made = {"creationTimestamp": f"{created}T12:00:00Z"}
        api.put("/api/v1/nodes/node-1", {"metadata": made})
    entries = [
        {
            "manager": manager,
            "time": "2026-03-01T12:00:00Z",
            "fieldsV1": {"f:metadata": {"f:annotations": {".": {}, f"f:{key}": {}}}},
        }
        for manager, key in writes.items()
    ]
    metadata = {"name": "db", "annotations": {STICKY_NODE: "node-1"}, "managedFields": entries}
    vm = msgspec.convert({"metadata": metadata}, VirtualMachine)
    expected = (
        "node-1 was created on 2026-03-02 at 12:00:00 UTC, after it was recorded on 2026-03-01 at "
        "12:00:00 UTC: it may be another node of that name, without the VM's disks"
    )
    assert nodes.recreated(api, vm, StickyArgs()) == (expected if told else "")


def test_node_that_may_not_be_read_was_not_checked() -> None:
    api = cluster()
    api.before("GET", raising(status_error(403)))
    state = nodes.node_state(api, "node-9")
    assert state.problem == "you may not read nodes: it was not checked whether it exists"
    assert state.unchecked
    api.before("GET", raising(status_error(500)))
    assert nodes.node_state(api, "node-9").problem == "it cannot be read (HTTP 500: scripted)"
