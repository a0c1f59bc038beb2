"""Builds the shipped manifests as users do, without a cluster."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from controlplane import build
from tests.e2e.accounts import MANIFESTS
from tests.e2e.namespace import Object


def built(folder: Path, components: Sequence[str] = (), **content: Any) -> list[Object]:
    """Build the manifests with components and with other fields of a kustomization."""
    manifests = os.path.relpath(MANIFESTS, folder)
    content["resources"] = [manifests]
    content["components"] = [f"{manifests}/{component}" for component in components]
    (folder / "kustomization.yaml").write_text(json.dumps(content))
    command = [str(build.ensure() / "kubectl"), "kustomize", str(folder)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return [*yaml.safe_load_all(result.stdout)]
