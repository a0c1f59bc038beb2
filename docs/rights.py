"""The rights that the manifests give, each with its reason: the comment above its rule."""

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
"""The roles whose rights Holdfast needs, or that the guard requires."""
USER_FILES = ("rbac/freezer.yaml", "rbac/config-reader.yaml")
"""The roles that users may need, but neither Holdfast nor the guard."""
_ROLES = {"ClusterRole": "cluster-wide", "Role": "in Holdfast's namespace"}
_RULE = "  - apiGroups:"

Row = tuple[str, str, str]
Role = Mapping[str, Any]


class Right(NamedTuple):
    """One verb on one resource, as one role gives it.

    `name` is empty where it is for objects of all names; `group` is for the core group.
    """

    kind: str
    role: str
    group: str
    resource: str
    verb: str
    name: str

    def __str__(self) -> str:
        """Say it in a few words: who has it, and what it allows."""
        who = self.role.removeprefix("holdfast-").removesuffix("-kubevirt").removesuffix("-after")
        where = "everywhere" if self.role.endswith("-after") else self.name
        return f"{who}: {self.verb} {self.resource} {where}".rstrip()


def rights() -> Iterator[Right]:
    """Give each right that Holdfast needs, or that the guard requires, verb by verb."""
    for _, _, role in _found(FILES):
        for rule in role["rules"]:
            parts = ("apiGroups", "resources", "verbs")
            for each in product(*(rule[part] for part in parts), rule.get("resourceNames", [""])):
                yield Right(role["kind"], role["metadata"]["name"], *each)


def roles() -> Iterator[tuple[str, Sequence[Row]]]:
    """Give the title of each role, and of its rules: resources, verbs, reason.

    Rules with the same verbs and reason share a row. Raises LookupError where a rule has no reason.
    """
    for file, document, role in _found((*FILES, *USER_FILES)):
        why = reasons(document)
        if len(why) != len(role["rules"]) or not all(why):
            raise LookupError(f"manifests/{file}: write a comment above each rule of a role")
        title = f"{role['kind']} {role['metadata']['name']}, {_ROLES[role['kind']]}"
        found: dict[tuple[str, str], list[str]] = {}
        for rule, reason in zip(role["rules"], why, strict=True):
            found.setdefault((_code(rule["verbs"]), reason), []).append(_resources(rule))
        yield title, [(", ".join(what), *key) for key, what in found.items()]


def reasons(document: str) -> list[str]:
    """Give the comment above each rule of a role, as one line."""
    found, comment = [], list[str]()
    for line in document.partition("\nrules:\n")[2].splitlines():
        if line.strip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
        elif line.startswith(_RULE):
            found.append(" ".join(comment))
            comment = []
    return found


def _found(files: Sequence[str]) -> Iterator[tuple[str, str, Role]]:
    """Give each role of these manifests: its file, its text, and what that says."""
    for file in files:
        text = (MANIFESTS / file).read_text(encoding="utf-8")
        for document in text.split("\n---\n"):
            read = yaml.safe_load(document)
            if read["kind"] in _ROLES:
                yield file, document, read


def _resources(rule: Mapping[str, Any]) -> str:
    """Name the resources as kubectl does: `jobs.batch`."""
    names = rule.get("resourceNames", ())
    only = f", only {_code(names)}" if names else ""
    pairs = product(rule["resources"], rule["apiGroups"])
    return _code(f"{resource}.{group}".rstrip(".") for resource, group in pairs) + only


def _code(words: Any) -> str:
    return ", ".join(f"`{word}`" for word in words)
