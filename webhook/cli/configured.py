"""The configuration that a command applies to pods and VMs: the installed one, or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from holdfast.webhook.cli import commands, rights, terminal
from holdfast.webhook.errors import ApiStatusError, ConfigurationError, HoldfastError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.runtime.pipelines import Setup, digest, load_profiles

FILE = "holdfast.yaml"
"""The configuration's key in its ConfigMap."""
_DISABLED = "HOLDFAST_DISABLE_PLUGINS"


def setup(api: Api, namespace: str, path: Path | None, *, is_quiet: bool = False) -> Setup:
    """Return the configuration in a file, or else the installed one, or else the defaults.

    Prints a note if the file differs from the installed configuration, or if the defaults replace
    an unusable one. `is_quiet` suppresses the note if only the permission to read it is missing.
    Raises ConfigurationError if the file is invalid, or ClusterError.
    """
    local_setup = Setup(path)
    try:
        installed = read(api, namespace)
        if installed is None:
            return local_setup
        load_profiles(installed)
    except (ApiStatusError, ConfigurationError) as exc:
        if isinstance(exc, ApiStatusError) and not exc.is_refused:
            raise
        if path is None and not (is_quiet and isinstance(exc, ApiStatusError)):
            note_defaults(exc, namespace)
        return local_setup
    if path is None:
        return installed
    if digest(local_setup) != digest(installed):
        note(f"{path} differs from the installed configuration, {installed.source}")
    return local_setup


def read(api: Api, namespace: str) -> Setup | None:
    """Return the installed configuration, or None if the namespace has no admission server."""
    path = api_path("apps/v1", "deployments", namespace, "holdfast-webhook")
    deployment = listing.one(api, path, dict[str, Any])
    if deployment is None:
        return None
    pod = deployment["spec"]["template"]["spec"]
    disabled = [
        name
        for container in pod["containers"]
        for variable in container.get("env") or ()
        if variable["name"] == _DISABLED
        for name in variable.get("value", "").split()
    ]
    for volume in pod.get("volumes") or ():
        name = volume.get("configMap", {}).get("name", "")
        path = api_path("v1", "configmaps", namespace, name)
        config_map = name and listing.one(api, path, dict[str, Any])
        if config_map and FILE in (config_map.get("data") or {}):
            text = str(config_map["data"][FILE]).encode()
            return Setup(None, disabled, (f"ConfigMap {namespace}/{name}", text))
    return Setup(None, disabled)


def note_defaults(exc: HoldfastError, namespace: str) -> None:
    """Print a note that the built-in defaults apply, and why; `namespace` is Holdfast's."""
    if isinstance(exc, ApiStatusError):
        note_refused(
            "the installed configuration; assuming the defaults. Ask an admin for the Role "
            f"{rights.CONFIG_READER} in namespace {namespace}, or give --config",
            exc,
        )
        return
    note(
        f"the installed configuration cannot be used ({exc}): the built-in defaults are assumed; "
        "give the configuration with --config"
    )


def note_refused(subject: str, exc: ApiStatusError) -> None:
    """Print a note about a missing read permission; -v=1 adds the API server's response."""
    ctx = click.get_current_context(silent=True)
    details = f": {exc}" if ctx and commands.chosen(ctx).get("verbosity") else ""
    note(f"no permission to read {subject}{details}")


def note(text: str) -> None:
    """Print a note on standard error."""
    terminal.write([(f"note: {text}", "yellow")], err=True)
