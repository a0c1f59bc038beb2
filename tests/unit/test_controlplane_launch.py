"""What the launcher decides without a cluster: flags, nodes, files, ports, the reaper's list."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from certs.authority import KeyPair
from controlplane import components, nodes, reaper
from controlplane.components import Plan, Ports, scheduler_configuration
from controlplane.errors import ControlPlaneError
from controlplane.kubeconfig import folder_name, kubeconfig, token_kubeconfig
from controlplane.launcher import ControlPlane
from controlplane.layout import Layout, write_private
from controlplane.pki import Files
from controlplane.ports import free_ports, require_free
from controlplane.process import child_environment, tail
from controlplane.settings import Settings


def make_plan(**changes: Any) -> Plan:
    files = Files(Path("/d/x.crt"), Path("/d/x.key"))
    names = (*components.NAMES, components.FRONT_PROXY, components.API_SERVER_CLIENT)
    plan: dict[str, Any] = {
        "bin": Path("/b"),
        "layout": Layout(Path("/d")),
        "ports": Ports(api=1, etcd=2, etcd_peer=3, controller_manager=4, scheduler=5, kwok=6),
        "ca": files,
        "etcd_ca": files,
        "front_ca": files,
        "token_key": Path("/d/sa.key"),
        "token_public": Path("/d/sa.pub"),
        "pairs": dict.fromkeys(names, files),
        "kubeconfigs": dict.fromkeys(names, Path("/d/kubeconfig")),
        "stages": (Path("/s/a.yaml"), Path("/s/b.yaml")),
    }
    return Plan(**{**plan, **changes})


@pytest.mark.parametrize("name", components.NAMES)
def test_components_listen_on_loopback_only(name: str) -> None:
    flags = " ".join(make_plan().command(name)[1:])
    assert "127.0.0.1" in flags
    assert "=0.0.0.0" not in flags


def test_authorization_is_on() -> None:
    assert "--authorization-mode=Node,RBAC" in make_plan().command(components.API_SERVER)


@pytest.mark.parametrize(("durable", "expected"), [(False, True), (True, False)])
def test_etcd_waits_for_the_disk_only_if_asked(durable: bool, expected: bool) -> None:
    command = make_plan(durable=durable).command(components.ETCD)
    assert ("--unsafe-no-fsync=true" in command) == expected


@pytest.mark.parametrize("audit", [False, True])
def test_audit_is_written_only_if_asked(audit: bool) -> None:
    command = make_plan(audit=audit).command(components.API_SERVER)
    assert ("--audit-log-path=/d/logs/audit.log" in command) == audit


def test_kwok_leaves_real_nodes_alone() -> None:
    command = make_plan().command(components.KWOK)
    assert "--manage-all-nodes=false" in command
    assert "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake" in command
    assert [flag for flag in command if flag.startswith("--config")] == [
        "--config=/s/a.yaml",
        "--config=/s/b.yaml",
    ]


def test_kwok_has_one_processor() -> None:
    assert make_plan().command(components.KWOK)[:3] == ["env", "GOMAXPROCS=1", "/b/kwok"]


def test_own_flags_come_last() -> None:
    plan = make_plan(extra_args={components.API_SERVER: ["--v=9"]})
    assert plan.command(components.API_SERVER)[-1] == "--v=9"
    assert "--v=9" not in plan.command(components.SCHEDULER)


def test_scheduler_has_every_profile() -> None:
    config = yaml.safe_load(
        scheduler_configuration(Path("/k"), ["default-scheduler", "spacecloud"])
    )
    assert [one["schedulerName"] for one in config["profiles"]] == [
        "default-scheduler",
        "spacecloud",
    ]
    assert config["clientConnection"]["kubeconfig"] == "/k"


def test_settings_refuse_what_cannot_be() -> None:
    with pytest.raises(ControlPlaneError, match="nodes is -1"):
        Settings(nodes=-1)
    with pytest.raises(ControlPlaneError, match="names 'kubelet', which is no component"):
        Settings(extra_args={"kubelet": []})


def test_a_control_plane_that_is_not_started_says_so() -> None:
    control_plane = ControlPlane()
    control_plane.stop()
    with pytest.raises(ControlPlaneError, match="not running; start it first"):
        _ = control_plane.kubeconfig
    with pytest.raises(ControlPlaneError, match=r"start with ControlPlane\(audit=True\)"):
        _ = control_plane.audit_log
    with pytest.raises(ControlPlaneError, match="not running; start it first"):
        control_plane.process("etcd")


def test_a_node_is_one_of_kwoks() -> None:
    node = nodes.node(2, {"zone": "a", "type": "other"}, {"cpu": "1"})
    assert node["metadata"]["name"] == "node-2"
    assert node["metadata"]["annotations"] == {"kwok.x-k8s.io/node": "fake"}
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "node-2"
    assert node["metadata"]["labels"]["zone"] == "a"
    assert node["metadata"]["labels"]["type"] == "other"
    assert node["status"]["allocatable"] == {"cpu": "1"}


@pytest.mark.parametrize(
    ("ready", "taints", "expected"),
    [
        pytest.param("True", [], True, id="ready"),
        pytest.param("False", [], False, id="not ready"),
        pytest.param("True", [{"key": "node.kubernetes.io/not-ready"}], False, id="tainted"),
        pytest.param("True", [{"key": "mine"}], True, id="tainted by the caller"),
    ],
)
def test_node_readiness(ready: str, taints: list[dict[str, str]], expected: bool) -> None:
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    assert nodes.is_ready({"status": status, "spec": {"taints": taints}}) is expected
    assert not nodes.is_ready({})


def test_an_account_shows_a_token() -> None:
    made = yaml.safe_load(token_kubeconfig("https://h:1", b"CA", "account", "secret"))
    assert made["users"] == [{"name": "account", "user": {"token": "secret"}}]
    assert made["clusters"][0]["cluster"]["server"] == "https://h:1"


def test_kubeconfig_carries_everything() -> None:
    made = yaml.safe_load(kubeconfig("https://h:1", b"CA", "jane", KeyPair(b"CERT", b"KEY")))
    assert made["clusters"][0]["cluster"] == {
        "server": "https://h:1",
        "certificate-authority-data": "Q0E=",
    }
    assert made["users"][0]["user"] == {
        "client-certificate-data": "Q0VSVA==",
        "client-key-data": "S0VZ",
    }
    assert made["current-context"] == made["contexts"][0]["name"]


def test_user_folders_are_safe_and_distinct() -> None:
    name = folder_name("system:serviceaccount:../../x", [])
    assert "/" not in name
    assert ":" not in name
    assert folder_name("a", ["g"]) != folder_name("a", [])


def test_private_files_are_their_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "key"
    write_private(path, b"one")
    path.chmod(0o644)
    write_private(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_free_ports_are_distinct_and_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        require_free(port)


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ControlPlaneError, match=f"port {port} on 127.0.0.1 is already in use"):
            require_free(port)


def test_components_do_not_read_the_users_settings() -> None:
    given = {"PATH": "/bin", "ETCD_NAME": "x", "KUBECONFIG": "/k", "KWOK_X": "1", "HOME": "/h"}
    assert child_environment(given) == {"PATH": "/bin", "HOME": "/h"}


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert "cannot be read" in tail(log)
    log.write_text("")
    assert tail(log) == "  (empty)"
    log.write_text("".join(f"line {number}\n" for number in range(2000)))
    assert tail(log).splitlines()[0] == "  line 1992"
    assert tail(log).splitlines()[-1] == "  line 1999"


def test_the_reaper_reads_its_list_and_skips_a_line_cut_short() -> None:
    lines = ["process 12 345\n", "remove /tmp/a b\n", "process 13 99\n", "process 14 1"]
    expected = reaper.Leftovers({12: "345", 13: "99"}, [Path("/tmp/a b")])
    assert reaper.read(lines) == expected


def test_the_reaper_ends_only_the_process_that_it_was_told_of() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started = reaper.start_time(child.pid)
        assert started is not None
        reaper.end({child.pid: f"{started}0"})
        assert child.poll() is None
        reaper.end({child.pid: started})
        assert child.wait() < 0
        assert reaper.start_time(child.pid) is None


def test_the_reaper_tells_this_process_apart() -> None:
    assert reaper.start_time(os.getpid()) == reaper.start_time(os.getpid())
