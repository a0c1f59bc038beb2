"""Which node a VM's pod is sent to, as the fault rows see it: one sent to none is a fault."""

from __future__ import annotations

import pytest

from tests.faults.machines import required_node
from tests.unit.builders import make_pod
from webhook.objects import Pod

NAMED = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
OTHER = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-2"]}]}
LABELLED = {"matchExpressions": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
EXCLUDED = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}]}


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        pytest.param([], "", id="none"),
        pytest.param([NAMED], "node-1", id="one"),
        pytest.param([{**NAMED, **LABELLED}], "node-1", id="among others"),
        pytest.param([NAMED, NAMED], "node-1", id="in every term"),
        pytest.param([NAMED, LABELLED], "", id="in one of two terms"),
        pytest.param([NAMED, OTHER], "", id="one or the other"),
        pytest.param([LABELLED], "", id="a label of that name"),
        pytest.param([EXCLUDED], "", id="any but this"),
    ],
)
def test_a_pod_is_sent_to_a_node_where_every_term_names_it(
    terms: list[object], expected: str
) -> None:
    pod = make_pod()
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod["spec"]["affinity"] = {"nodeAffinity": required}
    assert required_node(Pod.of(pod)) == expected
