"""A real control plane for the tests, with Holdfast in it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.launcher import ControlPlane
from demo.command import Command
from tests.e2e.world import World

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """One cluster for all tests of a pytest process that do not harm it."""
    with ControlPlane(nodes=3, audit=True) as running:
        yield running


@pytest.fixture(scope="session")
def holdfast(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Command]:
    """`holdfast dev` on that cluster."""
    log = tmp_path_factory.mktemp("holdfast") / "dev.log"
    with Command("dev", "--kubeconfig", str(control_plane.kubeconfig), log=log) as running:
        yield running


@pytest.fixture
def world(control_plane: ControlPlane, holdfast: Command) -> World:
    """A namespace of the test's own, in the cluster with Holdfast."""
    return World.in_new_namespace(control_plane, _name(), holdfast)


@pytest.fixture
def bare_world() -> Iterator[Callable[[], World]]:
    """Clusters of the test's own, without Holdfast, to be harmed at will."""
    running: list[ControlPlane] = []

    def start() -> World:
        plane = ControlPlane(nodes=3, audit=True)
        plane.start()
        running.append(plane)
        return World.in_new_namespace(plane, _name())

    yield start
    for plane in running:
        plane.stop()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where a command's output goes."""
    return tmp_path / "command.log"


def _name() -> str:
    return f"test-{os.environ.get('PYTEST_XDIST_WORKER', 'gw')}-{next(_numbers)}"
