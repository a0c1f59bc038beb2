from __future__ import annotations

import msgspec
import pytest

from tests.fakes import Document
from webhook.node_trouble import Node, advice, trouble

WELL: Document = {"metadata": {"labels": {"kubevirt.io/schedulable": "true"}}, "spec": {}}


@pytest.mark.parametrize(
    ("node", "said"),
    [
        pytest.param(WELL, "", id="well"),
        pytest.param(None, "which does not exist; bring it back under its name", id="gone"),
        pytest.param(
            WELL | {"spec": {"unschedulable": True}},
            "which is cordoned; kubectl uncordon n1",
            id="cordoned",
        ),
        pytest.param(
            {"metadata": {}},
            "which lacks the label kubevirt.io/schedulable=true; see why KubeVirt's virt-handler "
            "left it",
            id="no labels",
        ),
        pytest.param(
            {"metadata": {"labels": {"kubevirt.io/schedulable": "false"}}},
            "which lacks the label kubevirt.io/schedulable=true; see why KubeVirt's virt-handler "
            "left it",
            id="not for VMs",
        ),
    ],
)
def test_trouble(node: Document | None, said: str) -> None:
    assert trouble("n1", None if node is None else msgspec.convert(node, Node)) == said


def test_advice_names_what_can_be_done() -> None:
    assert advice(("ns", "vm"), "n1", "which is cordoned; kubectl uncordon n1", "a/node") == (
        "the VM waits for its node n1, which is cordoned; kubectl uncordon n1; or, if its disks "
        "can be had elsewhere: kubectl annotate vm vm --namespace ns a/node-, and restart it"
    )
