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
    program = str(build.ensure(modules=ACTIONLINT) / "actionlint")
    command = [program, "-shellcheck=", *map(str, WORKFLOWS)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (0, "")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    actions = re.findall(r"uses: (\S+)", path.read_text())
    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)] == []


def test_jobs_run_the_same_targets_as_ci() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"].values()
    targets = [name for job in jobs for name in job["strategy"]["matrix"]["target"]]
    commands = re.findall(r"(?m)^make (.+)$", (ROOT / ".ci" / "run").read_text())
    ci = [word for line in commands for word in line.split() if not word.startswith("-")]
    assert sorted(targets) == sorted([*ci, "coverage"])  # coverage takes too long for each change


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_make_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):.*##", (ROOT / "Makefile").read_text()))
    matches = set(re.findall(r"\bmake ([a-z-]+)|target: \[(.+)\]", path.read_text()))
    named_targets = {
        name for groups in matches for text in groups for name in re.findall(r"[a-z-]+", text)
    }
    assert named_targets
    assert named_targets <= targets


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_only_jobs_without_third_party_packages_may_write_to_the_repository(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        if job.get("permissions", {}).get("contents") == "write":
            assert re.findall(r"\b(make|pip|\.venv)\b", str(job["steps"])) == []
        else:
            for step in job["steps"]:
                if step.get("uses", "").startswith("actions/checkout@"):
                    assert step["with"]["persist-credentials"] is False
