"""What the builder decides without Go: names, versions, room, and what it says of failures."""

from __future__ import annotations

import errno
import io
import os
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane import cache, golang
from controlplane.build import ensure, is_complete
from controlplane.compiler import (
    build_failure,
    installed_name,
    is_download,
    is_package,
    require_room,
)
from controlplane.errors import ControlPlaneError, from_os_error
from controlplane.golang import Go, parse_version
from controlplane.modules import KUBERNETES, ModuleSet
from controlplane.progress import PlainReport, Step, console_report


def make_modules(folder: Path, **changes: object) -> ModuleSet:
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text("module tools\n")
    (folder / "go.sum").write_text("sums\n")
    modules = ModuleSet(
        name="tools",
        folder=folder,
        packages={"tool": "example.com/tool"},
        landmark="example.com",
        files={"stages/a.yaml": ("example.com", "a.yaml")},
    )
    return replace(modules, **changes)  # type: ignore[arg-type]


def fill(folder: Path, modules: ModuleSet) -> None:
    for name in modules.packages:
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / "bin" / name).write_text("#!/bin/sh\n")
        (folder / "bin" / name).chmod(0o755)
    for path in modules.beside():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("{}")


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and no Go and no pip index to fill it: whatever is built is an error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return cache.root()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"tags": ("notest",)}, id="tags"),
        pytest.param({"ldflags": ("-s",)}, id="ldflags"),
        pytest.param({"cgo": True}, id="cgo"),
        pytest.param({"packages": {"tool": "example.com/other"}}, id="package"),
        pytest.param({"packages": {}}, id="fewer packages"),
        pytest.param({"files": {}}, id="files"),
        pytest.param({"printed": {"objects.json": "tool"}}, id="printed files"),
        pytest.param({"sources": ("go.mod",)}, id="sources"),
        pytest.param({"name": "others"}, id="name"),
    ],
)
def test_key_changes_with_each_input(tmp_path: Path, changes: dict[str, object]) -> None:
    before = make_modules(tmp_path).key()
    assert make_modules(tmp_path).key() == before
    assert make_modules(tmp_path, **changes).key() != before


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go"])
def test_key_changes_with_the_pinned_modules_and_our_own_sources(tmp_path: Path, name: str) -> None:
    (tmp_path / "main.go").write_text("package main\n")
    modules = make_modules(tmp_path, sources=("main.go",))
    before = modules.key()
    (tmp_path / name).write_text("other\n")
    assert modules.key() != before


def test_kubernetes_is_built_with_its_version_and_from_pinned_modules_only() -> None:
    flags = " ".join(KUBERNETES.flags())
    assert "-mod=readonly" in flags
    assert "-trimpath" in flags
    assert "-tags=selinux,notest" in flags
    assert "-X k8s.io/component-base/version.gitVersion=v1.36.3" in flags
    assert "-X k8s.io/component-base/version.gitMinor=36" in flags
    assert not any("kubelet" in one or "kube-proxy" in one for one in KUBERNETES.packages)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("go version go1.26.8 linux/amd64", (1, 26), id="release"),
        pytest.param("go version go1.26 linux/amd64", (1, 26), id="first of a line"),
        pytest.param("go version go1.27rc1 darwin/arm64", (1, 27), id="candidate"),
        pytest.param("go version devel go1.28-abc Thu linux/amd64", (1, 28), id="devel"),
        pytest.param("gccgo 12", None, id="something else"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_go_version_is_read(text: str, expected: tuple[int, int] | None) -> None:
    assert parse_version(text) == expected


@pytest.mark.parametrize(
    ("said", "found"),
    [
        pytest.param("go version go1.26.0 linux/amd64", True, id="new enough"),
        pytest.param("go version go1.25.9 linux/amd64", False, id="too old"),
        pytest.param("snap has no go", False, id="a wrapper that fails"),
    ],
)
def test_go_on_the_path_counts_only_if_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, found: bool
) -> None:
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\necho '{said}'\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert golang.on_path() == (Go(go) if found else None)


def test_go_runs_in_an_environment_that_builds_for_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOS", "plan9")
    monkeypatch.setenv("GOROOT", "/elsewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.delenv("HOME")
    env = Go(Path("go"), ours=True).environment()
    assert env.keys().isdisjoint({"GOOS", "GOROOT", "XDG_CACHE_HOME"})
    assert (env["GOTOOLCHAIN"], env["CGO_ENABLED"], env["GOWORK"]) == ("local", "0", "off")
    assert Path(env["HOME"]).is_absolute()


@pytest.mark.parametrize(
    ("package", "name"),
    [
        pytest.param("k8s.io/kubernetes/cmd/kubectl", "kubectl", id="plain"),
        pytest.param("go.etcd.io/etcd/server/v3", "server", id="major version"),
    ],
)
def test_installed_name(package: str, name: str) -> None:
    assert installed_name(package) == name


def test_lines_that_go_writes_are_told_apart() -> None:
    assert is_download("go: downloading k8s.io/api v0.36.3")
    assert not is_download("go: finding")
    assert is_package("k8s.io/kubernetes/cmd/kube-apiserver")
    assert is_package("unicode/utf8")
    assert not is_package("# k8s.io/kubernetes/cmd/kubectl")
    assert not is_package("go: downloading k8s.io/api v0.36.3")


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        pytest.param(
            ["x", "write /var/cache/x.a: no space left on device"], "disk of /var/cache", id="disk"
        ),
        pytest.param(
            ["go: downloading a v1", 'Get "https://x": dial tcp: lookup x: no such host'],
            "check the network and GOPROXY",
            id="network",
        ),
        pytest.param(["# a/b", "x.go:1:2: undefined: y"], "undefined: y", id="compiler"),
        pytest.param([], "it said nothing", id="silence"),
    ],
)
def test_a_failed_build_is_explained_in_one_line(tail: list[str], expected: str) -> None:
    text = str(build_failure(tail, Path("/c/build.log"), Path("/t")))
    assert expected in text
    assert "\n" not in text
    assert expected.startswith("disk") or "/c/build.log" in text


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(errno.ENOSPC, "the disk of /c is full; free about 5 GB", id="ENOSPC"),
        pytest.param(errno.EDQUOT, "the disk of /c is full", id="EDQUOT"),
        pytest.param(errno.EACCES, "set XDG_CACHE_HOME to a folder that is", id="EACCES"),
        pytest.param(errno.EROFS, "make /c writable", id="EROFS"),
        pytest.param(errno.EIO, "check that path", id="others"),
    ],
)
def test_errors_of_the_system_name_the_cure(code: int, expected: str) -> None:
    text = str(from_os_error(OSError(code, os.strerror(code), "/c/file"), Path("/c")))
    assert expected in text


def test_room_is_looked_at_before_a_build(tmp_path: Path) -> None:
    require_room([tmp_path, tmp_path / "not" / "yet" / "there"], 1)
    with pytest.raises(ControlPlaneError, match=r"building needs 1000000000\.0 GB, and .* free"):
        require_room([tmp_path], 10**18)


def test_what_is_complete_is_given_without_go(empty_cache: Path, tmp_path: Path) -> None:
    modules = make_modules(tmp_path / "modules")
    fill(empty_cache / modules.key(), modules)
    steps: list[Step] = []
    assert ensure(steps.append, modules) == empty_cache / modules.key() / "bin"
    assert steps == []


@pytest.mark.parametrize("lost", ["bin/tool", "stages/a.yaml"])
def test_what_is_not_complete_is_not_believed(empty_cache: Path, tmp_path: Path, lost: str) -> None:
    modules = make_modules(tmp_path / "modules")
    folder = empty_cache / modules.key()
    fill(folder, modules)
    (folder / lost).unlink()
    assert not is_complete(folder, modules)
    with pytest.raises(
        ControlPlaneError, match=r"no Go 1\.26 or newer on the PATH, and pip cannot"
    ):
        ensure(lambda _: None, modules)


def test_an_unwritable_cache_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ControlPlaneError, match="file"):
        ensure(lambda _: None, make_modules(tmp_path / "modules"))


def test_assets_are_used_and_the_rest_comes_from_the_cache(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = {"etcd": "example.com/etcd", "kwok": "example.com/kwok"}
    modules = make_modules(tmp_path / "modules", packages=packages)
    assets = tmp_path / "assets"
    fill(assets, modules)
    fill(empty_cache / modules.only(["kwok"]).key(), modules.only(["kwok"]))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets / "bin"))
    found = ensure(lambda _: None, modules)
    assert (found / "etcd").resolve() == (assets / "bin" / "etcd").resolve()
    assert (found / "kwok").resolve().is_relative_to(empty_cache.resolve())
    assert (found.parent / "stages" / "a.yaml").is_file()
    assert ensure(lambda _: None, modules) == found


def test_missing_assets_are_named(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", "/not/there")
    with pytest.raises(ControlPlaneError, match="KUBEBUILDER_ASSETS names /not/there, which is no"):
        ensure(lambda _: None)


def test_publishing_is_all_or_nothing(tmp_path: Path) -> None:
    target = tmp_path / "built"
    (tmp_path / "built.tmp-killed").mkdir()

    def build(content: str, *, fails: bool) -> None:
        with cache.publishing(target) as folder:
            (folder / "file").write_text(content)
            if fails:
                raise ControlPlaneError("interrupted")

    with pytest.raises(ControlPlaneError, match="interrupted"):
        build("first", fails=True)
    assert list(tmp_path.iterdir()) == []
    build("second", fails=False)
    build("third", fails=False)
    assert (target / "file").read_text() == "third"
    assert list(tmp_path.iterdir()) == [target]


def test_publishing_explains_a_full_disk(tmp_path: Path) -> None:
    def build() -> None:
        with cache.publishing(tmp_path / "built"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ControlPlaneError, match="is full; free about 5 GB"):
        build()


def test_a_lock_that_is_held_is_told_of(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with (
        cache.locked(lock),
        pytest.raises(ControlPlaneError, match="somebody has it"),
        cache.lock_now(lock, "somebody has it"),
    ):
        pass
    with cache.lock_now(lock, "somebody has it"):
        pass


def test_plain_progress_is_a_line_a_step_and_one_every_ten_seconds() -> None:
    now = [0.0]
    out = io.StringIO()
    report = PlainReport(out, clock=lambda: now[0])
    for second in range(12):
        now[0] = float(second)
        report(Step("packages built", second, 30))
    report(Step("waiting"))
    assert out.getvalue().splitlines() == [
        "controlplane: packages built 0/30",
        "controlplane: packages built 10/30",
        "controlplane: waiting",
    ]


def test_progress_is_plain_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    with console_report(out) as report:
        assert out.getvalue() == ""
        report(Step("building"))
    assert out.getvalue() == "controlplane: building\n"
