"""Build Holdfast's image from its Containerfile, on a base image of Debian packages.

The base replaces the one that the Containerfile names, so no registry is needed. Wheels are
downloaded first, verified by hash, so the build itself needs no network.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from controlplane import cache
from controlplane.errors import ControlPlaneError
from controlplane.progress import Report, Step

PROJECT = Path(__file__).resolve().parent.parent
NAME = "docker.io/library/holdfast"
_SUITE = "bookworm"
_PYTHON = "3.11"  # the version in _SUITE
_PACKAGES = "python3,python3-pip"
_BASE = "holdfast.test/base"
_RECIPE = ("Containerfile", ".containerignore", "pyproject.toml")
_SOURCES = (*_RECIPE, "README.md", "LICENSE")
_PINS = ("requirements.txt", "requirements-build.txt")
_CODE = ("webhook", "certs", "holdfast")
_TOOLS = {"buildah": "buildah", "debootstrap": "debootstrap"}


def build(version: str, report: Report) -> Path:
    """Return the docker archive of the image, tagged with the version; built if not cached.

    Raises ControlPlaneError.
    """
    target = cache.root() / f"image-{_key(version)}"
    archive = target / "holdfast.tar"
    with cache.locked(target.with_suffix(".lock")):
        if not archive.exists():
            with cache.publishing(target) as folder:
                _make(version, folder / archive.name, report)
    return archive


def is_reproducible(version: str, report: Report) -> bool:
    """Return whether a build without cached layers produces the same image.

    True is cached until the recipe, the pins or this file change: other code does not affect it.
    Raises ControlPlaneError.
    """
    recipe = [(PROJECT / name).read_bytes() for name in (*_RECIPE, *_PINS)]
    target = cache.root() / f"image-twice-{cache.digest([*recipe, Path(__file__).read_bytes()])}"
    if target.exists():
        return True
    image_id = identity(build(version, report))
    with tempfile.TemporaryDirectory(dir=cache.root()) as folder:
        archive = Path(folder) / "holdfast.tar"
        _make(version, archive, report, "--no-cache")
        same = identity(archive) == image_id
    if same:
        target.write_text(image_id)
    return same


def identity(archive: Path) -> str:
    """Return an image's ID: the digest of its configuration, which covers all its content."""
    with tarfile.open(archive) as files:
        manifest = files.extractfile("manifest.json")
        if manifest is None:
            raise ControlPlaneError(f"{archive} is not a docker archive; remove it and build again")
        (image,) = json.load(manifest)
    return str(image["Config"]).removesuffix(".json")


def _make(version: str, archive: Path, report: Report, *options: str) -> None:
    _require_tools()
    with cache.locked(cache.root() / "images.lock"):
        base, wheels = _base(report), _wheels(report)
        report(Step(f"building the image holdfast:{version}"))
        _buildah("rm", "--all")  # containers left by killed builds, which keep images in use
        _build(version, base, wheels, archive, options)


def _key(version: str) -> str:
    files = [PROJECT / name for name in (*_SOURCES, *_PINS)]
    for folder in _CODE:
        files += sorted((PROJECT / folder).rglob("*.py"))
    contents = [
        f"{file.relative_to(PROJECT)}".encode() + b"\0" + file.read_bytes() for file in files
    ]
    return cache.digest([version.encode(), _SUITE.encode(), _PACKAGES.encode(), *contents])


def _base(report: Report) -> Path:
    """Return the base image's files as an archive, built if not cached."""
    target = cache.root() / f"image-base-{_SUITE}-{cache.digest([_PACKAGES.encode()])}"
    if not target.exists():
        report(Step("installing Debian packages into a base image"))
        with cache.publishing(target) as folder:
            root = folder / "root"
            # Without the keyring, debootstrap would only warn, and install unverified packages.
            arguments = ["--force-check-gpg", "--variant=minbase", f"--include={_PACKAGES}"]
            _run(["unshare", "--mount", "debootstrap", *arguments, _SUITE, str(root)])
            _tidy(root)
            _run(["tar", "--numeric-owner", "-C", str(root), "-cf", str(folder / "root.tar"), "."])
            shutil.rmtree(root)
    return target / "root.tar"


def _tidy(root: Path) -> None:
    """Remove files that containers do not need: package lists, manuals, translations."""
    for name in ("var/cache/apt", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
    shutil.rmtree(root / "usr/share/locale", ignore_errors=True)


def _wheels(report: Report) -> Path:
    pins = [PROJECT / name for name in _PINS]
    target = cache.root() / f"wheels-{cache.digest(pin.read_bytes() for pin in pins)}"
    if not target.exists():
        report(Step("downloading wheels"))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
        options = ["--python-version", _PYTHON, "--only-binary=:all:", "--no-deps", "--quiet"]
        with cache.publishing(target) as folder:
            for pin in pins:
                arguments = ["--require-hashes", "--dest", str(folder), "--requirement", str(pin)]
                _run([*pip, *options, *arguments])
    return target


def _build(version: str, base: Path, wheels: Path, archive: Path, options: Sequence[str]) -> None:
    if not _buildah("images", "--quiet", "--filter", f"reference={_BASE}"):
        container = _buildah("from", "scratch")
        _buildah("add", "--quiet", container, str(base), "/")
        _buildah("commit", "--quiet", "--timestamp", "0", container, _BASE)
        _buildah("rm", container)
    arguments = {
        "BASE": _BASE,
        "PIP_FIND_LINKS": "/wheels",
        "PIP_NO_INDEX": "1",
        "VERSION": version,
    }
    tag = f"{NAME}:{version}"
    _buildah(
        *("bud", "--quiet", "--layers", "--pull-never", "--timestamp", "0", "--tag", tag),
        *("--volume", f"{wheels}:/wheels:ro", "--file", str(PROJECT / "Containerfile")),
        *(f"--build-arg={name}={value}" for name, value in arguments.items()),
        *options,
        str(PROJECT),
    )
    _buildah("push", "--quiet", tag, f"docker-archive:{archive}:{tag}")
    _buildah("rmi", tag)


def _buildah(command: str, *arguments: str) -> str:
    """Run buildah with a separate store, and return its output.

    A separate mount namespace discards its mounts on exit.
    """
    store = cache.root() / "images"
    options = ["--root", str(store / "root"), "--runroot", str(store / "run")]
    return _run(["unshare", "--mount", "buildah", *options, command, *arguments]).strip()


def _run(command: Sequence[str]) -> str:
    environment = {"STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot"}
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    if result.returncode != 0:
        lines = (result.stderr.strip() or result.stdout.strip()).splitlines()
        raise ControlPlaneError(f"{' '.join(command[:4])} … failed: " + "\n".join(lines[-10:]))
    return result.stdout


def _require_tools() -> None:
    missing: Iterable[str] = [
        package for name, package in _TOOLS.items() if shutil.which(name) is None
    ]
    if missing:
        raise ControlPlaneError(
            f"building the image needs {', '.join(missing)}; install what is missing (Debian and "
            f"Ubuntu: apt install {' '.join(missing)})"
        )
