"""How commands read the nodes that a pod may run on."""

from typing import Any

import msgspec
import pytest

from holdfast.webhook.cli import nodes
from holdfast.webhook.model.kubevirt import STICKY_NODE, VirtualMachine
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.report.pod_status import NodeState
from tests.support.builders import make_pod
from tests.support.fakes import FakeApi, failing, raising, status_error

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


def test_hostname_label_may_differ_from_node_name() -> None:
    assert [*nodes.pinned(cluster(), on_host("host-2"), ())] == [NodeState("node-2")]
    (state,) = nodes.pinned(cluster(), on_host("node-2"), ())
    assert (state.name, state.problem) == (f"a node labeled {HOSTNAME}=node-2", "there is none")


def test_number_of_nodes_and_claims_read_is_limited() -> None:
    names = [f"node-{number}" for number in range(50_000)]
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": names}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    pod, api = make_pod(), cluster()
    for name in names[: nodes.MOST_PINS]:
        api.put(f"/api/v1/nodes/{name}", {"metadata": {"labels": {HOSTNAME: name}}})
    pod["spec"]["affinity"] = {"nodeAffinity": required}
    states = [*nodes.pinned(api, Pod.of(pod), names)]
    assert len(states) == nodes.MOST_PINS + 1
    assert states[-1] == NodeState("49,980 other nodes", "they were not checked", unchecked=True)
    assert states[0].remarks == ("49,980 other claims were not checked",)
    assert len(api.requests) <= nodes.MOST_PINS * (1 + nodes.MOST_CLAIMS)


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        pytest.param(None, NodeState("node-1"), id="no volume yet"),
        pytest.param({}, NodeState("node-1"), id="volume on every node"),
        pytest.param("host-1", NodeState("node-1"), id="volume on the node"),
        pytest.param(
            "host-2",
            NodeState(
                "node-1",
                f'the volume of claim data requires "{HOSTNAME} In [host-2]"',
                excluded=True,
            ),
            id="volume on another node",
        ),
    ],
)
def test_node_state_with_a_volume(volume: Any, expected: NodeState) -> None:
    api = cluster()
    if volume is not None:
        api.put(CLAIM, {"spec": {"volumeName": "pv-1"}})
        term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [volume]}]}
        affinity = {"required": {"nodeSelectorTerms": [term]}} if volume else {}
        api.put(VOLUME, {"spec": {"nodeAffinity": affinity}})
    assert nodes.node_state(api, "node-1", on_host("host-1"), ["data"]) == expected


def test_volume_without_read_permission() -> None:
    api = cluster()
    api.on_request = failing(CLAIM, status=403)
    state = nodes.node_state(api, "node-1", on_host("host-1"), ["data"])
    assert state.problem == ""
    assert state.remarks == ("the volume of claim data cannot be read (HTTP 403: scripted)",)


@pytest.mark.parametrize(
    ("created", "written_key", "warns"),
    [
        pytest.param("2026-03-02", STICKY_NODE, True, id="newer"),
        pytest.param("2026-02-28", STICKY_NODE, False, id="older"),
        pytest.param("2026-03-02", "other", False, id="unknown record time"),
        pytest.param("", STICKY_NODE, False, id="missing node"),
    ],
)
def test_node_newer_than_its_record_is_reported(
    created: str, written_key: str, *, warns: bool
) -> None:
    api = FakeApi()
    if created:
        node_metadata = {"creationTimestamp": f"{created}T12:00:00Z"}
        api.put("/api/v1/nodes/node-1", {"metadata": node_metadata})
    fields: dict[str, Any] = {"f:metadata": {"f:annotations": {".": {}, f"f:{written_key}": {}}}}
    entries = [{"manager": "holdfast", "time": "2026-03-01T12:00:00Z", "fieldsV1": fields}]
    metadata = {"name": "db", "annotations": {STICKY_NODE: "node-1"}, "managedFields": entries}
    vm = msgspec.convert({"metadata": metadata}, VirtualMachine)
    expected = (
        "node-1 was created on 2026-03-02 at 12:00:00 UTC, after it was recorded on 2026-03-01 at "
        "12:00:00 UTC: it may be another node of that name, without the VM's disks"
    )
    assert nodes.recreated(api, vm, StickyArgs()) == (expected if warns else "")


def test_node_without_read_permission_is_unchecked() -> None:
    api = cluster()
    api.before("GET", raising(status_error(403)))
    state = nodes.node_state(api, "node-9")
    assert state.problem == "you may not read nodes: it was not checked whether it exists"
    assert state.unchecked
    api.before("GET", raising(status_error(500)))
    assert nodes.node_state(api, "node-9").problem == "it cannot be read (HTTP 500: scripted)"
