"""Clusters with and without Holdfast, and commands for them."""

import itertools
from collections.abc import Iterator

import pytest

from controlplane.launcher import ControlPlane
from tests.e2e.cli.commands import Cli
from tests.e2e.namespace import Namespace

_numbers = itertools.count(1)


@pytest.fixture
def cli(ns: Namespace) -> Cli:
    return Cli(ns.plane.kubeconfig, ns.namespace)


@pytest.fixture(scope="package")
def bare_cluster() -> Iterator[ControlPlane]:
    """A cluster without Holdfast."""
    with ControlPlane(nodes=3) as plane:
        yield plane


@pytest.fixture
def bare(bare_cluster: ControlPlane) -> tuple[Namespace, Cli]:
    """A new namespace in that cluster, and a Cli for it."""
    ns = Namespace.create_new(bare_cluster, f"bare-{next(_numbers)}")
    return ns, Cli(bare_cluster.kubeconfig, ns.namespace)
