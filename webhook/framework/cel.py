"""CEL expressions about a pod, for a plugin's `match`.

Every level of a path is tested with `has()`, because an evaluation error counts as a failed call of
the webhook.
"""

from collections.abc import Iterable

POD = "object"
"""The pod under review, in CEL."""
MAX_ITEMS = 100
"""Maximum length of a list whose items are tested; pods that Holdfast serves have no more gates.

The evaluation time in the API server grows with the square of the length, up to many seconds.
"""


def has_annotation(keys: Iterable[str], pod: str) -> str:
    """Return an expression that is true if the pod has at least one of these annotations."""
    annotations = f"{pod}.metadata.annotations"
    tests = " || ".join(f"{string(key)} in {annotations}" for key in keys)
    return f"{_present(annotations)} && ({tests})" if tests else "false"


def has_gate(name: str, pod: str) -> str:
    """Return an expression that is true if the pod has this gate, and at most MAX_ITEMS gates."""
    gates = f"{pod}.spec.schedulingGates"
    test = f"{gates}.exists(one, one.name == {string(name)})"
    return f"{_present(gates)} && {gates}.size() <= {MAX_ITEMS} && {test}"


def optional(path: str) -> str:
    """Return the path with optional field selection, which allows any level to be absent."""
    return path.replace(".", ".?")


def has_controller(group: str, kind: str, pod: str) -> str:
    """Return an expression that is true if the pod's controller is of this kind, in any version.

    It is also true if the list of owners is too long to test.
    """
    owners = f"{pod}.metadata.ownerReferences"
    test = (
        f"has(one.controller) && one.controller && one.kind == {string(kind)}"
        f" && one.apiVersion.startsWith({string(group + '/')})"
    )
    return f"{_present(owners)} && {may_have(owners, test)}"


def may_have(path: str, test: str, item: str = "one") -> str:
    """Return an expression that is true if an item passes the test, or the list is too long."""
    return f"({path}.size() > {MAX_ITEMS} || {path}.exists({item}, {test}))"


def strings(texts: Iterable[str]) -> str:
    """Return a CEL list literal of these strings."""
    return f"[{', '.join(map(string, texts))}]"


def string(text: str) -> str:
    """Return a CEL string literal."""
    escaped = "".join(
        f"\\{char}" if char in "\\'" else char if char.isprintable() else f"\\U{ord(char):08x}"
        for char in text
    )
    return f"'{escaped}'"


def _present(path: str) -> str:
    """Return an expression that is true if every level of a path exists.

    `object` and its `metadata` and `spec` always exist, and are not tested.
    """
    steps = path.split(".")
    return " && ".join(f"has({'.'.join(steps[:end])})" for end in range(3, len(steps) + 1))
