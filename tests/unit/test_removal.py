"""Uninstalling where an answer is not Kubernetes' own: nothing is taken for gone by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes import status_error
from tests.objects import ObjectApi
from webhook import discovery, uninstallation, vms
from webhook.commands.uninstall import Removal
from webhook.errors import ApiStatusError, CommandError

NAMESPACE = "holdfast-system"
MACHINES = f"{vms.API_PATH}/virtualmachines"
VM = vms.vm_path("shop", "db")
RECORDED = {"name": "db", "namespace": "shop", "annotations": {vms.STICKY_NODE: "node-1"}}
Step = Callable[[Removal], Any]


def installed() -> ObjectApi:
    """Make what is asked for by an uninstallation, but for what nobody has installed."""
    api = ObjectApi()
    api.put(uninstallation.config_maps(NAMESPACE), {"items": []})
    api.put(MACHINES, {"items": [{"metadata": RECORDED}]})
    return api


def losing(*paths: str) -> Callable[[str, str], None]:
    """Answer for these paths as a proxy does that does not know them."""

    def before(_method: str, path: str) -> None:
        if path in paths:
            raise status_error(404)

    return before


def missing(_method: str, _path: str) -> None:
    raise status_error(404, reason="NotFound")


STEPS: dict[str, Step] = {
    "the webhook configurations": lambda removal: removal.stop_asking(),
    "the controller": lambda removal: removal.stop_controller(),
    "the policies": lambda removal: removal.remove_rest(),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_404_that_is_not_kubernetes_own_ends_a_step(step: Step) -> None:
    api = installed()
    lost = status_error(404)

    def before(_method: str, _path: str) -> None:
        raise lost

    api.before = before
    with pytest.raises(ApiStatusError) as caught:
        step(Removal(api, NAMESPACE, 1.0))

    assert caught.value is lost
    assert len(api.requests) == 1


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_what_is_not_there_needs_no_removal(step: Step) -> None:
    api = installed()
    api.before = missing
    step(Removal(api, NAMESPACE, 1.0))


def test_vm_that_is_gone_needs_no_forgetting() -> None:
    api = installed()

    def before(method: str, path: str) -> None:
        if (method, path) == ("PATCH", VM):
            missing(method, path)

    api.before = before
    Removal(api, NAMESPACE, 1.0).forget_vms()

    assert ("PATCH", VM) in api.requests


def test_record_that_may_be_left_is_told() -> None:
    api = installed()
    api.before = losing(VM)
    with pytest.raises(CommandError, match=r"the record is left on 1 VM, such as shop/db \(HTTP"):
        Removal(api, NAMESPACE, 1.0).forget_vms()


def test_cluster_without_kubevirt_has_no_records() -> None:
    api = installed()
    api.before = losing(MACHINES, vms.API_PATH)
    api.put(discovery.GROUPS, {"groups": [{"name": "apps"}]})
    Removal(api, NAMESPACE, 1.0).forget_vms()

    assert api.requests[-1] == ("GET", discovery.GROUPS)


@pytest.mark.parametrize("also", [[], [vms.API_PATH]], ids=["the VMs", "all of KubeVirt's"])
def test_vms_that_cannot_be_listed_are_not_forgotten(also: list[str]) -> None:
    api = installed()
    api.before = losing(MACHINES, *also)
    api.put(vms.API_PATH, {"resources": [{"name": "virtualmachines"}]})
    api.put(discovery.GROUPS, {"groups": [{"name": "apps"}, {"name": "kubevirt.io"}]})
    with pytest.raises(ApiStatusError):
        Removal(api, NAMESPACE, 1.0).forget_vms()
