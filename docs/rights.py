"""The permissions that the manifests grant, each with its reason: the comment above its rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

MANIFESTS = Path(__file__).resolve().parent.parent / "manifests"
FILES = (
    "rbac/controller.yaml",
    "rbac/after.yaml",
    "rbac/releaser.yaml",
    "rbac/approver.yaml",
    "kubevirt/controller.yaml",
    "kubevirt/webhook.yaml",
)
"""The roles that Holdfast needs or that the guard requires."""
USER_FILES = ("rbac/freezer.yaml", "rbac/config-reader.yaml")
"""The roles that users may need, but Holdfast and the guard do not."""
_ROLES = {"ClusterRole": "cluster-wide", "Role": "in Holdfast's namespace"}
_RULE = "  - apiGroups:"

Row = tuple[str, str, str]
Role = Mapping[str, Any]


class Right(NamedTuple):
    """One verb on one resource, granted by one role.

    An empty `name` means objects of any name, and an empty `group` the core group.
    """

    kind: str
    role: str
    group: str
    resource: str
    verb: str
    name: str

    def __str__(self) -> str:
        """Return a short description: the role, verb, resource and name."""
        who = self.role.removeprefix("holdfast-").removesuffix("-kubevirt").removesuffix("-after")
        where = "everywhere" if self.role.endswith("-after") else self.name
        return f"{who}: {self.verb} {self.resource} {where}".rstrip()


def rights() -> Iterator[Right]:
    """Yield each permission that Holdfast needs or that the guard requires, one per verb."""
    for _, _, role in _found(FILES):
        for rule in role["rules"]:
            parts = ("apiGroups", "resources", "verbs")
            for values in product(*(rule[part] for part in parts), rule.get("resourceNames", [""])):
                yield Right(role["kind"], role["metadata"]["name"], *values)


def roles() -> Iterator[tuple[str, Sequence[Row]]]:
    """Yield the title of each role and its rows: resources, verbs, reason.

    Rules with the same verbs and reason share a row. Raises LookupError if a rule has no reason.
    """
    for file, document, role in _found((*FILES, *USER_FILES)):
        comments = reasons(document)
        if len(comments) != len(role["rules"]) or not all(comments):
            raise LookupError(f"manifests/{file}: write a comment above each rule of a role")
        title = f"{role['kind']} {role['metadata']['name']}, {_ROLES[role['kind']]}"
        groups: dict[tuple[str, str], list[str]] = {}
        for rule, reason in zip(role["rules"], comments, strict=True):
            groups.setdefault((_code(rule["verbs"]), reason), []).append(_resources(rule))
        yield title, [(", ".join(names), *key) for key, names in groups.items()]


def reasons(document: str) -> list[str]:
    """Return the comment above each rule of a role, as one line each."""
    comments, comment = [], list[str]()
    for line in document.partition("\nrules:\n")[2].splitlines():
        if line.strip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
        elif line.startswith(_RULE):
            comments.append(" ".join(comment))
            comment = []
    return comments


def _found(files: Sequence[str]) -> Iterator[tuple[str, str, Role]]:
    """Yield each role in these manifests: its file, its text, and the parsed object."""
    for file in files:
        text = (MANIFESTS / file).read_text(encoding="utf-8")
        for document in text.split("\n---\n"):
            manifest = yaml.safe_load(document)
            if manifest["kind"] in _ROLES:
                yield file, document, manifest


def _resources(rule: Mapping[str, Any]) -> str:
    """Return a rule's resources in kubectl's notation, such as `jobs.batch`."""
    names = rule.get("resourceNames", ())
    suffix = f", only {_code(names)}" if names else ""
    pairs = product(rule["resources"], rule["apiGroups"])
    return _code(f"{resource}.{group}".rstrip(".") for resource, group in pairs) + suffix


def _code(words: Any) -> str:
    return ", ".join(f"`{word}`" for word in words)
