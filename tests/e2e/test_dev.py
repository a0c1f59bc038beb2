import json
import socket
import subprocess
import sys
from pathlib import Path

from demo.command import Command
from tests.e2e.namespace import Namespace, gates, listens, pod
from tests.support import served

CONFIGURATIONS = "mutatingwebhookconfigurations,validatingwebhookconfigurations"


def configurations(ns: Namespace) -> list[str]:
    return [configuration["metadata"]["name"] for configuration in ns.all(CONFIGURATIONS)]


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


def test_port_in_use_is_reported_without_imports_from_the_current_folder(
    ns: Namespace, tmp_path: Path
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('imported')")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = [str(Path(sys.executable).with_name("holdfast")), "dev", "--port", port]
        command += ["--kubeconfig", str(ns.plane.kubeconfig)]
        result = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in result.stderr
    assert "imported" not in result.stderr
    assert "Traceback" not in result.stderr


def test_unreachable_cluster_is_reported_in_one_line(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(served.kubeconfig("http://127.0.0.1:1")))
    command = [sys.executable, "-m", "holdfast.webhook", "dev", "--kubeconfig", str(kubeconfig)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: http://127.0.0.1:1 does not answer: ")
    assert result.stderr.count("\n") == 1
