"""CEL expressions about a pod, for a plugin's `match`.

Each path is tested with `has()` at every level, because an expression that fails counts as a
failed call of the webhook.
"""

from collections.abc import Iterable

POD = "object"
"""The pod under review, in CEL."""


def has_annotation(keys: Iterable[str], pod: str) -> str:
    """Return an expression: the pod has at least one of these annotations."""
    annotations = f"{pod}.metadata.annotations"
    tests = " || ".join(f"{string(key)} in {annotations}" for key in keys)
    return f"{_present(annotations)} && ({tests})" if tests else "false"


def has_gate(name: str, pod: str) -> str:
    """Return an expression: the pod has this scheduling gate."""
    gates = f"{pod}.spec.schedulingGates"
    return f"{_present(gates)} && {gates}.exists(one, one.name == {string(name)})"


def optional(path: str) -> str:
    """Return an expression: a path of which any level may be absent."""
    return path.replace(".", ".?")


def has_controller(group: str, kind: str, pod: str) -> str:
    """Return an expression: the pod's controller is of this kind, in any version."""
    owners = f"{pod}.metadata.ownerReferences"
    return (
        f"{_present(owners)} && {owners}.exists(owner, has(owner.controller) && owner.controller"
        f" && owner.kind == {string(kind)}"
        f" && owner.apiVersion.startsWith({string(group + '/')}))"
    )


def strings(texts: Iterable[str]) -> str:
    """Write texts as a CEL list."""
    return f"[{', '.join(map(string, texts))}]"


def string(text: str) -> str:
    """Write a text as a CEL string literal."""
    escaped = "".join(
        f"\\{char}" if char in "\\'" else char if char.isprintable() else f"\\U{ord(char):08x}"
        for char in text
    )
    return f"'{escaped}'"


def _present(path: str) -> str:
    """Test a path level by level; `object`, and its `metadata` and `spec`, always exist."""
    steps = path.split(".")
    return " && ".join(f"has({'.'.join(steps[:end])})" for end in range(3, len(steps) + 1))
