"""The wheel owns one top-level name, so no other distribution can break it."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IGNORED = (
    *(".git", ".venv", "build", "dist", "__pycache__", "*.egg-info", ".*_cache", ".coverage*"),
    ".hypothesis",
)


def run(*command: str | Path, cwd: Path) -> str:
    process = subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the sources, so that a build leaves no files in the work tree."""
    copy = tmp_path_factory.mktemp("sources") / "copy"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*IGNORED))
    return copy


@pytest.fixture(scope="module")
def sdist(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("sdist")
    script = f"from setuptools import build_meta; build_meta.build_sdist({str(target)!r})"
    run("-c", script, cwd=sources)
    (archive,) = target.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the source distribution, as pip would."""
    target = tmp_path_factory.mktemp("wheel")
    pip = ("-m", "pip", "--disable-pip-version-check", "wheel", "--quiet")
    run(*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", target, sdist, cwd=target)
    (path,) = target.glob("*.whl")
    return path


def test_source_distribution_has_all_sources_and_symlinks(sources: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/")[2]: member for member in archive}
    links = {name: member.linkname for name, member in members.items() if member.issym()}
    assert links == {"holdfast/webhook": "../webhook", "holdfast/certs": "../certs"}
    files = (path.relative_to(sources) for path in sources.rglob("*") if path.is_file())
    expected = {str(file) for file in files if not str(file.parent).endswith(".egg-info")}
    assert expected - members.keys() == set()


def test_tests_run_from_the_source_distribution(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    pytest_options = ("-q", "-n", "0", "-p", "no:cacheprovider")
    run("-m", "pytest", *pytest_options, "tests/unit/model/calendar/test_cron.py", cwd=tree)


def test_wheel_has_every_source_module_below_one_top_level_name(wheel: Path) -> None:
    sources = {
        f"holdfast/{path.relative_to(ROOT)}"
        for folder in ("webhook", "certs")
        for path in (ROOT / folder).rglob("*.py")
    }
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
    assert sources - files == set()
    names = {file.partition("/")[0] for file in files}
    assert names == {"holdfast", next(name for name in names if name.endswith(".dist-info"))}


def test_foreign_webhook_and_certs_packages_do_not_interfere(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in ("webhook", "certs"):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("raise ImportError('foreign')\n")
        (tmp_path / f"{name}.py").write_text("raise ImportError('local')\n")
    script = (
        f"import sys; sys.path[:0] = ['', {str(site)!r}]\n"
        "from holdfast.webhook.cli import main, check_config\n"
        "from holdfast.certs import authority\n"
        "print(main.__file__, authority.__file__)\n"
    )
    printed = run("-I", "-c", script, cwd=tmp_path)
    assert [Path(file).is_relative_to(site) for file in printed.split()] == [True, True]
