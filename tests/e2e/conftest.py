"""A real control plane for the tests, with Holdfast in it."""

import itertools
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from controlplane.kubevirt import install
from controlplane.launcher import ControlPlane
from demo.command import Command
from tests.e2e import short_intervals
from tests.e2e.installed import Installation, installation
from tests.e2e.namespace import Namespace, pod

PLANES = pytest.StashKey[list[ControlPlane]]()
"""The clusters that a test has started."""

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run groups first: each runs in one process, so that short tests fill the gaps at the end."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail if pytest-xdist splits groups: every process would start every cluster."""
    grouped = getattr(item.config.option, "loadgroup", False)
    if grouped and item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
        pytest.fail("this version of pytest-xdist ignores xdist_group; pin another one")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the logs of a failed test's clusters, and add their location to its report."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        planes = {id(plane): plane for plane in [*item.stash.get(PLANES, []), *_planes(item)]}
        for plane in planes.values():
            report.sections.append(("logs of the control plane", str(plane.keep_logs())))
        for name, path in _logs(item):
            report.sections.append((name, path.read_text(errors="replace")[-5_000:]))
    del call
    return report


def _logs(item: pytest.Function) -> Iterator[tuple[str, Path]]:
    for value in item.funcargs.values():
        if isinstance(value, Namespace) and value.holdfast is not None:
            yield "log of the shared holdfast", value.holdfast.log
        elif isinstance(value, Path) and value.is_file():
            yield "log of the test's own holdfast", value


def _planes(item: pytest.Function) -> Iterator[ControlPlane]:
    for value in item.funcargs.values():
        if isinstance(value, Namespace | Installation):
            yield value.plane
        elif isinstance(value, ControlPlane):
            yield value


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A cluster shared by all tests of a pytest process that do not break it."""
    with ControlPlane(nodes=3, audit=True) as plane:
        yield plane


@pytest.fixture(scope="session")
def holdfast(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Command]:
    log = tmp_path_factory.mktemp("holdfast") / "dev.log"
    with Command("dev", "--kubeconfig", str(control_plane.kubeconfig), log=log) as command:
        yield command


@pytest.fixture
def ns(control_plane: ControlPlane, holdfast: Command) -> Namespace:
    return Namespace.create_new(control_plane, _name(), holdfast)


@pytest.fixture(scope="session")
def kubevirt() -> Iterator[ControlPlane]:
    """A cluster with KubeVirt and nodes node-1 to node-3, for all tests that do not break it.

    It is large: modules that use it carry `pytestmark = pytest.mark.xdist_group("kubevirt")`, so
    that a single pytest process starts it and runs them all.
    """
    with ControlPlane(nodes=3, audit=True) as plane:
        install(plane)
        yield plane


@pytest.fixture
def kubevirt_ns(kubevirt: ControlPlane) -> Namespace:
    """A new namespace in that cluster, without Holdfast."""
    return Namespace.create_new(kubevirt, _name())


@pytest.fixture(scope="session")
def plain_cluster() -> Iterator[ControlPlane]:
    """A cluster without Holdfast, for tests of a pytest process that run parts of Holdfast."""
    with ControlPlane(nodes=3, audit=True) as plane:
        yield plane


@pytest.fixture
def plain_ns(plain_cluster: ControlPlane) -> Iterator[Namespace]:
    ns = Namespace.create_new(plain_cluster, _name())
    yield ns
    ns.delete_pods()


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Holdfast as installed by its manifests: two replicas and a controller.

    The controller's intervals are short, and its wall clock is more than a year ahead. Tests that
    use it must leave it intact and be in the group `installed`.
    """
    with installation(tmp_path_factory.mktemp("installed")) as new_installation:
        new_installation.module = short_intervals.__name__
        new_installation.replica()
        new_installation.replica()
        new_installation.controller(seconds_ahead=400 * 86_400)
        new_installation.ready()
        yield new_installation


@pytest.fixture
def new_cluster(request: pytest.FixtureRequest) -> Iterator[Callable[[], Namespace]]:
    """Start clusters without Holdfast for this test only, so it may break them."""
    planes: list[ControlPlane] = []

    def start() -> Namespace:
        plane = ControlPlane(nodes=3, audit=True)
        plane.start()
        planes.append(plane)
        request.node.stash.setdefault(PLANES, []).append(plane)
        return Namespace.create_new(plane, _name())

    yield start
    for plane in planes:
        plane.stop()


@pytest.fixture(scope="session")
def crowded() -> Iterator[Namespace]:
    """A namespace with 10,000 held pods, `waits-0` and so on, in a cluster without Holdfast.

    Storing them takes long: tests that use it are in the group `crowded`.
    """
    gates = [{"name": "holdfast.dev/delay"}]
    with ControlPlane(nodes=3, audit=True) as plane:
        ns = Namespace.create_new(plane, "crowded")
        ns.create_pods(
            pod(f"waits-{number}", {"delay": f"{36_000 + number}"}, schedulingGates=gates)
            for number in range(10_000)
        )
        yield ns


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file for a command's output."""
    return tmp_path / "command.log"


def _name() -> str:
    return f"test-{os.environ.get('PYTEST_XDIST_WORKER', 'gw')}-{next(_numbers)}"
