"""Folders that `holdfast dev` has left behind, among what other users make there."""

import os
import tempfile
from pathlib import Path

import pytest

from holdfast.webhook.runtime import dev


def test_folders_of_other_users_or_with_odd_names_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = 2**22 + 1  # more than any pid of Linux
    names = [f"{ended}-a", f"{ended}-b", f"{'9' * 20}-x", f"{os.getpid()}-x", "word-x"]
    for name in names:
        (tmp_path / f"holdfast-dev-{name}").mkdir()
    stays = {f"holdfast-dev-{name}" for name in names[2:]}
    if os.getuid() == 0:
        os.chown(tmp_path / f"holdfast-dev-{names[1]}", 1, 1)
        stays.add(f"holdfast-dev-{names[1]}")
    dev._remove_left_behind()
    assert {one.name for one in tmp_path.iterdir()} == stays
