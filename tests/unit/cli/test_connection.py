"""Command flags that apply to every request."""

import threading
from collections.abc import Callable
from contextlib import closing

import pytest
from kubernetes.client import ApiClient, Configuration

from holdfast.webhook.cli.connection import CommandCluster, Conduct
from holdfast.webhook.kube.kubeconfig import Access
from tests.support.byte_server import OK, Server


@pytest.mark.parametrize(
    ("conduct", "is_sent"),
    [
        pytest.param(Conduct(0.0), True, id="without flags"),
        pytest.param(Conduct(1.0), False, id="--request-timeout"),
        pytest.param(Conduct(verbosity=6), False, id="-v"),
        pytest.param(Conduct(dry_run="server"), False, id="--dry-run"),
    ],
)
def test_request_flags_disable_asynchronous_patches(
    serve: Callable[..., Server], conduct: Conduct, is_sent: bool
) -> None:
    server, outcomes, stop = serve([OK, OK]), list[object](), threading.Event()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{server.port}"
    stop.set()
    with closing(CommandCluster(ApiClient(configuration), Access(lambda: None))) as cluster:
        cluster.request("GET", "/version")
        cluster.conduct = conduct
        assert cluster.begin("/x", b"[]", timeout=5.0, on_end=outcomes.append) == is_sent
        cluster.receive(stop)

    assert outcomes == [None] * is_sent
    assert len(server.requests) == 1 + is_sent
