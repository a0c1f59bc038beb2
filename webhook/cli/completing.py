"""Complete names of pods, workloads, namespaces and contexts in a shell."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace

import click

from holdfast.webhook.cli import commands, options, targets
from holdfast.webhook.errors import HoldfastError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.kubeconfig import Kubeconfig, kubeconfigs
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.annotations import HELD_LABEL
from holdfast.webhook.model.freezes import NAMESPACES
from holdfast.webhook.model.objects import ApiObject
from holdfast.webhook.model.paths import api_path

TIMEOUT_MS = 3_000
"""Request timeout of a completion."""
_KUBECONFIG = frozenset({"contexts", "clusters", "users"})


def candidates(kind: str, ctx: click.Context, incomplete: str) -> list[str]:
    """Return the names that start with this text, sorted; empty if they cannot be read."""
    flags = {
        key: value
        for key, value in commands.chosen(ctx).items()
        if key in options.Target.__dataclass_fields__
    }
    target = replace(options.Target(**flags), request_timeout=TIMEOUT_MS)
    try:
        if kind in _KUBECONFIG:
            entries = Kubeconfig(kubeconfigs(target.kubeconfig)).merged()[kind]
            names = (str(entry["name"]) for entry in entries)
        else:
            type_name, slash, _ = incomplete.rpartition("/")
            names = (f"{type_name}{slash}{name}" for name in _cluster(kind, type_name, target))
        return sorted(name for name in names if name.startswith(incomplete))
    except (HoldfastError, click.ClickException, OSError):
        return []  # a shell cannot show errors during completion


def _cluster(kind: str, type_name: str, target: options.Target) -> Iterable[str]:
    """Return the names of the objects of a kind, or of the type before a slash."""
    named_target = targets.parse(f"{type_name}/*") if type_name else None
    with closing(target.connect()) as cluster:
        path, query = _list(kind, cluster.namespace)
        if named_target and not named_target.is_pod:
            path, query = replace(named_target, name="").path(cluster.namespace), {}
        return [obj.metadata.name for obj in listing.objects(cluster, path, ApiObject, query)]


def _list(kind: str, namespace: str) -> tuple[str, dict[str, str]]:
    """Return the list path and the query for a kind."""
    return {
        "pods": (listing.pods_path(namespace), {}),
        "held": (listing.pods_path(namespace), {"labelSelector": HELD_LABEL}),
        "vms": (kubevirt.vm_path(namespace, ""), {}),
        "nodes": (api_path("v1", "nodes"), {}),
        "namespaces": (NAMESPACES, {}),
    }[kind]
