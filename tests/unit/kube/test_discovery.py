"""Finding KubeVirt in the discovery lists of the API server."""

import json

import pytest

from holdfast.webhook.errors import ClusterError, UnreachableError
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
        pytest.param(["virtualmachines"], False, id="kind missing"),
        pytest.param(["kubevirts", "kubevirts/status"], False, id="operator only"),
        pytest.param([], False, id="nothing"),
    ],
)
def test_kind_is_served_if_the_api_lists_it(kinds: list[str], expected: bool) -> None:
    api = FakeApi()
    api.answers[kubevirt.API_PATH] = served(*kinds)

    assert serves(api, KIND, timeout=1.0) is expected
    assert api.patience("GET") == [1.0]


def test_unlisted_api_group_is_not_served() -> None:
    api = FakeApi()
    api.answers[GROUPS] = listed("apps", "cdi.kubevirt.io")
    api.before("GET", raising(status_error(404)))

    assert not serves(api, KIND, timeout=1.0)
    assert api.requests == [("GET", kubevirt.API_PATH), ("GET", GROUPS)]


@pytest.mark.parametrize(
    "failures",
    [
        pytest.param([status_error(503)], id="API unavailable"),
        pytest.param([unreachable()], id="unreachable"),
        pytest.param([status_error(404)], id="404 for a listed group"),
        pytest.param([status_error(404), status_error(404)], id="404 for both"),
        pytest.param([status_error(404), status_error(403)], id="groups forbidden"),
    ],
)
def test_failed_discovery_is_an_error(failures: list[ClusterError]) -> None:
    api = FakeApi()
    api.answers[GROUPS] = listed("apps", "kubevirt.io")
    api.before("GET", *map(raising, failures))
    with pytest.raises(ClusterError) as caught:
        serves(api, KIND, timeout=1.0)

    assert caught.value is failures[-1]


@pytest.mark.parametrize(
    "response",
    [b"<html>", b"{}", b"[]", b"\xff"],
    ids=["HTML", "empty", "list", "not UTF-8"],
)
@pytest.mark.parametrize("path", [kubevirt.API_PATH, GROUPS], ids=["kinds", "groups"])
def test_invalid_discovery_response_is_an_error(path: str, response: bytes) -> None:
    api = FakeApi()
    api.answers[path] = response
    if path == GROUPS:
        api.before("GET", raising(status_error(404)))
    with pytest.raises(UnreachableError, match=f"the response for {path} is not valid: "):
        serves(api, KIND, timeout=1.0)
