"""One real node for all tests in this folder, with the shipped manifests installed."""

import itertools
import sys
from collections.abc import Generator, Iterator

import pytest

from controlplane import image, node_plan
from controlplane.launcher import ControlPlane
from controlplane.node import Node
from controlplane.progress import PlainReport
from tests.e2e.namespace import Namespace
from tests.node.installation import TAGS, Installation

_OURS = ("--namespace", "holdfast-system")
_DIAGNOSTICS = (
    ("get", "pods", *_OURS, "-o", "wide"),
    ("get", "events", *_OURS, "--sort-by=.lastTimestamp"),
    ("logs", *_OURS, "-l", "app.kubernetes.io/name=holdfast", "--prefix", "--tail=40"),
)
_numbers = itertools.count(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the cluster's state and the place of the logs to the report of a failed test."""
    report = yield
    plane = getattr(item, "funcargs", {}).get("plane")
    if report.failed and isinstance(plane, ControlPlane):
        report.sections.append(("logs of the node", str(plane.keep_logs())))
        for arguments in _DIAGNOSTICS:
            report.sections.append((" ".join(arguments), plane.kubectl(*arguments, check=False)))
    del call
    return report


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """Yield a real node, next to a fake one for pods that need not run."""
    with ControlPlane(nodes=1, address=node_plan.GATEWAY, audit=True) as plane, Node(plane) as node:
        plane.kubectl("taint", "node", "node-1", "pretended=yes:NoSchedule")
        for tag in TAGS:
            node.load(image.build(tag, PlainReport(sys.stderr)))
        yield node


@pytest.fixture(scope="session")
def plane(node: Node) -> ControlPlane:
    """Return the control plane of the real node."""
    return node.plane


@pytest.fixture(scope="session")
def installation(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    new_installation = Installation(plane, tmp_path_factory.mktemp("kustomizations"))
    new_installation.install()
    return new_installation


@pytest.fixture
def ns(plane: ControlPlane, installation: Installation) -> Iterator[Namespace]:
    namespace = Namespace.create_new(plane, f"test-{next(_numbers)}")
    yield namespace
    plane.kubectl("delete", "namespace", namespace.namespace, "--wait=false")
