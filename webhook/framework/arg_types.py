"""Types of plugin arguments, with keywords for the configuration's JSON Schema. Pure.

Editors use the schema to show mistakes. Nothing here decides what is accepted: the checks at
startup do, with better messages. Patterns use the syntax that Python and ECMAScript share.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from holdfast.webhook.errors import ConfigurationError, InvalidValueError

T = TypeVar("T")

_NAME = "[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DNS_PART = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_SUBDOMAIN = rf"{_DNS_PART}(?:\.{_DNS_PART})*"


def parsed(parse: Callable[[str], T], text: str, where: str) -> T:
    """Parse a text of the configuration. Raises ConfigurationError, which names the path in it."""
    try:
        return parse(text)
    except InvalidValueError as exc:
        raise ConfigurationError(f"{where}: {exc}") from None


def shaped(**keywords: Any) -> Meta:
    """Annotate a type with keywords of its schema."""
    return Meta(extra_json_schema=keywords)


def of(**properties: Any) -> dict[str, Any]:
    """Return a schema: an object with all of these properties."""
    return {"required": list(properties), "properties": properties}


def when(condition: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    """Return a schema: `then` applies if the condition does."""
    return {"if": condition, "then": then}


Key = Annotated[str, shaped(pattern=f"^(?:{_DNS_SUBDOMAIN}/)?{_NAME}$")]
"""The key of a label, an annotation or a taint."""
KeyOrNone = Annotated[str, shaped(pattern=f"^(?:(?:{_DNS_SUBDOMAIN}/)?{_NAME})?$")]
LabelValue = Annotated[str, shaped(pattern=f"^(?:{_NAME})?$")]
RuleName = Annotated[str, shaped(pattern=f"^{_NAME}$")]
Namespace = Annotated[str, shaped(pattern="^[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?$")]
Delay = Annotated[
    str,
    shaped(pattern=r"^[+-]?(?:[0-9]+|(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ms|h|m|s))+)$"),
]
"""Whole seconds, or a duration."""
NotEmpty = Annotated[str, shaped(minLength=1)]

SOME = shaped(minItems=1)
SOME_ONCE = shaped(minItems=1, uniqueItems=True)
ONCE = shaped(uniqueItems=True)


_TEXT, _GIVEN = {"type": "string"}, {"not": {"type": "null"}}

WHEN = shaped(
    oneOf=[of(annotation=_TEXT), of(label=_TEXT)],
    allOf=[{"oneOf": [of(**{name: _GIVEN}) for name in ("equals", "in", "exists")]}],
)
"""Exactly one of annotation and label, and exactly one test."""

REQUIREMENT = shaped(
    allOf=[
        when(of(operator={"enum": ["In", "NotIn"]}), of(values={"minItems": 1})),
        when(
            of(operator={"enum": ["Exists", "DoesNotExist"]}),
            {"properties": {"values": {"maxItems": 0}}},
        ),
        when(
            of(operator={"enum": ["Gt", "Lt"]}),
            of(values={"minItems": 1, "maxItems": 1, "items": {"pattern": "^[0-9]{1,63}$"}}),
        ),
    ]
)
"""The number of values depends on the operator."""

TOLERATION = shaped(
    allOf=[
        when({"not": of(key={"minLength": 1})}, of(operator={"const": "Exists"})),
        when(of(operator={"const": "Exists"}), {"properties": {"value": {"maxLength": 0}}}),
        when(of(tolerationSeconds={"type": "integer"}), of(effect={"const": "NoExecute"})),
    ]
)
"""The API server's own rules."""

RULE = shaped(
    anyOf=[
        *(of(**{name: {"minItems": 1}}) for name in ("require", "prefer", "tolerations")),
        of(nodeSelector={"minProperties": 1}),
        of(schedulerName={"minLength": 1}),
    ],
    **when(
        of(resolveAtRelease={"const": True}),
        {"properties": {"schedulerName": {"maxLength": 0}, "tolerations": {"maxItems": 0}}},
    ),
)
"""A rule has an effect, and one that is possible at release if it resolves there."""
