"""Types of plugin arguments, with keywords for the configuration's JSON Schema. Pure.

Editors use the schema to highlight mistakes. It does not decide which values are valid: the checks
at startup do, with better messages. Patterns use only syntax that Python and ECMAScript share.
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
    """Return the parsed value. Raises ConfigurationError, which starts with the path `where`."""
    try:
        return parse(text)
    except InvalidValueError as exc:
        raise ConfigurationError(f"{where}: {exc}") from None


def shaped(**keywords: Any) -> Meta:
    """Return type metadata that adds these keywords to the JSON Schema."""
    return Meta(extra_json_schema=keywords)


def of(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that must have all of these properties."""
    return {"required": list(properties), "properties": properties}


def when(condition: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that applies `then` to values that match the condition."""
    return {"if": condition, "then": then}


Key = Annotated[str, shaped(pattern=f"^(?:{_DNS_SUBDOMAIN}/)?{_NAME}$")]
"""A label, annotation or taint key."""
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
"""Requires exactly one of annotation and label, and exactly one test."""

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
"""The same rules as the API server's."""

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
"""Requires an effect. With resolveAtRelease, excludes schedulerName and tolerations."""
