"""`holdfast version`: show the versions of command, installation and cluster."""

import re
from importlib.metadata import version as own_version
from typing import Any

import click

from holdfast.webhook.cli import commands, options, terminal
from holdfast.webhook.errors import ApiStatusError, HoldfastError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api
from holdfast.webhook.model.paths import api_path

_LABEL = "app.kubernetes.io/version"
_NOT_INSTALLED = "not installed"


@commands.command(epilog="Example: holdfast version --client")
@click.option(
    "--client", is_flag=True, help="Show only this command's version; no cluster is needed."
)
@options.own_namespace
@click.option(
    "-o", "--output", type=click.Choice(["json", "yaml"]), help="The output format, for scripts."
)
@options.target
def version(*, client: bool, own: str, output: str | None, target: options.Target) -> None:
    """Show the versions of the command, the installation and the cluster.

    A warning follows if the command and the installation are more than one minor version apart.
    """
    versions = {"holdfast": own_version("holdfast")}
    if not client:
        try:
            versions |= _of_the_cluster(target, own)
        except HoldfastError:
            _write(versions, output)
            raise
    _write(versions, output)
    if warning := skew(versions["holdfast"], versions.get("installed", "")):
        terminal.write([(warning, "")], err=True)


def _of_the_cluster(target: options.Target, namespace: str) -> dict[str, str]:
    cluster = target.connect()
    response = listing.read(cluster, "/version", dict[str, Any])
    version = str(response.get("gitVersion", "unknown"))
    return {**_installed(cluster, namespace), "kubernetes": version}


def _write(versions: dict[str, str], output: str | None) -> None:
    if output:
        terminal.write_document(versions, output)
    else:
        terminal.write(
            (number if number.startswith(_NOT_INSTALLED) else f"{name} {number}", "")
            for name, number in versions.items()
        )


def _installed(api: Api, namespace: str) -> dict[str, str]:
    """Return the version and image of the admission server, if the user may read them."""
    path = api_path("apps/v1", "deployments", namespace, "holdfast-webhook")
    try:
        deployment = listing.one(api, path, dict)
    except ApiStatusError as exc:
        if not exc.is_refused:
            raise
        return {"installed": f"unknown, no permission to read namespace {namespace}"}
    if deployment is None:
        return {"installed": f"{_NOT_INSTALLED} in namespace {namespace}"}
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    labels = deployment["metadata"].get("labels", {})
    return {"installed": labels.get(_LABEL, "unknown"), "image": container["image"]}


def skew(command: str, installed: str) -> str:
    """Return a warning if two versions are too far apart; empty if not, or if one is unknown."""
    matches = [re.match(r"(\d+)\.(\d+)\.", text) for text in (command, installed)]
    if None in matches:
        return ""
    (major, minor), (other_major, other_minor) = (
        (int(match[1]), int(match[2])) for match in matches if match
    )
    if major == other_major and abs(minor - other_minor) <= 1:
        return ""
    return (
        f"this command is {command}, and the installation is {installed}: use versions that are "
        "at most one minor version apart"
    )
