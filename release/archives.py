"""Reproducible archives: the same files always yield the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controlplane.errors import ControlPlaneError

_OLDEST_IN_ZIP = (1980, 1, 1, 0, 0, 0)
_OCI = "application/vnd.oci.image"


def tar(files: Mapping[str, bytes], epoch: int, executable: frozenset[str] = frozenset()) -> bytes:
    """Return a tar archive of these files, sorted by name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(files[name]), epoch
            entry.mode = 0o755 if name in executable else 0o644
            archive.addfile(entry, io.BytesIO(files[name]))
    return buffer.getvalue()


def compressed(content: bytes) -> bytes:
    """Return gzip-compressed content without a timestamp."""
    return gzip.compress(content, compresslevel=9, mtime=0)


def stamped(content: bytes, epoch: int) -> bytes:
    """Repack a .tar.gz: sort its entries, and set the same time and owner for all."""
    buffer = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(content)) as source,
        tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in sorted(source, key=lambda item: item.name):
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "", ""
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            entry.pax_headers = {}
            archive.addfile(entry, source.extractfile(entry) if entry.isfile() else None)
    return compressed(buffer.getvalue())


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return a zip archive of these files, sorted by name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _OLDEST_IN_ZIP)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def oci(docker_archive: Path, reference: str, epoch: int) -> tuple[bytes, str]:
    """Convert a docker archive to an OCI archive; return it and the image's digest."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"{_OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    with tarfile.open(docker_archive) as files:
        (image,) = json.loads(member(files, "manifest.json"))
        config = member(files, image["Config"])
        layers = [
            blob(compressed(member(files, layer)), "layer.v1.tar+gzip") for layer in image["Layers"]
        ]
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": blob(config, "config.v1+json"),
        "layers": layers,
    }
    descriptor = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    system = json.loads(config)
    index = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.index.v1+json",
        "manifests": [
            {
                **descriptor,
                "platform": {"architecture": system["architecture"], "os": system["os"]},
                "annotations": {
                    "io.containerd.image.name": reference,
                    "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
                },
            }
        ],
    }
    files_of_layout = {
        "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        "index.json": json.dumps(index).encode(),
        **blobs,
    }
    return tar(files_of_layout, epoch), str(descriptor["digest"])


def member(files: tarfile.TarFile, name: str) -> bytes:
    """Return a file's content, following links. Raises ControlPlaneError if it is not a file."""
    file = files.extractfile(name)
    if file is None:
        raise ControlPlaneError(f"the archive has no file {name}")
    return file.read()
