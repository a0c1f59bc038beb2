"""The service account that creates the pods of VMs."""

from typing import Any

import pytest

from holdfast.webhook.errors import ClusterError
from holdfast.webhook.kube import discovery
from holdfast.webhook.model import kubevirt
from holdfast.webhook.plugins.virt_controller import AUTO, VirtController
from tests.support.builders import handle_with
from tests.support.fakes import FakeLookup, status_error

LIST, KINDS, GROUPS = kubevirt.INSTALLATIONS, kubevirt.API_PATH, discovery.GROUPS
CNV, OTHER = (kubevirt.controller_account(namespace) for namespace in ("openshift-cnv", "other"))


def installed(*namespaces: str) -> dict[str, Any]:
    """Make KubeVirt objects in these namespaces, in the order of their creation."""
    documents = [
        {"metadata": {"namespace": name, "creationTimestamp": f"2026-01-0{day}T00:00:00Z"}}
        for day, name in enumerate(namespaces, 1)
    ]
    return {LIST: {"items": documents[::-1]}}


def groups(*names: str) -> dict[str, Any]:
    """Make the discovery list of these API groups."""
    return {GROUPS: {"groups": [{"name": name} for name in names]}}


def kinds(*names: str) -> dict[str, Any]:
    """Make the discovery list of these KubeVirt kinds."""
    return {KINDS: {"resources": [{"name": name} for name in names]}}


class Finder:
    def __init__(self, objects: dict[str, Any]) -> None:
        self.lookup = FakeLookup(objects)
        self.is_user = VirtController(AUTO, handle_with(lookup=self.lookup)).is_user


@pytest.mark.parametrize(
    ("objects", "account"),
    [
        pytest.param(installed("openshift-cnv"), CNV, id="from the KubeVirt object"),
        pytest.param(installed("openshift-cnv", "other"), CNV, id="oldest of two"),
        pytest.param({}, kubevirt.CONTROLLER_ACCOUNT, id="kind not served"),
        pytest.param({LIST: {"items": None}}, kubevirt.CONTROLLER_ACCOUNT, id="no objects"),
    ],
)
def test_account_is_in_kubevirts_namespace(objects: dict[str, Any], account: str) -> None:
    finder = Finder(objects)

    assert finder.is_user(account)
    assert not finder.is_user(OTHER)
    assert not finder.is_user(account.replace("kubevirt-controller", "kubevirt-api"))


@pytest.mark.parametrize(
    ("failures", "objects", "asked"),
    [
        pytest.param(2, groups("apps", "cdi.kubevirt.io"), [LIST, KINDS, GROUPS], id="no group"),
        pytest.param(1, kinds("virtualmachines"), [LIST, KINDS], id="no such kind"),
    ],
)
def test_missing_kind_means_kubevirt_is_not_installed(
    failures: int, objects: dict[str, Any], asked: list[str]
) -> None:
    finder = Finder(objects)
    finder.lookup.failures.extend([status_error(404)] * failures)

    assert finder.is_user(kubevirt.CONTROLLER_ACCOUNT)
    assert finder.lookup.asked == asked


@pytest.mark.parametrize(
    ("failures", "objects"),
    [
        pytest.param([status_error(403)], groups("apps"), id="forbidden"),
        pytest.param([status_error(404)], kinds("kubevirts"), id="a proxy's 404"),
        pytest.param([status_error(404)] * 2, groups("kubevirt.io"), id="a proxy's 404 twice"),
        pytest.param([status_error(404)] * 3, groups("apps"), id="a proxy's 404 for all paths"),
        pytest.param([status_error(404)] * 2, {GROUPS: {}}, id="another response"),
    ],
)
def test_failed_lookup_does_not_mean_kubevirt_is_not_installed(
    failures: list[Exception], objects: dict[str, Any]
) -> None:
    finder = Finder(objects)
    finder.lookup.failures.extend(failures)

    with pytest.raises(ClusterError):
        finder.is_user(CNV)
