"""Concurrent writes, errors, and 404s that are not NotFound."""

from collections.abc import Sequence

import pytest

from holdfast.webhook.model.kubevirt import STICKY_NODE
from holdfast.webhook.sticky.decision import RecordChange
from tests.support.fakes import GROUPS, KUBEVIRT, failing, raising, status_error, unreachable
from tests.support.vm_world import Driver, VmWorld, job_at, pod_at, vm_at, vmi_at
from tests.unit.sticky.vms import (
    OWN,
    edit_pod,
    world_with_record,
    world_with_running_vm,
    world_with_starting_vm,
)


@pytest.mark.parametrize("change", [{"team": "a"}, {STICKY_NODE: "n9"}], ids=["other", "record"])
def test_concurrent_vm_change_is_kept_and_retried_at_once(change: dict[str, str]) -> None:
    world, _ = world_with_running_vm()
    world.api.before("PATCH", lambda: world.write("vm", change))
    (result,) = Driver(world).work()

    assert (result.problem, world.kept()) == ("", [])
    assert dict(world.annotations()) == {**OWN, **change}


def test_constantly_changing_vm_reports_a_problem() -> None:
    world, _ = world_with_running_vm()
    changes = [lambda number=number: world.write("vm", {"n": str(number)}) for number in range(9)]
    world.api.before("PATCH", *changes)
    (result,) = Driver(world).work()

    assert result.problem == "the VM or its pods changed during 8 patches in a row"
    assert len(world.kept()) == 1


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422, 500])
def test_rejected_patch_keeps_finalizer_until_retry_succeeds(status: int) -> None:
    world, pod = world_with_running_vm()
    world.api.before("PATCH", raising(status_error(status, retry_after=7.0)))
    driver = Driver(world)
    (result,) = driver.work()

    assert result.problem.startswith(f"HTTP {status}: scripted")
    assert result.retry_after == 7.0
    assert (world.record(), world.kept()) == ("", [pod])
    driver.settle()
    assert (world.record(), world.kept()) == ("n1", [])


def test_failed_finalizer_removal_keeps_record_and_is_retried() -> None:
    world, pod = world_with_running_vm()
    world.api.before("PATCH", lambda: None, raising(unreachable()))
    driver = Driver(world)
    (result,) = driver.work()

    assert (result.change, bool(result.problem)) == (RecordChange.RECORDED, True)
    assert (world.record(), world.kept()) == ("n1", [pod])
    assert driver.settle().problem == ""
    assert world.kept() == []


def test_pod_bound_during_reconcile_is_recorded() -> None:
    world = VmWorld()
    pod = world.start()
    world.api.delete(pod_at(pod))  # so the pod appears never to be bound

    def run() -> None:
        world.bind(pod, "n2")
        world.ready()

    world.api.before("PATCH", run)
    Driver(world).work()

    assert (world.record(), world.kept()) == ("n2", [])


def test_pod_deleted_during_reconcile_is_not_an_error() -> None:
    world, pod = world_with_running_vm()
    world.api.before("PATCH", lambda: None, lambda: world.api.vanish(pod_at(pod)))
    (result,) = Driver(world).work()

    assert result.problem == ""
    assert world.record() == "n1"


def test_invalid_response_keeps_finalizer() -> None:
    world, pod = world_with_running_vm()
    driver = Driver(world)
    driver.see()
    world.api.change(vm_at("vm"), lambda vm: vm["metadata"].update(annotations=["odd"]))
    result = driver.settle()

    assert result.problem.startswith("the response for ")
    assert world.kept() == [pod]


def test_former_leader_writes_nothing() -> None:
    world, pod = world_with_running_vm()
    driver = Driver(world)
    driver.leads = False
    (result,) = driver.work()

    assert result.problem == "this controller no longer leads"
    assert (world.record(), world.kept()) == ("", [pod])
    assert world.api.patched == []


VMI, VM, JOBS = vmi_at("vm"), vm_at("vm"), job_at("")


@pytest.mark.parametrize(
    "paths",
    [
        pytest.param([VMI], id="the VMI"),
        pytest.param([VM], id="the VM"),
        pytest.param([VMI, KUBEVIRT], id="all of KubeVirt"),
        pytest.param([VMI, KUBEVIRT, GROUPS], id="all APIs"),
    ],
)
def test_proxy_404_keeps_finalizer(paths: Sequence[str]) -> None:
    world, pod = world_with_running_vm()
    driver = Driver(world)
    driver.see()
    world.api.on_request = failing(*paths)
    result = driver.settle()

    assert result.problem == "HTTP 404: scripted"
    assert (world.record(), world.kept()) == ("", [pod])
    world.api.on_request = failing()
    assert driver.settle().problem == ""
    assert (world.record(), world.kept()) == ("n1", [])


def test_proxy_404_does_not_end_migration() -> None:
    world, driver = world_with_record()
    job, pod = world.migrate()
    world.bind(pod, "n2")
    driver.see()
    world.api.on_request = failing(job_at(job), JOBS)

    assert driver.settle().problem == "HTTP 404: scripted"
    assert (world.record(), world.kept()) == ("n1", [pod])


def test_proxy_404_keeps_orphaned_pod() -> None:
    world, pod, driver = world_with_starting_vm()
    edit_pod(world, pod, labels={})
    driver.see()
    world.api.on_request = failing(pod_at(pod))

    assert driver.settle().problem == f"pod default/{pod}: HTTP 404: scripted"
    assert driver.watch.orphans_of(("default", "vm")) == [("default", pod)]
