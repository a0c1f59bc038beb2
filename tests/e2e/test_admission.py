import pytest

from controlplane.errors import ControlPlaneError
from tests.e2e.namespace import Namespace, created, gates, pod

GATE = "holdfast.dev/delay"


def test_delayed_pod_is_held_then_released_on_time_and_runs(ns: Namespace) -> None:
    (stored,) = ns.apply(pod("held", {"delay": "3"}))
    assert gates(stored) == [GATE]
    assert stored["metadata"]["annotations"]["holdfast.dev/held"] == "delay=3s"
    assert stored["metadata"]["labels"]["holdfast.dev/held"] == "true"

    ns.eventually(
        lambda: (
            ns.get("pod", "held")["status"].get("conditions", [{}])[0].get("reason")
            == "SchedulingGated"
        )
    )
    ns.eventually(lambda: ns.get("pod", "held")["status"]["phase"] == "Running")
    assert ns.releases()["held"] - created(stored) >= 3
    assert "labels" not in ns.get("pod", "held")["metadata"]


def test_dry_run_shows_gate_and_hint_but_stores_nothing(ns: Namespace) -> None:
    (stored,) = ns.apply(pod("dry", {"delay": "15"}), dry_run=True)
    assert gates(stored) == [GATE]
    assert stored["metadata"]["annotations"]["holdfast.dev/held"] == "delay=15s"
    with pytest.raises(ControlPlaneError, match="NotFound"):
        ns.get("pod", "dry")


def test_changed_or_removed_delay_of_held_pod_takes_effect(ns: Namespace) -> None:
    manifests = pod("shortened", {"delay": "1000"}), pod("removed", {"delay": "1000"})
    ns.apply(*manifests)
    ns.kubectl("annotate", "pod", "shortened", "delay=1", "--overwrite")
    ns.kubectl("annotate", "pod", "removed", "delay-")
    ns.eventually(lambda: ns.releases().keys() == {"shortened", "removed"})


def test_invalid_delay_on_held_pod_is_rejected(ns: Namespace) -> None:
    ns.apply(pod("waits", {"delay": "1000"}))
    with pytest.raises(ControlPlaneError, match='invalid value "soon"'):
        ns.kubectl("annotate", "pod", "waits", "delay=soon", "--overwrite")
