"""Finding KubeVirt in the discovery lists of the API server."""

import json

import pytest

from holdfast.webhook.errors import ApiStatusError, ClusterError, UnreachableError
from holdfast.webhook.kube.discovery import GROUPS, serves
from holdfast.webhook.model import kubevirt
from tests.support.fakes import FakeApi, raising, status_error, unreachable

KIND = "virtualmachineinstances"


def served(*kinds: str) -> bytes:
    return json.dumps({"resources": [{"name": kind, "kind": "Any"} for kind in kinds]}).encode()


def listed(*groups: str) -> bytes:
    return json.dumps({"groups": [{"name": group, "versions": []} for group in groups]}).encode()


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        pytest.param(["virtualmachines", "virtualmachineinstances"], True, id="KubeVirt"),
        pytest.param(["virtualmachines"], False, id="without that kind"),
        pytest.param(["kubevirts", "kubevirts/status"], False, id="its operator alone"),
        pytest.param([], False, id="nothing"),
    ],
)
def test_kinds_of_kubevirts_api_tell(kinds: list[str], expected: bool) -> None:
    api = FakeApi()
    api.answers[kubevirt.API_PATH] = served(*kinds)

    assert serves(api, KIND, timeout=1.0) is expected
    assert api.patience("GET") == [1.0]


def test_api_that_is_nowhere_is_not_served() -> None:
    api = FakeApi()
    api.answers[GROUPS] = listed("apps", "cdi.kubevirt.io")
    api.before("GET", raising(status_error(404)))

    assert not serves(api, KIND, timeout=1.0)
    assert api.requests == [("GET", kubevirt.API_PATH), ("GET", GROUPS)]


def test_api_that_is_named_and_yet_not_there_is_a_failure() -> None:
    api = FakeApi()
    api.answers[GROUPS] = listed("apps", "kubevirt.io")
    lost = status_error(404)
    api.before("GET", raising(lost))
    with pytest.raises(ApiStatusError) as caught:
        serves(api, KIND, timeout=1.0)

    assert caught.value is lost


@pytest.mark.parametrize(
    "failures",
    [
        pytest.param([status_error(503)], id="the API"),
        pytest.param([unreachable()], id="no answer"),
        pytest.param([status_error(404), status_error(404)], id="a proxy that knows no path"),
        pytest.param([status_error(404), status_error(403)], id="the groups"),
    ],
)
def test_what_cannot_be_asked_is_a_failure(failures: list[ClusterError]) -> None:
    api = FakeApi()
    api.before("GET", *map(raising, failures))
    with pytest.raises(ClusterError) as caught:
        serves(api, KIND, timeout=1.0)

    assert caught.value is failures[-1]


@pytest.mark.parametrize(
    "answer",
    [b"<html>", b"{}", b"[]", b"\xff"],
    ids=["of a proxy", "empty", "another shape", "no UTF-8"],
)
@pytest.mark.parametrize("path", [kubevirt.API_PATH, GROUPS], ids=["the kinds", "the groups"])
def test_answer_that_is_no_list_is_a_failure(path: str, answer: bytes) -> None:
    api = FakeApi()
    api.answers[path] = answer
    if path == GROUPS:
        api.before("GET", raising(status_error(404)))
    with pytest.raises(UnreachableError, match=f"the response for {path} is not valid: "):
        serves(api, KIND, timeout=1.0)
