"""The cluster with KubeVirt, and a Holdfast whose processes a test may stop."""

import itertools
from collections.abc import Iterator

import pytest

from controlplane.launcher import ControlPlane
from tests.e2e.namespace import Namespace
from tests.e2e.two_processes import TwoProcesses

_numbers = itertools.count(1)


@pytest.fixture
def vm_ns(kubevirt: ControlPlane) -> Namespace:
    """A namespace for VMs, on the cluster with KubeVirt."""
    return Namespace.create_new(kubevirt, f"landing-{next(_numbers)}")


@pytest.fixture(scope="package")
def apart(
    kubevirt: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoProcesses]:
    with TwoProcesses(kubevirt, tmp_path_factory.mktemp("apart")) as processes:
        yield processes


@pytest.fixture
def holdfast(apart: TwoProcesses) -> TwoProcesses:
    """Both processes; started again if a failed test has left one stopped."""
    for name in ("server", "controller"):
        if not getattr(apart, name).was_started:
            apart.start(name)
    return apart
