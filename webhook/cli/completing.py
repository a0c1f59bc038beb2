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
            known = Kubeconfig(kubeconfigs(target.kubeconfig)).merged()[kind]
            found = (str(one["name"]) for one in known)
        else:
            written, slash, _ = incomplete.rpartition("/")
            found = (f"{written}{slash}{name}" for name in _cluster(kind, written, target))
        return sorted(name for name in found if name.startswith(incomplete))
    except (HoldfastError, click.ClickException, OSError):
        return []  # a shell cannot show errors during completion


def _cluster(kind: str, written: str, target: options.Target) -> Iterable[str]:
    """Return the names of the objects of a kind, or of the type before a slash."""
    typed = targets.parse(f"{written}/*") if written else None
    with closing(target.connect()) as cluster:
        path, query = _list(kind, cluster.namespace)
        if typed and not typed.is_pod:
            path, query = replace(typed, name="").path(cluster.namespace), {}
        return [one.metadata.name for one in listing.objects(cluster, path, ApiObject, query)]


def _list(kind: str, namespace: str) -> tuple[str, dict[str, str]]:
    """Return the list path and the query for a kind."""
    return {
        "pods": (listing.pods_path(namespace), {}),
        "held": (listing.pods_path(namespace), {"labelSelector": HELD_LABEL}),
        "vms": (kubevirt.vm_path(namespace, ""), {}),
        "nodes": (api_path("v1", "nodes"), {}),
        "namespaces": (NAMESPACES, {}),
    }[kind]
