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
    text = path.strip().removeprefix("{").removesuffix("}").strip()
    rest = text.removeprefix("$").removeprefix("@")
    if rest and rest[0] not in ".[":
        rest = f".{rest}"
    found, at = [document], 0
    while at < len(rest) and rest != ".":
        match = _STEP.match(rest, at)
        if match is None:
            raise InvalidValueError(f"invalid JSONPath {messages.quote(path)}: {ACCEPTED}")
        found = [each for value in found for each in _step(value, match)]
        at = match.end()
    return found


def render(template: str, document: Any) -> str:
    """Fill in a template as `kubectl -o jsonpath` does. Raises InvalidValueError."""
    parts = [*_PART.finditer(template)]
    if "".join(part[0] for part in parts) != template:
        raise InvalidValueError(f"invalid JSONPath {messages.quote(template)}: {ACCEPTED}")
    return _rendered(parts, document, document)


def text(values: Sequence[Any]) -> str:
    """Format values: text unchanged, null as nothing, and everything else as JSON."""
    return " ".join(
        one if isinstance(one, str) else "" if one is None else json.dumps(one) for one in values
    )


def _rendered(parts: Sequence[re.Match[str]], document: Any, current: Any) -> str:
    made, rest = "", [*parts]
    while rest:
        part = rest.pop(0)
        expression = part["expression"]
        if expression is None:
            made += part["plain"] or json.loads(f'"{part["text"] or ""}"')
        elif expression.startswith("range "):
            inner = [*_until_end(rest)]
            values = find(expression.removeprefix("range "), document)
            made += "".join(_rendered(inner, document, value) for value in values)
        elif expression != "end":
            made += text(find(expression, document if expression[:1] == "$" else current))
    return made


def _until_end(rest: list[re.Match[str]]) -> Iterator[re.Match[str]]:
    """Remove and yield the parts of a range, up to its end."""
    while rest and (part := rest.pop(0))["expression"] != "end":
        yield part


def _step(value: Any, match: re.Match[str]) -> Sequence[Any]:
    key = match["key"] or (match["name"] or "").replace("\\", "")
    if key and key != "*":
        return [value[key]] if isinstance(value, Mapping) and key in value else []
    items = [*value.values()] if isinstance(value, Mapping) else value
    if not isinstance(items, list):
        return []
    if match["index"]:
        at = int(match["index"])
        return [items[at]] if -len(items) <= at < len(items) else []
    if match["slice"]:
        first, last = (int(part) if part else None for part in match["slice"].split(":"))
        return items[first:last]
    return [one for one in items if _passes(one, match)] if match["inner"] else items


def _passes(item: Any, match: re.Match[str]) -> bool:
    values = find(match["inner"], item)
    if not match["test"] or not values:
        return bool(values) and not match["test"]
    written = match["value"].strip()
    wanted = written[1:-1] if written[:1] in "'\"" else json.loads(written)
    try:
        return _TESTS[match["test"]](values[0], wanted)
    except TypeError:
        return False  # not comparable, such as text and a number
