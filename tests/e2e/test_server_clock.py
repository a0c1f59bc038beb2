"""The wall clock of the admission server's machine is wrong; the API server's is right."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controlplane.launcher import ControlPlane
from tests.e2e.namespace import Namespace, gates, pod
from tests.e2e.two_processes import TwoProcesses

pytestmark = pytest.mark.xdist_group("kubevirt")


@pytest.fixture
def ns(kubevirt_ns: Namespace) -> Namespace:
    """A cluster without Holdfast: the one with KubeVirt, which is there for others anyway."""
    return kubevirt_ns


def test_fast_clock_admits_no_pod_early(
    kubevirt: ControlPlane, ns: Namespace, tmp_path: Path
) -> None:
    """To the mutating review the time is long past, and it has no other clock."""
    until = (datetime.now(UTC) + timedelta(minutes=30)).isoformat()
    config = "profiles: [{pluginConfig: [{name: delay, args: {onInvalid: ignore}}]}]\n"
    with TwoProcesses(kubevirt, tmp_path, config=config) as holdfast:
        holdfast.ahead.write_text("3600")
        asks = {"holdfast.dev/not-before": until}
        assert "the API server created the pod at" in ns.refusal(pod("early", asks))

        holdfast.ahead.write_text("0")
        (made,) = ns.apply(pod("in-time", asks))
        assert gates(made) == ["holdfast.dev/delay"]

        holdfast.ahead.write_text("-3600")
        (made,) = ns.apply(pod("behind", asks))
        assert gates(made) == ["holdfast.dev/delay"]
