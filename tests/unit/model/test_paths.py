import pytest

from holdfast.webhook.model.paths import api_path


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param(("v1", "nodes"), "/api/v1/nodes", id="list"),
        pytest.param(("v1", "nodes", "", "n/1?"), "/api/v1/nodes/n%2F1%3F", id="escaped name"),
        pytest.param(
            ("apps/v1", "deployments", "../a", "web"),
            "/apis/apps/v1/namespaces/..%2Fa/deployments/web",
            id="group and namespace",
        ),
    ],
)
def test_path(parts: tuple[str, ...], expected: str) -> None:
    assert api_path(*parts) == expected
