"""Where a real node may run, and the cleanup after it."""

from pathlib import Path

from controlplane import node_sandbox, reaper
from controlplane.guard import Guard


def test_the_reaper_reads_control_groups_and_settings() -> None:
    found = reaper.read(["cgroup a\n", "write /proc/sys/kernel/panic 0\n", "cgroup cut sho"])
    assert found == reaper.Leftovers(cgroups=["a"], settings={Path("/proc/sys/kernel/panic"): "0"})


def test_cgroup_is_removed_from_every_hierarchy(tmp_path: Path) -> None:
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


def test_setting_is_restored(tmp_path: Path) -> None:
    setting = tmp_path / "panic"
    setting.write_text("1\n")
    guard = Guard()
    guard.restores(setting)
    setting.write_text("10\n")
    guard.close()
    assert setting.read_text() == "1"
