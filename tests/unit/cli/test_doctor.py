"""The guard, as `holdfast doctor` tries it."""

from __future__ import annotations

import pytest

from holdfast.webhook.cli import doctor
from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube import listing
from holdfast.webhook.model import approvals
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.policies.builder import InstallationNames
from holdfast.webhook.report.diagnosis import Level
from tests.support.builders import make_profiles
from tests.support.fakes import FakeApi, raising, status_error

OWN = "elsewhere"
POD = f"{listing.pods_path(OWN)}/controller"
DENIED = "ValidatingAdmissionPolicy 'holdfast-approval' with binding 'holdfast-approval' denied it"


def cluster(namespace: str = OWN) -> FakeApi:
    """Create an API with a pod of Holdfast, and the policies of an installation there."""
    api = FakeApi()
    api.put(POD, {"metadata": {"name": "controller", "namespace": OWN}})
    for one in pod_policies.policies(make_profiles(), InstallationNames(namespace)):
        if one["kind"] == "ValidatingAdmissionPolicy":
            name = one["metadata"]["name"]
            path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
            api.put(f"{path}/{name}", one)
    return api


def levels(api: FakeApi) -> list[Level]:
    return [finding.level for finding in doctor._guard(api, OWN)]


def test_guard_that_refuses_is_in_order() -> None:
    api = cluster()
    api.before("PATCH", raising(ApiStatusError(DENIED, status=422)))
    assert levels(api) == [Level.OK]


def test_guard_that_refuses_nothing_is_a_problem() -> None:
    api = cluster()
    assert levels(api) == [Level.PROBLEM]
    assert approvals.APPROVED_BY in str(api.objects[POD])  # the fake API stores dry runs


def test_guard_of_another_namespace_is_a_problem() -> None:
    assert levels(cluster("holdfast-system")) == [Level.PROBLEM]


def test_no_guard_is_a_warning() -> None:
    assert levels(FakeApi()) == [Level.WARNING]


def test_user_who_may_not_change_pods_cannot_try_it() -> None:
    api = cluster()
    api.before("PATCH", raising(status_error(403)))
    with pytest.raises(ApiStatusError):
        levels(api)
