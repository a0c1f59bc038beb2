"""Control groups and kernel settings of a real node, and the cleanup after it."""

from pathlib import Path

import pytest

from controlplane import node_sandbox, reaper
from controlplane.guard import Guard


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


@pytest.mark.parametrize(
    ("enabled", "written", "restored"),
    [
        pytest.param("cpu io memory pids\n", "+cpuset +hugetlb", "-cpuset -hugetlb", id="missing"),
        pytest.param(*["cpuset cpu memory hugetlb pids\n"] * 3, id="all enabled"),
    ],
)
def test_missing_controllers_are_enabled_for_the_kubelet(
    tmp_path: Path, enabled: str, written: str, restored: str
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma misc\n")
    subtree_control = tmp_path / "cgroup.subtree_control"
    subtree_control.write_text(enabled)
    guard = Guard()
    node_sandbox.enable_controllers(tmp_path, guard)
    assert subtree_control.read_text() == written
    guard.close()
    assert subtree_control.read_text() == restored


def test_setting_is_restored(tmp_path: Path) -> None:
    setting = tmp_path / "panic"
    setting.write_text("1\n")
    guard = Guard()
    guard.restores(setting)
    setting.write_text("10\n")
    guard.close()
    assert setting.read_text() == "1"
