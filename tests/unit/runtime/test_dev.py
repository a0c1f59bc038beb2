"""Cleanup of folders that `holdfast dev` left behind in a shared temporary folder."""

import os
import tempfile
from pathlib import Path

import pytest

from holdfast.webhook.runtime import dev


def test_cleanup_keeps_folders_of_others_and_with_odd_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead_pid = 2**22 + 1  # above the highest Linux pid
    names = [f"{dead_pid}-a", f"{dead_pid}-b", f"{'9' * 20}-x", f"{os.getpid()}-x", "word-x"]
    for name in names:
        (tmp_path / f"holdfast-dev-{name}").mkdir()
    kept = {f"holdfast-dev-{name}" for name in names[2:]}
    if os.getuid() == 0:
        os.chown(tmp_path / f"holdfast-dev-{names[1]}", 1, 1)
        kept.add(f"holdfast-dev-{names[1]}")
    dev._remove_left_behind()
    assert {folder.name for folder in tmp_path.iterdir()} == kept
