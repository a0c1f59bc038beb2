"""One cluster for all tests of the guard."""

from collections.abc import Iterator

import pytest

from controlplane.launcher import ControlPlane
from demo.command import Command
from tests.e2e import vms
from tests.e2e.accounts import controller_kubeconfig
from tests.e2e.guard.cluster import POLICIES, VMS, Guarded, grant_excess_rights
from tests.e2e.guard.objects import FILLED, full, held, machine, stored
from tests.e2e.kubectl_user import refusal
from tests.e2e.namespace import DEFINITIONS, Namespace


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guard")
    with ControlPlane(nodes=1, audit=True) as plane:
        token_kubeconfig = controller_kubeconfig(plane, folder / "controller.kubeconfig")
        plane.api.create(DEFINITIONS, vms.definition(VMS))
        cluster = Guarded(plane, token_kubeconfig)
        cluster.apply_guard()
        ns = cluster.ns()
        ns.eventually(lambda: not refusal(ns.kubectl, "get", "vm"))
        grant_excess_rights(plane)
        ns.apply(held("probed"), machine("probed"))
        for policy in POLICIES:
            cluster.await_policy(ns, policy)
        arguments = ["--kubeconfig", str(token_kubeconfig), "--health-port", "0"]
        with Command("controller", *arguments, log=folder / "controller.log"):
            yield cluster


@pytest.fixture
def ns(guarded: Guarded) -> Namespace:
    return guarded.ns()


@pytest.fixture(scope="package")
def shared(guarded: Guarded) -> Namespace:
    """A namespace with pods, shared by all tests that use dry runs only."""
    ns = guarded.ns()
    ns.apply(held("held"), full("full"), machine("vm"), stored("filled", **FILLED))
    return ns
