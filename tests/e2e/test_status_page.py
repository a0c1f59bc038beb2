"""The status page of a running controller."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path

from demo.command import Command
from tests.e2e.world import World, pod


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_the_page_tells_of_held_and_of_released_pods(
    bare_world: Callable[[], World], log: Path
) -> None:
    world = bare_world()
    port = free_port()
    options = ("--health-port", "0", "--status-port", str(port))
    kubeconfig = str(world.plane.kubeconfig)
    gated = [{"name": "holdfast.dev/delay"}]

    def page() -> str:
        with urllib.request.urlopen(f"http://localhost:{port}/", timeout=10) as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            return str(answer.read().decode())

    with Command("controller", "--kubeconfig", kubeconfig, *options, log=log):
        world.apply(pod("waits", {"delay": "1h"}, schedulingGates=gated))
        world.apply(pod("goes", {"delay": "1"}, schedulingGates=gated))
        name = f"{world.namespace}/goes"
        seen = world.eventually(lambda: "released 0" in (text := page()) and name in text and text)
        assert isinstance(seen, str)
        held, _, released = seen.partition("The last 1 release</h2></caption>")
        assert f"{world.namespace}/waits" in held
        assert name in released
        assert "leads" in seen
