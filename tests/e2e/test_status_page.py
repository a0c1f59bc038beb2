"""The status page of a running controller."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

from demo.command import Command
from tests.e2e.namespace import Namespace, pod


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_status_page_lists_held_and_released_pods(plain_ns: Namespace, log: Path) -> None:
    ns = plain_ns
    port = free_port()
    options = ("--health-port", "0", "--status-port", str(port))
    kubeconfig = str(ns.plane.kubeconfig)
    gated = [{"name": "holdfast.dev/delay"}]

    def page() -> str:
        with urllib.request.urlopen(f"http://localhost:{port}/", timeout=10) as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            return str(answer.read().decode())

    with Command("controller", "--kubeconfig", kubeconfig, *options, log=log):
        ns.apply(pod("waits", {"delay": "1h"}, schedulingGates=gated))
        ns.apply(pod("goes", {"delay": "1"}, schedulingGates=gated))
        name = f"{ns.namespace}/goes"
        seen = ns.eventually(lambda: "released 0" in (text := page()) and name in text and text)
        assert isinstance(seen, str)
        held, _, released = seen.partition("Last 1 release</h2></caption>")
        assert f"{ns.namespace}/waits" in held
        assert name in released
        assert "leader" in seen
