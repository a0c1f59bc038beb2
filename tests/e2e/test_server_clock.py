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
    """A namespace without Holdfast, in the shared KubeVirt cluster."""
    return kubevirt_ns


def test_wrong_server_clock_never_skips_a_hold(
    kubevirt: ControlPlane, ns: Namespace, tmp_path: Path
) -> None:
    """With a fast clock, the mutating webhook takes the due time to be in the past."""
    due_time = (datetime.now(UTC) + timedelta(minutes=30)).isoformat()
    config = "profiles: [{pluginConfig: [{name: delay, args: {onInvalid: ignore}}]}]\n"
    with TwoProcesses(kubevirt, tmp_path, config=config) as holdfast:
        holdfast.ahead.write_text("3600")
        annotations = {"holdfast.dev/not-before": due_time}
        assert "the API server created the pod at" in ns.refusal(pod("early", annotations))

        holdfast.ahead.write_text("0")
        (stored,) = ns.apply(pod("in-time", annotations))
        assert gates(stored) == ["holdfast.dev/delay"]

        holdfast.ahead.write_text("-3600")
        (stored,) = ns.apply(pod("behind", annotations))
        assert gates(stored) == ["holdfast.dev/delay"]
