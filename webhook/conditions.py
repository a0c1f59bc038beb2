"""Who is sent to the webhooks: CEL expressions, made from what the plugins say. Pure.

A condition has `has()` at each level, since an expression that fails counts as a failed call. It
is tested to agree with the plugins' own predicates in Python.
"""

from __future__ import annotations

from collections.abc import Iterable

from webhook import holds
from webhook.framework import Plugin
from webhook.pipeline import Pipeline

POD = "object"
"""The pod under review, in CEL."""


def asks(pipeline: Pipeline, pod: str = POD) -> str:
    """Make the expression that is true for every pod, or pod template, that has to be seen."""
    expressions = [plugin.match(pod) for plugin in _plugins(pipeline)]
    if pod == POD:
        expressions += [_own(f"{pod}.spec.schedulingGates", "one.name")]
        expressions += [_own(f"{pod}.metadata.finalizers", "one")]
    return " || ".join(f"({expression})" for expression in dict.fromkeys(expressions)) or "false"


def changes(pipeline: Pipeline, pod: str = POD) -> str:
    """Make the expression that is true for an update that has to be seen: of our keys alone."""
    keys = dict.fromkeys(key for plugin in _plugins(pipeline) for key in plugin.keys)
    tests = [f"{_annotation(pod, key)} != {_annotation(_old(pod), key)}" for key in keys]
    if pod == POD:
        before = f"{_old(pod)}.metadata.?finalizers.orValue([])"
        tests.append(
            f"{pod}.metadata.?finalizers.orValue([])"
            f".exists(one, one.startsWith('{holds.OWN_PREFIX}') && !(one in {before}))"
        )
    return " || ".join(tests) or "false"


def has_annotation(keys: Iterable[str], pod: str) -> str:
    """Make an expression: the pod has at least one of these annotations."""
    annotations = f"{pod}.metadata.annotations"
    tests = " || ".join(f"{string(key)} in {annotations}" for key in keys)
    return f"{_present(annotations)} && ({tests})"


def has_entry(field: str, key: str, pod: str, values: Iterable[str] | None = None) -> str:
    """Make an expression: the pod's `annotations` or `labels` have this key, with such a value.

    None as the values stands for any value.
    """
    entries = f"{pod}.metadata.{field}"
    test = f"{_present(entries)} && {string(key)} in {entries}"
    if values is None:
        return test
    return f"{test} && {entries}[{string(key)}] in {strings(values)}"


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
    """Test a path level by level; `object`, and its `metadata` and `spec`, are always there."""
    steps = path.split(".")
    return " && ".join(f"has({'.'.join(steps[:end])})" for end in range(3, len(steps) + 1))


def _annotation(pod: str, key: str) -> str:
    first, *rest = f"{pod}.metadata.annotations".split(".")
    return first + "".join(f".?{step}" for step in rest) + f"[?{string(key)}]"


def _old(pod: str) -> str:
    return "oldObject" + pod.removeprefix(POD)


def _own(path: str, name: str) -> str:
    return f"has({path}) && {path}.exists(one, {name}.startsWith('{holds.OWN_PREFIX}'))"


def _plugins(pipeline: Pipeline) -> list[Plugin]:
    return [plugin for profile in pipeline.profiles.values() for plugin in profile.plugins]
