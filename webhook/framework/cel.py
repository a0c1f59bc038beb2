"""CEL expressions about a pod, for a plugin's `match`.

Each path is tested with `has()` at every level, because an expression that fails counts as a
failed call of the webhook.
"""

from collections.abc import Iterable

POD = "object"
"""The pod under review, in CEL."""
MAX_ITEMS = 100
"""Of longer lists, no item is tested; a pod that Holdfast serves has no more gates.

The time that the API server's CEL takes grows with the square of their number, to many seconds.
"""


def has_annotation(keys: Iterable[str], pod: str) -> str:
    """Return an expression: the pod has at least one of these annotations."""
    annotations = f"{pod}.metadata.annotations"
    tests = " || ".join(f"{string(key)} in {annotations}" for key in keys)
    return f"{_present(annotations)} && ({tests})" if tests else "false"


def has_gate(name: str, pod: str) -> str:
    """Return an expression: the pod has this scheduling gate, and at most MAX_ITEMS of them."""
    gates = f"{pod}.spec.schedulingGates"
    test = f"{gates}.exists(one, one.name == {string(name)})"
    return f"{_present(gates)} && {gates}.size() <= {MAX_ITEMS} && {test}"


def optional(path: str) -> str:
    """Return an expression: a path of which any level may be absent."""
    return path.replace(".", ".?")


def has_controller(group: str, kind: str, pod: str) -> str:
    """Return an expression: the pod's controller is, or may be, of this kind, in any version."""
    owners = f"{pod}.metadata.ownerReferences"
    test = (
        f"has(one.controller) && one.controller && one.kind == {string(kind)}"
        f" && one.apiVersion.startsWith({string(group + '/')})"
    )
    return f"{_present(owners)} && {may_have(owners, test)}"


def may_have(path: str, test: str, item: str = "one") -> str:
    """Return an expression: an item of a list passes a test, or the list is too long to look."""
    return f"({path}.size() > {MAX_ITEMS} || {path}.exists({item}, {test}))"


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
