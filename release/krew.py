"""The manifest with which `kubectl krew` installs the plugin."""

from __future__ import annotations

import yaml

from release.pyz import PLATFORMS

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_DESCRIPTION = """\
Shows which pods Holdfast holds, why, and for how long; explains and releases
them, freezes namespaces, and checks and removes the installation.
"""


def manifest(version: str, uri: str, digest: str) -> str:
    """Return the manifest; all platforms use the same archive."""
    platforms = []
    for name in PLATFORMS:
        system, _, machine = name.partition("-")
        platforms.append(
            {
                "selector": {"matchLabels": {"os": system, "arch": _MACHINES[machine]}},
                "uri": uri,
                "sha256": digest,
                "bin": "kubectl-holdfast",
                "files": [
                    {"from": "kubectl-holdfast", "to": "."},
                    {"from": "LICENSE", "to": "."},
                ],
            }
        )
    content = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "holdfast"},
        "spec": {
            "version": f"v{version}",
            "homepage": "https://holdfast.example.com",
            "shortDescription": "Inspect and release held pods",
            "description": _DESCRIPTION,
            "caveats": "Needs Python 3.11 to 3.14 as python3.\n",
            "platforms": platforms,
        },
    }
    return yaml.safe_dump(content, sort_keys=False)
