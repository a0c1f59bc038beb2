"""Release files are reproducible and have one version."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from controlplane import build, node_images
from controlplane.modules import KREW
from release import archives, bootstrap, krew
from release.__main__ import notes
from release.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
EPOCH = 1_700_000_000


@pytest.mark.parametrize(
    ("file", "line"),
    [
        pytest.param("Containerfile", f"ARG VERSION={VERSION}\n", id="image"),
        pytest.param(
            "manifests/base/kustomization.yaml", f"    newTag: {VERSION}\n", id="manifests"
        ),
        pytest.param("manifests/base/webhook.yaml", f"/version: {VERSION}\n", id="webhook"),
        pytest.param("manifests/base/controller.yaml", f"/version: {VERSION}\n", id="controller"),
        pytest.param("charts/holdfast/Chart.yaml", f"\nappVersion: {VERSION}\n", id="chart"),
    ],
)
def test_all_files_have_the_release_version(file: str, line: str) -> None:
    assert line in (ROOT / file).read_text()


def test_archives_do_not_depend_on_the_order_of_their_files() -> None:
    files = {"b": b"2", "a": b"1"}
    reordered = dict(reversed(files.items()))
    for make in (lambda members: archives.tar(members, EPOCH), archives.zipped):
        assert make(files) == make(reordered)


def test_stamped_archive_does_not_depend_on_owner_and_time() -> None:
    def made(time: int, owner: str) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name in ("x/b", "x/a") if owner == "me" else ("x/a", "x/b"):
                entry = tarfile.TarInfo(name)
                entry.mtime, entry.uname, entry.size = time, owner, 1
                archive.addfile(entry, io.BytesIO(b"1"))
        return buffer.getvalue()

    assert archives.stamped(made(1, "me"), EPOCH) == archives.stamped(made(2, "you"), EPOCH)


def test_image_is_converted_to_an_oci_archive(tmp_path: Path) -> None:
    program, packed = tmp_path / "pause", tmp_path / "image.tar"
    program.write_bytes(b"program")
    packed.write_bytes(node_images.docker_archive(program))
    content, digest = archives.oci(packed, "example.com/holdfast:1", EPOCH)
    assert (content, digest) == archives.oci(packed, "example.com/holdfast:1", EPOCH)

    with tarfile.open(fileobj=io.BytesIO(content)) as files:
        (descriptor,) = json.loads(archives.member(files, "index.json"))["manifests"]
        manifest = archives.member(files, f"blobs/{digest.replace(':', '/')}")
        (layer,) = json.loads(manifest)["layers"]
        layer_content = archives.member(files, f"blobs/{layer['digest'].replace(':', '/')}")
    assert descriptor["digest"] == digest == f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    assert descriptor["annotations"]["io.containerd.image.name"] == "example.com/holdfast:1"
    assert layer["digest"] == f"sha256:{hashlib.sha256(layer_content).hexdigest()}"
    assert layer["size"] == len(layer_content)


def test_notes_are_the_changelog_section_of_the_version() -> None:
    text = (
        "# Changelog\n\n## [Unreleased]\n\nnext\n\n## [2.0.0] - 2026-01-01\n\nnew\n\n## [1.0.0]\n"
    )
    assert notes(text, "2.0.0") == "# Holdfast 2.0.0\n\nnew\n"
    assert notes(text, "3.0.0") == "# Holdfast 3.0.0\n\nnext\n"


def test_krew_accepts_the_manifest(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text(krew.manifest("0.1.0", "https://example.com/x.tar.gz", "a" * 64))
    validator = build.ensure(modules=KREW) / "validate-krew-manifest"
    command = [str(validator), "-manifest", str(file), "-skip-install"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    platforms = yaml.safe_load(file.read_text())["spec"]["platforms"]
    assert {platform["sha256"] for platform in platforms} == {"a" * 64}


def run_pyz(folder: Path, **files: str) -> subprocess.CompletedProcess[str]:
    """Run a holdfast.pyz with these files, and with a separate cache."""
    archive = folder / "holdfast.pyz"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("__main__.py", Path(bootstrap.__file__).read_text())
        packed.writestr("DIGEST", "1234")
        for name, text in files.items():
            packed.writestr(name, text)
    environment = {"XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, str(archive)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_pyz_unpacks_the_files_for_this_python(tmp_path: Path) -> None:
    native = bootstrap.native()
    command = "import compiled\ndef main():\n    print(compiled.NAME)\n"
    files = {
        "site/holdfast/webhook/__main__.py": command,
        f"{native}compiled.py": "NAME = 'ours'\n",
        "native/elsewhere/cp311/compiled.py": "NAME = 'foreign'\n",
    }
    for _ in range(2):
        assert run_pyz(tmp_path, **files).stdout == "ours\n"
    (folder,) = (tmp_path / "cache" / "holdfast" / "pyz").iterdir()
    assert (folder / "compiled.py").read_text() == "NAME = 'ours'\n"


def test_pyz_without_files_for_this_python_names_the_fix(tmp_path: Path) -> None:
    process = run_pyz(tmp_path)
    assert process.returncode == 1
    assert "install the wheel with pip, or use the image" in process.stderr
