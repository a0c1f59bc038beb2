"""Control groups and kernel settings of a real node, and the cleanup after it."""

from pathlib import Path

from controlplane import node_sandbox, reaper
from controlplane.guard import Guard


def test_reaper_reads_control_groups_and_settings() -> None:
    leftovers = reaper.read(["cgroup a\n", "write /proc/sys/kernel/panic 0\n", "cgroup cut sho"])
    assert leftovers == reaper.Leftovers(
        cgroups=["a"], settings={Path("/proc/sys/kernel/panic"): "0"}
    )


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


def make_cgroup_root(root: Path, enabled: str) -> Path:
    """Make a cgroup v2 root, and return the file that enables controllers."""
    (root / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma misc\n")
    subtree_control = root / "cgroup.subtree_control"
    subtree_control.write_text(enabled)
    return subtree_control


def test_missing_controllers_are_enabled_for_the_kubelet(tmp_path: Path) -> None:
    subtree_control = make_cgroup_root(tmp_path, "cpu io memory pids\n")
    guard = Guard()
    node_sandbox.enable_controllers(tmp_path, guard)
    assert subtree_control.read_text() == "+cpuset +hugetlb"
    guard.close()
    assert subtree_control.read_text() == "-cpuset -hugetlb"


def test_enabled_controllers_are_left_unchanged(tmp_path: Path) -> None:
    subtree_control = make_cgroup_root(tmp_path, "cpuset cpu memory hugetlb pids\n")
    guard = Guard()
    node_sandbox.enable_controllers(tmp_path, guard)
    guard.close()
    assert subtree_control.read_text() == "cpuset cpu memory hugetlb pids\n"


def test_setting_is_restored(tmp_path: Path) -> None:
    setting = tmp_path / "panic"
    setting.write_text("1\n")
    guard = Guard()
    guard.restores(setting)
    setting.write_text("10\n")
    guard.close()
    assert setting.read_text() == "1"
