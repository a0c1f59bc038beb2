"""The launcher without a cluster: flags, files, ports and the reaper's list."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane import components, reaper
from controlplane.components import Plan, Ports
from controlplane.errors import ControlPlaneError
from controlplane.kubeconfig import folder_name
from controlplane.layout import Layout, write_private
from controlplane.pki import Files
from controlplane.ports import require_free
from controlplane.process import child_environment
from controlplane.settings import Settings


@pytest.mark.parametrize("name", components.NAMES)
def test_components_listen_on_loopback_only(name: str) -> None:
    files = Files(Path("/d/x.crt"), Path("/d/x.key"))
    names = (*components.NAMES, components.FRONT_PROXY, components.API_SERVER_CLIENT)
    plan = Plan(
        bin=Path("/b"),
        layout=Layout(Path("/d")),
        ports=Ports(api=1, etcd=2, etcd_peer=3, controller_manager=4, scheduler=5, kwok=6),
        ca=files,
        etcd_ca=files,
        front_ca=files,
        token_key=Path("/d/sa.key"),
        token_public=Path("/d/sa.pub"),
        pairs=dict.fromkeys(names, files),
        kubeconfigs=dict.fromkeys(names, Path("/d/kubeconfig")),
        stages=(Path("/s/a.yaml"), Path("/s/b.yaml")),
    )
    flags = " ".join(plan.command(name)[1:])
    assert "127.0.0.1" in flags
    assert "=0.0.0.0" not in flags


def test_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ControlPlaneError) as caught:
            require_free(port)

    assert str(caught.value) == (
        f"port {port} on 127.0.0.1 is already in use; choose another port, leave it out to get a "
        "free one, or stop the process that uses it"
    )


def test_negative_number_of_nodes_is_rejected() -> None:
    with pytest.raises(ControlPlaneError, match=r"^nodes is -1; it must be 0 or more$"):
        Settings(nodes=-1)


def test_user_folders_are_safe_and_distinct() -> None:
    name = folder_name("system:serviceaccount:../../x", [])
    assert "/" not in name
    assert ":" not in name
    assert folder_name("a", ["g"]) != folder_name("a", [])


def test_private_files_are_accessible_only_to_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "key"
    write_private(path, b"one")
    path.chmod(0o644)
    write_private(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_components_do_not_inherit_the_users_settings() -> None:
    environment = {
        "PATH": "/bin",
        "ETCD_NAME": "x",
        "KUBECONFIG": "/k",
        "KWOK_X": "1",
        "HOME": "/h",
    }
    assert child_environment(environment) == {"PATH": "/bin", "HOME": "/h"}


def test_reaper_reads_whole_lines() -> None:
    lines = ["process 12 345\n", "remove /tmp/a b\n", "cgroup a\n", "write /proc/x 0\n"]
    expected = reaper.Leftovers({12: "345"}, [Path("/tmp/a b")], ["a"], {Path("/proc/x"): "0"})
    assert reaper.read([*lines, "process 14 1"]) == expected


def test_reaper_ends_only_the_listed_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        start_time = reaper.start_time(child.pid)
        assert start_time is not None
        reaper.end({child.pid: f"{start_time}0"})
        assert child.poll() is None
        reaper.end({child.pid: start_time})
        assert child.wait() < 0
        assert reaper.start_time(child.pid) is None
