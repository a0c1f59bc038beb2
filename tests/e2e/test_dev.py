import socket
import subprocess
import sys
from pathlib import Path

import pytest

from demo.command import Command, CommandError
from tests.e2e.namespace import Namespace, gates, listens, pod

CONFIGURATIONS = "mutatingwebhookconfigurations,validatingwebhookconfigurations"


def configurations(ns: Namespace) -> list[str]:
    return [configuration["metadata"]["name"] for configuration in ns.all(CONFIGURATIONS)]


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.webhook", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
    )


def test_dev_registers_unregisters_and_recovers_from_being_killed(
    plain_ns: Namespace, log: Path
) -> None:
    ns = plain_ns
    with Command("dev", "--kubeconfig", str(ns.plane.kubeconfig), log=log) as dev:
        assert configurations(ns) == ["holdfast-dev", "holdfast-dev"]
        assert dev.stop() == 0
        assert configurations(ns) == []

        dev.start()
        address = dev.address
        dev.kill()
        ns.eventually(lambda: not listens(address))  # the server ends too
        assert "failed calling webhook" in ns.refusal(pod("delayed", {"delay": "1"}))
        ns.apply(pod("plain"))

        dev.start()
        (stored,) = ns.apply(pod("delayed", {"delay": "1"}))
        assert gates(stored) == ["holdfast.dev/delay"]
        ns.eventually(lambda: "delayed" in ns.releases())


def test_dev_imports_nothing_from_the_current_folder(ns: Namespace, tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('imported')")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = [str(Path(sys.executable).with_name("holdfast")), "dev", "--port", port]
        command += ["--kubeconfig", str(ns.plane.kubeconfig)]
        result = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "imported" not in result.stderr


def test_port_in_use_is_reported_in_one_line(ns: Namespace, log: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        command = Command("dev", "--kubeconfig", str(ns.plane.kubeconfig), "--port", port, log=log)
        with pytest.raises(CommandError), command:
            pass
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["dev", "--kubeconfig", "nowhere"],
            "Error: no usable kubeconfig nowhere (no such file); give one",
        ),
        (["check-config", "nowhere"], "Error: nowhere: cannot be read (No such file"),
    ],
    ids=["kubeconfig", "configuration"],
)
def test_missing_file_is_reported_in_one_line(arguments: list[str], error: str) -> None:
    result = holdfast(*arguments)
    assert result.returncode == 1
    assert result.stderr.startswith(error)
    assert result.stderr.count("\n") == 1


def test_unreachable_cluster_is_reported_in_one_line(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: a,"
        " clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}],"
        " users: [{name: a, user: {token: a}}],"
        " contexts: [{name: a, context: {cluster: a, user: a}}]}"
    )
    result = holdfast("dev", "--kubeconfig", str(kubeconfig))
    assert result.returncode == 1
    assert result.stderr.startswith("Error: http://127.0.0.1:1 does not answer: ")
    assert result.stderr.count("\n") == 1
