"""`python -m release VERSION`: build dist/ from the last commit. `make release` runs it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import yaml

from controlplane import build as programs
from controlplane import image, nodes
from controlplane.errors import ControlPlaneError
from controlplane.modules import HELM, KREW
from controlplane.progress import Report, console_report
from release import archives, krew, pyz, sbom, values
from release.version import VERSION

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
REPOSITORY = "docker.io/library/holdfast"
"""The default image name, which is the name of images that are imported into nodes."""


@click.command()
@click.argument("version")
@click.option("--repository", default=REPOSITORY, show_default=True, help="The image's name.")
@click.option(
    "--downloads",
    default="https://holdfast.example.com/releases",
    show_default=True,
    help="Base URL of the release files, for the krew manifest.",
)
def main(version: str, repository: str, downloads: str) -> None:
    """Build the files of a release in dist/."""
    if version != VERSION:
        raise click.UsageError(f"the version is {VERSION}: change it in pyproject.toml, and commit")
    try:
        with console_report() as report:
            Files(version, repository, report).make(f"{downloads}/v{version}")
    except ControlPlaneError as error:
        sys.exit(f"release: {error}")
    for path in sorted(DIST.iterdir()):
        click.echo(f"{path.stat().st_size:>12,}  dist/{path.name}")
    other = "arm64" if nodes.ARCHITECTURE == "amd64" else "amd64"
    click.echo(f"The image is for {nodes.ARCHITECTURE}; for {other}, run this on {other}.")


class Files:
    """The files of one release."""

    def __init__(self, version: str, repository: str, report: Report, dist: Path = DIST) -> None:
        self._version = version
        self._repository = repository
        self._report = report
        self._dist = dist
        self._epoch = int(run("git", "log", "-1", "--format=%ct"))

    def make(self, downloads: str) -> None:
        """Build all files, replacing the existing ones.

        Raises ControlPlaneError if there are uncommitted changes, or if a command fails.
        """
        if run("git", "status", "--porcelain"):
            raise ControlPlaneError("there are uncommitted changes; commit or stash them first")
        shutil.rmtree(self._dist, ignore_errors=True)
        self._dist.mkdir()
        wheel = self._distributions()
        digest = self.image()
        self._materials()
        self.install_yaml(digest)
        self.chart(digest)
        self._command_line(wheel, downloads)
        self._notes()
        self._sums()

    def _write(self, name: str, content: bytes | str) -> None:
        data = content.encode() if isinstance(content, str) else content
        (self._dist / name).write_bytes(data)

    def _distributions(self) -> Path:
        """Build the sdist from the last commit, and the wheel from the sdist; return the wheel."""
        with tempfile.TemporaryDirectory() as folder:
            sources = Path(folder) / "sources"
            sources.mkdir()
            tarball = Path(folder) / "sources.tar"
            run("git", "archive", "--output", str(tarball), "HEAD")
            run("tar", "-xf", str(tarball), "-C", str(sources))
            script = f"from setuptools import build_meta; build_meta.build_sdist({folder!r})"
            environment = {"SOURCE_DATE_EPOCH": str(self._epoch)}
            run(sys.executable, "-c", script, cwd=sources, **environment)
            (archive,) = Path(folder).glob("*.tar.gz")
            sdist = self._dist / archive.name
            sdist.write_bytes(archives.stamped(archive.read_bytes(), self._epoch))
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
            options = [
                "--no-deps",
                "--no-build-isolation",
                "--wheel-dir",
                str(self._dist),
                str(sdist),
            ]
            run(*pip, *options, cwd=Path(folder), **environment)
        (wheel,) = self._dist.glob("*.whl")
        return wheel

    def image(self) -> str:
        """Write the image as an OCI archive, and return its digest."""
        archive = image.build(self._version, self._report)
        reference = f"{self._repository}:{self._version}"
        content, digest = archives.oci(archive, reference, self._epoch)
        self._write(f"holdfast-{self._version}-image-{nodes.ARCHITECTURE}.tar", content)
        return digest

    def _materials(self) -> None:
        archive = image.build(self._version, self._report)
        content = sbom.build(archive, self._version, self._epoch)
        self._write(f"holdfast-{self._version}-image-{nodes.ARCHITECTURE}.cdx.json", content)

    def install_yaml(self, digest: str) -> None:
        """Write the manifests as one file, with the image pinned by digest."""
        override = {"name": "holdfast", "newName": self._repository, "digest": digest}
        with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
            content = {"resources": ["../../manifests"], "images": [override]}
            (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(content))
            manifests = run(str(programs.ensure(self._report) / "kubectl"), "kustomize", folder)
        head = f"# Holdfast {self._version}: kubectl apply -f install.yaml\n"
        self._write("install.yaml", head + manifests)

    def chart(self, digest: str) -> None:
        """Package the chart with this image as its default, and run `helm lint` on it."""
        sources = ROOT / "charts" / "holdfast"
        names = run("git", "ls-files", "-z", ".", cwd=sources).split("\0")
        files = {f"holdfast/{name}": (sources / name).read_bytes() for name in names if name}
        # not a value: it would override a tag, and --reuse-values would keep it
        annotation = f"annotations:\n  holdfast.dev/image-digest: {digest}\n"
        files["holdfast/Chart.yaml"] += annotation.encode()
        overrides = {"image.repository": self._repository}
        files["holdfast/values.yaml"] = values.values_yaml(overrides).encode()
        archive = archives.compressed(archives.tar(files, self._epoch))
        self._write(f"holdfast-{self._version}.tgz", archive)
        helm = str(programs.ensure(self._report, HELM) / "helm")
        run(helm, "lint", "--strict", str(self._dist / f"holdfast-{self._version}.tgz"))

    def _command_line(self, wheel: Path, downloads: str) -> None:
        """Write the command line as one file, and the archive and manifest for krew."""
        zipapp = pyz.build(wheel)
        self._write("holdfast.pyz", zipapp)
        (self._dist / "holdfast.pyz").chmod(0o755)
        plugin = "kubectl-holdfast"
        files = {plugin: zipapp, "LICENSE": (ROOT / "LICENSE").read_bytes()}
        archive = archives.tar(files, self._epoch, frozenset([plugin]))
        name = f"kubectl-holdfast-{self._version}.tar.gz"
        self._write(name, archives.compressed(archive))
        checksum = hashlib.sha256((self._dist / name).read_bytes()).hexdigest()
        manifest = krew.manifest(self._version, f"{downloads}/{name}", checksum)
        self._write("krew-holdfast.yaml", manifest)
        validator = programs.ensure(self._report, KREW) / "validate-krew-manifest"
        with tempfile.TemporaryDirectory() as folder:  # krew requires the name PLUGIN.yaml
            file = Path(folder) / "holdfast.yaml"
            file.write_text(manifest)
            run(str(validator), "-manifest", str(file), "-skip-install")

    def _notes(self) -> None:
        text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        self._write("RELEASE_NOTES.md", notes(text, self._version))

    def _sums(self) -> None:
        lines = [
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
            for path in sorted(self._dist.iterdir())
        ]
        self._write("SHA256SUMS", "".join(lines))


def notes(changelog: str, version: str) -> str:
    """Return a version's section of the changelog; if it has none yet, the Unreleased section."""
    sections: dict[str, str] = dict(
        re.findall(r"(?ms)^## \[([^]]+)\][^\n]*\n(.*?)(?=^## |\Z)", changelog)
    )
    section = sections.get(version, sections.get("Unreleased", "")).strip()
    return f"# Holdfast {version}\n\n{section}\n"


def run(*command: str, cwd: Path = ROOT, **environment: str) -> str:
    """Run a program and return its output. Raises ControlPlaneError if it fails."""
    variables = {**os.environ, **environment}
    result = subprocess.run(
        command, cwd=cwd, env=variables, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        message = (result.stderr.strip() or result.stdout.strip())[-600:]
        raise ControlPlaneError(f"{' '.join(command[:3])} … failed: {message}")
    return result.stdout


if __name__ == "__main__":
    main()
