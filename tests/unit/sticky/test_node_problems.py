import msgspec
import pytest

from holdfast.webhook.model.kubevirt import LauncherPod
from holdfast.webhook.model.nodes import Node
from holdfast.webhook.sticky.node_problems import advice, difference, find, problem_of
from tests.support.fakes import Document, FakeApi

UNREACHABLE = "which a volume of the VM cannot be reached from; holdfast sticky show names it"
HEALTHY: Document = {"metadata": {"labels": {"kubevirt.io/schedulable": "true"}}, "spec": {}}


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param(HEALTHY, "", id="healthy"),
        pytest.param(None, "which does not exist; bring it back under its name", id="gone"),
        pytest.param(
            HEALTHY | {"spec": {"unschedulable": True}},
            "which is cordoned; kubectl uncordon n1",
            id="cordoned",
        ),
        pytest.param(
            {"metadata": {"labels": {"kubevirt.io/schedulable": "false"}}},
            "which lacks the label kubevirt.io/schedulable=true; see why KubeVirt's virt-handler "
            "left it",
            id="not for VMs",
        ),
        pytest.param(
            HEALTHY | {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
            "which is not ready (Unknown); bring it back",
            id="not ready",
        ),
    ],
)
def test_problem(node: Document | None, expected: str) -> None:
    parsed_node = None if node is None else msgspec.convert(node, Node)
    assert problem_of("n1", parsed_node, LauncherPod()) == expected


@pytest.mark.parametrize(
    ("selector", "message", "expected"),
    [
        pytest.param(
            {"zone": "a"},
            "",
            'which does not meet "zone In [a]" of the pod\'s node selector or affinity; correct '
            "the VM's template or its record, and restart it",
            id="node selector",
        ),
        pytest.param({}, "1 node(s) had volume node affinity conflict", UNREACHABLE, id="volume"),
        pytest.param(
            {},
            "1 node(s) didn't match PersistentVolume's node affinity",
            UNREACHABLE,
            id="volume, as newer schedulers report it",
        ),
        pytest.param({}, "1 Insufficient memory", "", id="no room"),
    ],
)
def test_pod_that_conflicts_with_its_node(
    selector: dict[str, str], message: str, expected: str
) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    text = f"0/3 nodes are available: {message}, 2 other"
    status = {"conditions": [{**condition, "message": text}]}
    pod = msgspec.convert({"spec": {"nodeSelector": selector}, "status": status}, LauncherPod)
    assert problem_of("n1", msgspec.convert(HEALTHY, Node), pod) == expected


def test_invalid_node_name_is_truncated_in_advice() -> None:
    name = "x" * 250_000
    problem = find(FakeApi(), name, None)

    assert problem == "which does not exist; bring it back under its name"
    assert len(advice(("ns", "vm"), name, problem, "a/node")) < 600
    assert len(difference(("ns", "vm"), name, "n1", "a/node")) < 600


def test_advice_names_the_remedies() -> None:
    assert advice(("ns", "vm"), "n1", "which is cordoned; kubectl uncordon n1", "a/node") == (
        "the VM waits for its node n1, which is cordoned; kubectl uncordon n1; or, if its disks "
        "are available elsewhere: kubectl annotate vm vm --namespace ns a/node-, and restart it"
    )
    assert difference(("shop", "db"), "n1", "n2", "holdfast.dev/sticky-node") == (
        "the VM runs on n2, but starts on n1 the next time, which is recorded: no migration "
        "explains this. To keep it on n2: kubectl annotate vm db --namespace shop --overwrite "
        "holdfast.dev/sticky-node=n2"
    )
