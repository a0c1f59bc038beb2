"""One installation for all of these tests."""

from collections.abc import Iterator

import pytest

from tests.e2e.namespace import Namespace, pod
from tests.e2e.secured import (
    HERE,
    TAINT,
    THERE,
    Secured,
    secured_in,
    sticky_vm,
)


@pytest.fixture(scope="package")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_in(tmp_path_factory.mktemp("privilege")) as installation:
        yield installation


@pytest.fixture
def tainted(secured: Secured) -> Iterator[None]:
    """Taint the edge node, so that only pods that tolerate the taint are scheduled there."""
    plane = secured.installed.plane
    plane.kubectl("taint", "node", THERE, f"{TAINT}=:NoSchedule")
    yield
    plane.kubectl("taint", "node", THERE, f"{TAINT}-")


@pytest.fixture(scope="package")
def robbed(secured: Secured) -> Namespace:
    """A namespace with a held pod, a VM and a user's Secret."""
    ns = secured.ns("robbed")
    ns.apply(pod("victim", {"delay": "1h"}))
    sticky_vm(ns, HERE)
    ns.kubectl("create", "secret", "generic", "others", "--from-literal=a=b")
    return ns
