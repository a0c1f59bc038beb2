"""Which account creates the pods of VMs."""

from typing import Any

import pytest

from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.model import kubevirt
from holdfast.webhook.plugins.virt_controller import AUTO, VirtController
from tests.support.fakes import FakeLookup

LIST = kubevirt.INSTALLATIONS
CNV, OTHER = (kubevirt.controller_account(one) for one in ("openshift-cnv", "other"))


def installed(*namespaces: str) -> dict[str, Any]:
    """Make KubeVirt objects in these namespaces, in the order of their creation."""
    made = [
        {"metadata": {"namespace": name, "creationTimestamp": f"2026-01-0{day}T00:00:00Z"}}
        for day, name in enumerate(namespaces, 1)
    ]
    return {LIST: {"items": made[::-1]}}


class Finder:
    def __init__(self, objects: dict[str, Any], account: str = AUTO) -> None:
        self.lookup = FakeLookup(objects)
        handle = Handle()
        handle.connect(lookup=self.lookup)
        self.is_user = VirtController(account, handle).is_user


@pytest.mark.parametrize(
    ("objects", "account"),
    [
        pytest.param(installed("openshift-cnv"), CNV, id="by the KubeVirt object"),
        pytest.param(installed("openshift-cnv", "other"), CNV, id="the oldest counts"),
        pytest.param({}, kubevirt.CONTROLLER_ACCOUNT, id="none is served"),
        pytest.param({LIST: {"items": None}}, kubevirt.CONTROLLER_ACCOUNT, id="there is none"),
    ],
)
def test_account_is_in_kubevirts_namespace(objects: dict[str, Any], account: str) -> None:
    finder = Finder(objects)

    assert finder.is_user(account)
    assert not finder.is_user(OTHER)
    assert not finder.is_user(account.replace("kubevirt-controller", "kubevirt-api"))


def test_configured_account_is_not_looked_up() -> None:
    finder = Finder(installed("openshift-cnv"), "admin")

    assert finder.is_user("admin")
    assert not finder.is_user(CNV)
    assert finder.lookup.asked == []


@pytest.mark.parametrize(("status", "raised"), [(404, False), (403, True)])
def test_only_a_missing_kind_counts_as_no_kubevirt(status: int, *, raised: bool) -> None:
    finder = Finder({})
    finder.lookup.failures.append(ApiStatusError(f"HTTP {status}", status=status))

    if raised:
        with pytest.raises(ApiStatusError):
            finder.is_user(CNV)
    else:
        assert not finder.is_user(CNV)
