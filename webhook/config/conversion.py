"""Convert parts of the configuration to their types, with errors that propose a fix. Pure."""

import difflib
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.model import messages

T = TypeVar("T")

_SEE_REFERENCE = "see docs/reference/configuration.md"


def converted(value: Any, kind: type[T], where: str, *, joint: str = ".") -> T:
    """Convert a value of the file to its type. Raises ConfigurationError, which names its path."""
    try:
        return msgspec.convert(value, kind, strict=True)
    except (msgspec.ValidationError, RecursionError) as exc:
        text, _, path = str(exc).partition(" - at `$")
        path = path.strip(".`")
        place = f"{where}{joint}{path}" if path else where
        raise ConfigurationError(f"{place}: {_with_fix(text, kind, path)}") from None


def _with_fix(text: str, kind: type[Any], path: str) -> str:
    _, unknown, name = text.partition("unknown field ")
    schema = msgspec.json.schema(kind)
    if not unknown:
        values = _part(schema, path).get("enum", ()) if "enum" in text else ()
        accepted = [str(value) or '""' for value in values]  # as they are written in the file
        fix = f"use {' or '.join(accepted)}" if accepted else _SEE_REFERENCE
        return f"{messages.shorten(text)}: {fix}"
    name = name.strip("`")
    fields = sorted(_part(schema, path).get("properties", {}))  # as they are written in the file
    matches = difflib.get_close_matches(name, fields, n=2, cutoff=0.5)
    advice = f"use {', '.join(fields)}" if fields else _SEE_REFERENCE
    fix = f"did you mean {' or '.join(matches)}?" if matches else advice
    return f"unknown field {name!r:.60}: {fix}"


def _part(schema: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the schema of the part at a path; empty if it has none."""
    part = _resolved(schema, schema)
    for step in re.findall(r"\w+", path):
        part = part.get("items" if step.isdigit() else "properties", {})
        part = _resolved(part if step.isdigit() else part.get(step, {}), schema)
    return part


def _resolved(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part that a reference points to, even if the part may be null."""
    reference = next(
        (option for option in (part, *part.get("anyOf", ())) if "$ref" in option), None
    )
    if reference is None:
        return part
    target: Mapping[str, Any] = schema["$defs"][reference["$ref"].rpartition("/")[2]]
    return target
