"""The guard, as `holdfast doctor` tries it."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from holdfast.certs import authority
from holdfast.webhook.cli import doctor
from holdfast.webhook.errors import ApiStatusError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.client import boot_time
from holdfast.webhook.model import approvals
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.policies.builder import InstallationNames
from holdfast.webhook.registration import configurations
from holdfast.webhook.report.diagnosis import Level
from tests.support.builders import CREATED, CREATED_MS, make_profiles
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


@pytest.mark.parametrize(
    ("minutes", "level"), [(1, Level.WARNING), (60, Level.PROBLEM)], ids=["new CA", "old CA"]
)
def test_certificate_that_is_missing_after_a_new_ca(minutes: int, level: Level) -> None:
    ca = authority.new_ca("holdfast", now=CREATED - timedelta(minutes=minutes))
    (found,) = doctor._served("Service a/b", b"", ca.certificate, CREATED_MS)
    assert found.level is level


def test_another_namespace_has_the_installation() -> None:
    api = FakeApi()
    api.answers["/version"] = b'{"gitVersion": "v1.36.0"}'
    webhook = {"clientConfig": {"service": {"namespace": "right", "name": "holdfast-webhook"}}}
    metadata = {"name": "holdfast"}
    item = {"metadata": metadata, "webhooks": [{"name": "pods", **webhook}]}
    for path in configurations.paths(""):
        page = json.dumps({"metadata": {}, "items": [item]})
        api.answers[path.rstrip("/")] = page.encode()
    time = listing.Time()
    time.observe(sent=boot_time(), received=boot_time(), date=CREATED_MS / 1_000)
    *_, found = doctor.examine(api, "https://server", time, "wrong")
    assert found.level is Level.PROBLEM
    assert found.text.startswith("nothing is installed in namespace wrong")
    assert "--namespace right" in found.cure


def test_user_who_may_not_change_pods_cannot_try_it() -> None:
    api = cluster()
    api.before("PATCH", raising(status_error(403)))
    with pytest.raises(ApiStatusError):
        levels(api)
