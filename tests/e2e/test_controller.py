from __future__ import annotations

import random
from pathlib import Path

from demo.command import Command
from tests.e2e.namespace import Namespace, created, gates, pod

GATE = "holdfast.dev/delay"


def gated(name: str, delay: float) -> dict[str, object]:
    return pod(name, {"delay": f"{delay:.3f}s"}, schedulingGates=[{"name": GATE}])


def test_restarted_controller_resumes_from_the_api_server(plain_ns: Namespace, log: Path) -> None:
    ns = plain_ns
    spread = random.Random(1)
    delays = {f"pod-{number}": spread.uniform(2, 14) for number in range(10)}
    made = ns.apply(*(gated(name, delay) for name, delay in delays.items()))
    command = Command(
        "controller", "--kubeconfig", str(ns.plane.kubeconfig), "--health-port", "0", log=log
    )
    with command as controller:
        for round_ in range(3):
            ns.eventually(lambda done=2 * round_: len(ns.releases()) >= done)  # type: ignore[misc]
            controller.kill()
            controller.start()
        ns.eventually(lambda: len(ns.releases()) == len(delays))

    waited = {each["metadata"]["name"]: -created(each) for each in made}
    for name, received in ns.releases().items():
        waited[name] += received
    early = {name: waited[name] for name, delay in delays.items() if waited[name] < delay}
    assert early == {}
    assert [gates(each) for each in ns.all("pods")] == [[]] * len(delays)


def test_overdue_pods_are_released_in_order_at_startup(plain_ns: Namespace, log: Path) -> None:
    ns = plain_ns
    ns.apply(*(gated(f"pod-{10 - number:02}", 0.2 * number) for number in range(1, 11)))
    ns.apply(gated("later", 3600))
    ns.eventually(lambda: len(ns.all("pods")) == 11)
    command = Command(
        "controller", "--kubeconfig", str(ns.plane.kubeconfig), "--health-port", "0", log=log
    )
    with command:
        ns.eventually(lambda: len(ns.releases()) == 10)
        assert gates(ns.get("pod", "later")) == [GATE]
