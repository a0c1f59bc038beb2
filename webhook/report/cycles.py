"""Find pods in manifests that wait for each other through `holdfast.dev/after`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from holdfast.webhook.plugins.after.targets import AFTER
from holdfast.webhook.report import preview
from holdfast.webhook.report.preview import Document

_Node = tuple[str, str]
"""A namespace, and an object such as `deployment/web`."""


def find(documents: Iterable[Document], namespace: str) -> Sequence[str]:
    """Return a cycle, such as `job/a`, `job/b`, `job/a`; empty if there is none.

    A Service waits for the workloads that it selects.
    """
    waits: dict[_Node, set[_Node]] = {}
    services: list[tuple[str, _Node, Mapping[str, Any]]] = []
    pods: list[tuple[str, _Node, Mapping[str, Any]]] = []
    for document in documents:
        metadata = preview.metadata_of(document)
        space = str(metadata.get("namespace") or namespace)
        node = space, f"{str(document.get('kind')).lower()}/{metadata.get('name')}"
        if document.get("kind") == "Service":
            services.append((space, node, _mapping(_mapping(document, "spec"), "selector")))
        for _, template in preview.templates(document):
            pod = preview.metadata_of(template)
            pods.append((space, node, _mapping(pod, "labels")))
            text = str(_mapping(pod, "annotations").get(AFTER, ""))
            waits.setdefault(node, set()).update((space, _target(part)) for part in text.split(","))
    for space, node, selector in services:
        waits[node] = {
            workload
            for pod_space, workload, labels in pods
            if selector and pod_space == space and selector.items() <= labels.items()
        }
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as exc:
        return [name for _, name in reversed(exc.args[1])]
    return []


def _target(part: str) -> str:
    """Return the object that a part of the annotation names, with its kind in the singular."""
    kind, _, name = part.strip().partition(":")[0].partition("/")
    return f"{kind.removesuffix('s')}/{name}"


def _mapping(document: Document, field: str) -> Mapping[str, Any]:
    value = document.get(field)
    return value if isinstance(value, dict) else {}
