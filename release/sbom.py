"""The image's SBOM: Python packages from cyclonedx-py, Debian packages from dpkg's database."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controlplane.errors import ControlPlaneError
from release import archives

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "build" / "release"
_DPKG = "var/lib/dpkg/status"


def build(docker_archive: Path, version: str, epoch: int) -> bytes:
    """Return an image's SBOM as CycloneDX JSON. Raises ControlPlaneError if a command fails."""
    with tempfile.TemporaryDirectory() as folder:
        status = _unpacked(docker_archive, Path(folder))
        document = _python_packages(Path(folder), epoch)
    document["metadata"]["component"] = {
        "type": "container",
        "name": "holdfast",
        "version": version,
        "bom-ref": "holdfast-image",
    }
    document["components"] += sorted(_debian(status), key=lambda component: component["bom-ref"])
    return json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"


def _unpacked(docker_archive: Path, folder: Path) -> str:
    """Unpack the Python packages' metadata to `folder`; return the text of dpkg's database."""
    status = ""
    with tarfile.open(docker_archive) as files:
        (image,) = json.loads(archives.member(files, "manifest.json"))
        for layer in image["Layers"]:
            stream = files.extractfile(layer)
            with tarfile.open(fileobj=stream) as content:
                for entry in content:
                    name = entry.name.removeprefix("./")
                    if name == _DPKG:
                        status = archives.member(content, entry.name).decode()
                    if name.startswith("app/") and ".dist-info/" in name and entry.isfile():
                        target = folder / name
                        target.parent.mkdir(parents=True, exist_ok=True)
                        target.write_bytes(archives.member(content, entry.name))
    return status


def _python_packages(folder: Path, epoch: int) -> dict[str, Any]:
    """Return cyclonedx-py's SBOM of an environment that has the unpacked packages."""
    environment = folder / "environment"
    _run([sys.executable, "-m", "venv", "--without-pip", str(environment)])
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "image.pth").write_text(f"{folder / 'app'}\n")
    tool = TOOLS / "bin" / "cyclonedx-py"
    output = _run([str(tool), "environment", "--output-reproducible", str(environment)], epoch)
    document: dict[str, Any] = json.loads(output)
    return document


def _debian(status: str) -> Iterator[dict[str, Any]]:
    for paragraph in status.strip().split("\n\n"):
        fields = dict(
            line.split(": ", 1)
            for line in paragraph.splitlines()
            if ": " in line and not line.startswith(" ")
        )
        if fields.get("Status") == "install ok installed":
            name, version, machine = (fields[key] for key in ("Package", "Version", "Architecture"))
            purl = f"pkg:deb/debian/{name}@{version}?arch={machine}"
            yield {
                "type": "library",
                "name": name,
                "version": version,
                "purl": purl,
                "bom-ref": purl,
            }


def _run(command: list[str], epoch: int = 0) -> str:
    environment = {"SOURCE_DATE_EPOCH": str(epoch), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode != 0:
        raise ControlPlaneError(f"{' '.join(command[:3])} … failed: {result.stderr.strip()[-500:]}")
    return result.stdout
