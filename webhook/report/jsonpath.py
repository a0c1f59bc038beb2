"""A subset of kubectl's JSONPath: paths, filters, ranges and templates. Pure."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.model import messages

ACCEPTED = 'use a path such as "{.items[*].metadata.name}", with [N], [A:B], [?(@.x=="y")] or range'

_STEP = re.compile(
    r"""\.(?P<name>\*|(?:\\.|[\w/-])+)
    |\[(?P<all>\*)\]
    |\[(?P<index>-?\d+)\]
    |\[(?P<slice>-?\d*:-?\d*)\]
    |\[(?P<quote>['"])(?P<key>.+?)(?P=quote)\]
    |\[\?\(@(?P<inner>(?:\.[\w-]+)+)\s*(?:(?P<test>==|!=|<=|>=|<|>)\s*(?P<value>[^)]+?)\s*)?\)\]""",
    re.VERBOSE,
)
_PART = re.compile(
    r'\{\s*(?:"(?P<text>(?:\\.|[^"\\])*)"|(?P<expression>[^{}]*?))\s*\}|(?P<plain>[^{]+)'
)
_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def find(path: str, document: Any) -> list[Any]:
    """Return the values at a path, with or without braces. Raises InvalidValueError."""
    expression = path.strip().removeprefix("{").removesuffix("}").strip()
    steps = expression.removeprefix("$").removeprefix("@")
    if steps and steps[0] not in ".[":
        steps = f".{steps}"
    values, position = [document], 0
    while position < len(steps) and steps != ".":
        match = _STEP.match(steps, position)
        if match is None:
            raise InvalidValueError(f"invalid JSONPath {messages.quote(path)}: {ACCEPTED}")
        values = [child for value in values for child in _step(value, match)]
        position = match.end()
    return values


def render(template: str, document: Any) -> str:
    """Fill in a template as `kubectl -o jsonpath` does. Raises InvalidValueError."""
    parts = [*_PART.finditer(template)]
    if "".join(part[0] for part in parts) != template:
        raise InvalidValueError(f"invalid JSONPath {messages.quote(template)}: {ACCEPTED}")
    return _rendered(parts, document, document)


def text(values: Sequence[Any]) -> str:
    """Format values: text unchanged, null as nothing, and everything else as JSON."""
    return " ".join(
        value if isinstance(value, str) else "" if value is None else json.dumps(value)
        for value in values
    )


def _rendered(parts: Sequence[re.Match[str]], document: Any, current: Any) -> str:
    output, pending = "", [*parts]
    while pending:
        part = pending.pop(0)
        expression = part["expression"]
        if expression is None:
            output += part["plain"] or json.loads(f'"{part["text"] or ""}"')
        elif expression.startswith("range "):
            inner = [*_until_end(pending)]
            values = find(expression.removeprefix("range "), document)
            output += "".join(_rendered(inner, document, value) for value in values)
        elif expression != "end":
            output += text(find(expression, document if expression[:1] == "$" else current))
    return output


def _until_end(parts: list[re.Match[str]]) -> Iterator[re.Match[str]]:
    """Remove and yield the parts of a range, up to its end."""
    while parts and (part := parts.pop(0))["expression"] != "end":
        yield part


def _step(value: Any, match: re.Match[str]) -> Sequence[Any]:
    key = match["key"] or (match["name"] or "").replace("\\", "")
    if key and key != "*":
        return [value[key]] if isinstance(value, Mapping) and key in value else []
    items = [*value.values()] if isinstance(value, Mapping) else value
    if not isinstance(items, list):
        return []
    if match["index"]:
        index = int(match["index"])
        return [items[index]] if -len(items) <= index < len(items) else []
    if match["slice"]:
        first, last = (int(part) if part else None for part in match["slice"].split(":"))
        return items[first:last]
    return [item for item in items if _passes(item, match)] if match["inner"] else items


def _passes(item: Any, match: re.Match[str]) -> bool:
    values = find(match["inner"], item)
    if not match["test"] or not values:
        return bool(values) and not match["test"]
    literal = match["value"].strip()
    expected = literal[1:-1] if literal[:1] in "'\"" else json.loads(literal)
    try:
        return _TESTS[match["test"]](values[0], expected)
    except TypeError:
        return False  # not comparable, such as text and a number
