"""`holdfast version` on a cluster with and without an installation."""

import pytest

from holdfast.webhook.cli import version as command
from tests.support.fakes import FakeApi, raising, status_error
from tests.support.served import ServedApi

PATH = "/apis/apps/v1/namespaces/elsewhere/deployments/holdfast-webhook"


def installed(api: FakeApi) -> dict[str, str]:
    return command._installed(api, "elsewhere")


def test_installed_version_and_image_or_missing_permission_are_shown() -> None:
    api = FakeApi()
    assert installed(api) == {"installed": "not installed in namespace elsewhere"}
    labels = {"app.kubernetes.io/version": "0.2.0"}
    containers = [{"image": "example.com/holdfast@sha256:1234"}]
    spec = {"template": {"spec": {"containers": containers}}}
    api.put(PATH, {"metadata": {"labels": labels}, "spec": spec})
    assert installed(api) == {"installed": "0.2.0", "image": "example.com/holdfast@sha256:1234"}
    api.before("GET", raising(status_error(403)))
    assert installed(api)["installed"].startswith("unknown, no permission")


def test_client_version_is_shown_if_server_is_unreachable(cluster: ServedApi) -> None:
    result = cluster.run("version", "--cluster", "gone", code=1)
    assert result.stdout.startswith("holdfast ")
    assert "http://127.0.0.1:1 does not answer: connection refused;" in result.stderr


@pytest.mark.parametrize(
    ("server_version", "warns"),
    [
        pytest.param("0.5.9", False, id="same"),
        pytest.param("0.6.0", False, id="next"),
        pytest.param("0.7.0", True, id="after-next"),
        pytest.param("1.5.0", True, id="major"),
        pytest.param("none in namespace x", False, id="none"),
    ],
)
def test_version_skew_causes_a_warning(server_version: str, warns: bool) -> None:
    assert bool(command.skew("0.5.1", server_version)) == warns
