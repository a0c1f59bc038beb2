"""The workflows of .github are valid, and every action is pinned by commit."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from controlplane import build
from controlplane.modules import ACTIONLINT

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_workflows_pass_actionlint() -> None:
    command = [
        str(build.ensure(modules=ACTIONLINT) / "actionlint"),
        "-shellcheck=",
        *map(str, WORKFLOWS),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (\S+)", path.read_text())
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", one)] == []


def test_jobs_run_the_same_targets_as_ci() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"].values()
    targets = [name for job in jobs for name in job["strategy"]["matrix"]["target"]]
    commands = re.findall(r"(?m)^make (.+)$", (ROOT / ".ci" / "run").read_text())
    ci = [one for line in commands for one in line.split() if not one.startswith("-")]
    assert sorted(targets) == sorted([*ci, "coverage"])  # coverage takes too long for each change


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_make_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):.*##", (ROOT / "Makefile").read_text()))
    run = set(re.findall(r"run: .*make ([a-z-]+)|target: \[(.+)\]", path.read_text()))
    named = {name for pair in run for text in pair for name in re.findall(r"[a-z-]+", text)}
    assert named <= targets


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_only_jobs_without_third_party_packages_may_write_to_the_repository(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        if job.get("permissions", {}).get("contents") == "write":
            assert re.findall(r"\b(make|pip|\.venv)\b", str(job["steps"])) == []
        else:
            kept = [one.get("with", {}).get("persist-credentials", True) for one in job["steps"]]
            used = [one.get("uses", "").startswith("actions/checkout@") for one in job["steps"]]
            assert not any(a and b for a, b in zip(kept, used, strict=True))
