"""What a real node is configured by, where it may run, and how what it leaves is cleared up."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tarfile
import tomllib
from io import BytesIO
from pathlib import Path, PosixPath

import pytest
import yaml

from controlplane import node_images, node_plan, node_sandbox, reaper
from controlplane.errors import ControlPlaneError
from controlplane.guard import Guard
from controlplane.node_plan import NodePlan, Programs

PLAN = NodePlan(
    programs=Programs(node=Path("/n"), containerd=Path("/c"), runc=Path("/r")),
    directory=Path("/d"),
    cgroup="holdfast-1",
    ca=Path("/ca.crt"),
    kubeconfigs={name: Path(f"/{name}.kubeconfig") for name in node_plan.NAMES},
)


def content(name: str) -> str:
    return PLAN.files()[Path("/d") / name]


@pytest.mark.parametrize("name", node_plan.NAMES)
def test_every_file_that_a_command_names_is_written(name: str) -> None:
    files = [flag.partition("=")[2] for flag in PLAN.command(name) if flag.startswith("--config=")]
    assert [Path(file) for file in files if Path(file) in PLAN.files()] == [Path(files[0])]


def test_containerd_uses_what_was_built_for_it() -> None:
    runtime = tomllib.loads(content("containerd.toml"))["plugins"]["io.containerd.cri.v1.runtime"]
    runc = runtime["containerd"]["runtimes"]["runc"]
    assert runc["options"]["BinaryName"] == "/r/runc"
    assert runc["runtime_path"] == "/c/containerd-shim-runc-v2"
    assert runtime["cni"] == {"bin_dirs": ["/c"], "conf_dir": "/d/cni"}


def test_the_kubelet_keeps_its_pods_in_the_sandboxes_control_group() -> None:
    assert yaml.safe_load(content("kubelet.yaml"))["cgroupRoot"] == "/holdfast-1"


def test_pods_reach_the_world_by_the_bridge() -> None:
    (bridge,) = json.loads(content("cni/10-bridge.conflist"))["plugins"]
    ((pods,),) = bridge["ipam"]["ranges"]
    assert pods == {"subnet": node_plan.POD_RANGE, "gateway": node_plan.GATEWAY}


def test_the_pause_image_is_one_file(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"program")
    with tarfile.open(fileobj=BytesIO(node_images.docker_archive(program))) as archive:
        (manifest,) = json.loads(archive.extractfile("manifest.json").read())  # type: ignore[union-attr]
        layer = archive.extractfile(manifest["Layers"][0])
        assert layer is not None
        with tarfile.open(fileobj=layer) as files:
            (only,) = files.getmembers()
    assert manifest["RepoTags"] == [node_plan.PAUSE_IMAGE]
    assert (only.name, only.mode) == ("pause", 0o755)


def test_a_node_asks_for_its_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_SANDBOX", raising=False)
    with pytest.raises(ControlPlaneError, match="make test-node"):
        node_sandbox.inside()


@pytest.mark.parametrize(
    ("platform", "user", "said"),
    [
        pytest.param("darwin", 0, "needs Linux, and this is darwin", id="another-system"),
        pytest.param("linux", 1000, "needs root", id="another-user"),
    ],
)
def test_a_machine_without_sandboxes_is_told_what_it_lacks(
    platform: str, user: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(ControlPlaneError, match=said):
        node_sandbox.require()


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ControlPlaneError, match=r"apt install conntrack .*iptables"):
        node_sandbox.require()


def test_the_reaper_reads_control_groups_and_settings() -> None:
    found = reaper.read(["cgroup a\n", "write /proc/sys/kernel/panic 0\n", "cgroup cut sho"])
    assert found == reaper.Leftovers(cgroups=["a"], settings={Path("/proc/sys/kernel/panic"): "0"})


def test_a_control_group_goes_from_every_hierarchy_with_all_below_it(tmp_path: Path) -> None:
    for hierarchy in ("cpu", "memory"):
        (tmp_path / hierarchy / "mine" / "pods" / "pod1").mkdir(parents=True)
        (tmp_path / hierarchy / "others").mkdir()
    reaper.remove_cgroup("mine", tmp_path)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "cpu",
        "cpu/others",
        "memory",
        "memory/others",
    ]


def version_2(root: Path, enabled: str) -> Path:
    """Make a root of control groups as Linux shows it, and give where controllers are enabled."""
    (root / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma misc\n")
    enabling = root / "cgroup.subtree_control"
    enabling.write_text(enabled)
    return enabling


def test_the_node_has_every_controller_that_its_kubelet_asks_for(tmp_path: Path) -> None:
    enabling = version_2(tmp_path, "cpu io memory pids\n")
    guard = Guard()
    node_sandbox.enable_controllers(tmp_path, guard)
    assert enabling.read_text() == "+cpuset +hugetlb"
    guard.close()
    assert enabling.read_text() == "-cpuset -hugetlb"


def test_controllers_that_are_enabled_are_left_alone(tmp_path: Path) -> None:
    enabling = version_2(tmp_path, "cpuset cpu memory hugetlb pids\n")
    guard = Guard()
    node_sandbox.enable_controllers(tmp_path, guard)
    guard.close()
    assert enabling.read_text() == "cpuset cpu memory hugetlb pids\n"


class Busy(PosixPath):
    """Files that take nothing, as those of a root of control groups with processes in it."""

    def write_text(self, *_: object, **__: object) -> int:
        raise OSError(errno.EBUSY, "busy")


def test_a_container_without_control_groups_of_its_own_is_told_so(tmp_path: Path) -> None:
    version_2(tmp_path, "")
    guard = Guard()
    with pytest.raises(ControlPlaneError, match=r"takes none \(.*busy\).* not in a container"):
        node_sandbox.enable_controllers(Busy(tmp_path), guard)
    guard.close()


def test_a_setting_says_again_what_it_said(tmp_path: Path) -> None:
    setting = tmp_path / "panic"
    setting.write_text("1\n")
    guard = Guard()
    guard.restores(setting)
    setting.write_text("10\n")
    guard.close()
    assert setting.read_text() == "1"


def test_the_script_says_what_it_needs_elsewhere(tmp_path: Path) -> None:
    uname = tmp_path / "uname"
    uname.write_text("#!/bin/sh\necho Darwin\n")
    uname.chmod(0o755)
    script = Path(__file__).resolve().parents[2] / "scripts" / "test-node"
    done = subprocess.run(
        [script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        1,
        "holdfast: a real node needs Linux; run this on a Linux machine or VM\n",
    )
