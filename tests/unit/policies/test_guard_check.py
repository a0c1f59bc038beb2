"""The check of the guard that the controller runs at startup."""

from __future__ import annotations

import math

import pytest

from holdfast.webhook.errors import ApiStatusError, UnreachableError
from holdfast.webhook.kube import listing
from holdfast.webhook.policies import guard_check
from tests.support.fakes import FakeApi, raising, status_error

OWN = "elsewhere"
DENIED = "ValidatingAdmissionPolicy 'holdfast-controller-pods' denied request"


def measured(api: FakeApi) -> float:
    values: list[float] = []
    guard_check.measure(api, OWN, values.append)
    (value,) = values
    return value


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(None, 0.0, id="accepted"),
        pytest.param(ApiStatusError(DENIED, status=422), 1.0, id="rejected"),
        pytest.param(status_error(403), math.nan, id="forbidden"),
        pytest.param(UnreachableError("no route"), math.nan, id="API server unreachable"),
    ],
)
def test_measure(error: Exception | None, expected: float) -> None:
    api = FakeApi()
    api.put(f"{listing.pods_path(OWN)}/own", {"metadata": {"name": "own", "namespace": OWN}})
    if error is not None:
        api.before("PATCH", raising(error))
    assert measured(api) == pytest.approx(expected, nan_ok=True)


def test_measure_without_a_pod() -> None:
    assert math.isnan(measured(FakeApi()))
