"""The control plane of the tests: startup, crashes and cleanup."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from controlplane import ControlPlane, ControlPlaneError, components
from controlplane.guard import Guard
from controlplane.launcher import KEPT_LOGS
from controlplane.process import Process
from controlplane.versions import NEWEST, VARIABLE

pytestmark = pytest.mark.xdist_group("controlplane")

PROJECT = Path(__file__).resolve().parents[2]
PARENT = """
import sys, time
from controlplane import ControlPlane, components
with ControlPlane(nodes=1) as cp:
    print(cp.directory, *(cp.process(name).pid for name in components.NAMES), flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    with ControlPlane(nodes=3, audit=True) as control_plane:
        yield control_plane


def eventually(holds: Callable[[], bool], timeout: float = 30.0) -> bool:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.05)
    return False


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    # The process may end between the two calls.
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_requested_kubernetes_version_is_run(cluster: ControlPlane) -> None:
    version = json.loads(cluster.kubectl("get", "--raw", "/version"))
    assert version["gitVersion"] == f"v{os.environ.get(VARIABLE, NEWEST)}"


def test_requests_are_audited_without_their_content(cluster: ControlPlane) -> None:
    cluster.kubectl("create", "secret", "generic", "quiet", "--from-literal=word=unheard")

    def is_audited() -> bool:
        events = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]
        return any(
            event["objectRef"].get("name") == "quiet" for event in events if "objectRef" in event
        )

    assert eventually(is_audited)
    assert "unheard" not in cluster.audit_log.read_text()


def test_key_files_are_readable_by_the_owner_only(cluster: ControlPlane) -> None:
    assert cluster.directory.stat().st_mode & 0o777 == 0o700
    secrets = [*cluster.directory.rglob("*.key"), *cluster.directory.rglob("kubeconfig")]
    assert len(secrets) > 5
    assert {path.stat().st_mode & 0o777 for path in secrets} == {0o600}


@pytest.mark.parametrize("name", components.NAMES)
def test_crashed_component_can_be_restarted(cluster: ControlPlane, name: str) -> None:
    process = cluster.process(name)
    before = process.pid
    process.kill()
    assert alive([before]) == []
    process.restart()
    assert alive([process.pid]) == [process.pid] != [before]
    cluster.kubectl("run", f"after-{name}", "--image=x")
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/after-{name}", "--timeout=30s")


def test_all_nodes_run_pods_after_kwok_restarts(cluster: ControlPlane) -> None:
    cluster.process(components.KWOK).kill()
    cluster.process(components.KWOK).restart()
    for node in ("node-1", "node-2", "node-3"):
        overrides = json.dumps({"spec": {"nodeName": node}})
        cluster.kubectl("run", f"on-{node}", "--image=x", "--overrides", overrides)
        cluster.kubectl("wait", "--for=condition=Ready", f"pod/on-{node}", "--timeout=20s")


def test_exception_stops_the_cluster_and_keeps_the_logs() -> None:
    pids: list[int] = []
    directories: list[Path] = []

    def fail() -> None:
        with ControlPlane(nodes=0) as control_plane:
            pids.extend(control_plane.process(name).pid for name in components.NAMES)
            directories.append(control_plane.directory)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine") as caught:
        fail()
    log_folder = KEPT_LOGS / directories[0].name
    assert caught.value.__notes__ == [f"the control plane's logs: {log_folder}"]
    assert (log_folder / "kube-apiserver.log").stat().st_size > 0
    shutil.rmtree(log_folder)
    assert alive(pids) == []
    assert not directories[0].exists()


def test_component_that_dies_at_startup_is_reported() -> None:
    control_plane = ControlPlane(extra_args={components.SCHEDULER: ["--no-such-flag"]})
    with pytest.raises(ControlPlaneError) as caught:
        control_plane.start()
    text = str(caught.value)
    assert text.startswith("kube-scheduler ended by itself with exit code 1; last lines of ")
    assert "unknown flag: --no-such-flag" in text
    log = Path(text.split("last lines of ")[1].split(":\n", maxsplit=1)[0])
    assert log.is_relative_to(KEPT_LOGS)
    assert log.is_file()
    shutil.rmtree(log.parent)


def test_directory_preserves_cluster_state_and_is_exclusive(tmp_path: Path) -> None:
    with ControlPlane(nodes=0, directory=tmp_path, durable=True) as first:
        first.kubectl("create", "namespace", "kept")
        token = first.kubectl("create", "token", "default").strip()
        with pytest.raises(ControlPlaneError, match="another control plane runs in"):
            ControlPlane(directory=tmp_path).start()
    with ControlPlane(nodes=0, directory=tmp_path) as second:
        assert second.kubectl("get", "namespace", "kept", "-o", "name") == "namespace/kept\n"
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        flags = ["create", "-f", "-", "-o", "jsonpath={.status.authenticated}"]
        assert second.kubectl(*flags, stdin=json.dumps(review)) == "true"


def run_command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_killing_the_parent_leaves_nothing_behind() -> None:
    with run_command("-c", PARENT) as parent:
        assert parent.stdout is not None
        directory, *words = parent.stdout.readline().split()
        pids = [int(pid) for pid in words]
        assert len(alive(pids)) == len(components.NAMES)
        parent.kill()
    assert eventually(lambda: not alive(pids) and not Path(directory).exists())


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, id="Ctrl-C"), pytest.param(signal.SIGTERM, id="SIGTERM")]
)
def test_up_command_shuts_down_cleanly_on_signal(number: signal.Signals) -> None:
    with run_command("-m", "controlplane", "up", "--nodes", "1") as command:
        assert command.stdout is not None
        kubeconfig = Path(command.stdout.readline().removeprefix("export KUBECONFIG=").strip())
        assert kubeconfig.is_file()
        assert command.stdout.readline().startswith("export PATH=/")
        children = psutil.Process(command.pid).children()
        assert len(children) == len(components.NAMES) + 1
        os.killpg(command.pid, number)
        _, stderr = command.communicate()
    assert command.returncode == 0, stderr
    assert not kubeconfig.parent.exists()
    assert alive([child.pid for child in children]) == []


def test_inotify_limit_error_suggests_the_fix(tmp_path: Path) -> None:
    script = "echo 'panic: Failed to create an inotify watcher'; seq 20; exit 2"
    with closing(Guard()) as guard:
        process = Process(
            "virt-api",
            ["/bin/sh", "-c", script],
            log=tmp_path / "virt-api.log",
            guard=guard,
            is_ready=lambda: False,
        )
        process.start()
        with pytest.raises(ControlPlaneError) as caught:
            process.wait_ready()
    first_line, *_, last_line = str(caught.value).splitlines()
    assert first_line.startswith("virt-api ended by itself with exit code 2; last lines of ")
    assert last_line.endswith("allow more: sudo sysctl fs.inotify.max_user_instances=1024")


def test_port_in_use_is_reported_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with run_command("-m", "controlplane", "up", "--port", str(port)) as command:
            out, stderr = command.communicate()
    assert command.returncode == 1
    assert out == ""
    assert stderr == (
        f"controlplane: port {port} on 127.0.0.1 is already in use; choose another port, leave "
        "it out to get a free one, or stop the process that uses it\n"
    )
