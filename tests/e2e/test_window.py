"""A window of a minute on a real control plane."""

from datetime import UTC, datetime, timedelta

from tests.e2e.namespace import Namespace, gates, pod

KEY = "holdfast.dev/window"


def test_pod_starts_when_its_window_opens(ns: Namespace) -> None:
    now = datetime.now(UTC)
    opens = (now + timedelta(minutes=1, seconds=5)).replace(second=0, microsecond=0)
    window = f"{opens:%H:%M}-{opens + timedelta(minutes=1):%H:%M}"
    later_window = f"{opens + timedelta(hours=2):%H:%M}-{opens + timedelta(hours=3):%H:%M}"
    held, waiting = ns.apply(pod("opens", {KEY: window}), pod("waits", {KEY: later_window}))
    assert gates(held) == gates(waiting) == [KEY]

    ns.eventually(lambda: "opens" in ns.releases(), 90)
    assert ns.releases()["opens"] >= opens.timestamp()
    assert gates(ns.get("pod", "waits")) == [KEY]
    assert ns.releases().keys() == {"opens"}
