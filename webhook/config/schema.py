"""The JSON Schema of the configuration file, generated from the classes that parse it. Pure.

It has no external references, so editors can use it offline. Anything that it rejects is also
rejected at startup. Rules that no schema can express (two profiles with one name, requirements that
no node can meet) are checked at startup and by `holdfast check-config`.
"""

import ast
import inspect
import itertools
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.webhook.config.config import (
    ALL_PLUGINS,
    Configuration,
    PluginConfig,
    PluginName,
    PluginSet,
)
from holdfast.webhook.framework import arg_types
from holdfast.webhook.framework.plugin import Plugin

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Struct = type[msgspec.Struct]


def schema(registry: Mapping[str, type[Plugin]]) -> dict[str, Any]:
    """Build the schema of a file that may name these plugins."""
    kinds = with_parts([Configuration, *(plugin.args_type for plugin in registry.values())])
    references, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    names = {
        kind: reference["$ref"].rpartition("/")[2]
        for kind, reference in zip(kinds, references, strict=True)
    }
    for kind, name in names.items():
        _describe(components[name], kind)
    _name_plugins(components, names, registry)
    root = components.pop(names[Configuration])
    root["required"] = ["apiVersion", "kind"]
    return {"$schema": DIALECT, **root, "$defs": dict(sorted(components.items()))}


def with_parts(kinds: Iterable[Struct]) -> list[Struct]:
    """Return these Structs and their parts, without duplicates, in the order of the fields."""
    return list(dict.fromkeys(part for kind in kinds for part in _within(kind)))


def _within(kind: Any) -> Iterator[Struct]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from _within(field.type)
    for inner in typing.get_args(kind):
        yield from _within(inner)


def field_docs(kind: Struct) -> dict[str, str]:
    """Return the docstrings under a class's fields; empty if its source is not available."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, SyntaxError):
        return {}
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    return {
        statement.target.id: " ".join(str(following.value.value).split())
        for statement, following in itertools.pairwise(body)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    }


def _describe(component: dict[str, Any], kind: Struct) -> None:
    docs = field_docs(kind)
    component["description"] = " ".join(component.get("description", "").split())
    for field in msgspec.structs.fields(kind):
        if field.name in docs:
            component["properties"][field.encode_name]["description"] = docs[field.name]


def _name_plugins(
    components: Mapping[str, Any], names: Mapping[Struct, str], registry: Mapping[str, type[Plugin]]
) -> None:
    properties = components[names[PluginSet]]["properties"]
    for field, accepted in (("enabled", [*registry]), ("disabled", [*registry, ALL_PLUGINS])):
        item = {"$ref": f"#/$defs/{names[PluginName]}"}
        properties[field]["items"] = item | {"properties": {"name": {"enum": accepted}}}
    config = components[names[PluginConfig]]
    config["properties"]["name"]["enum"] = [*registry]
    config["allOf"] = [
        arg_types.when(arg_types.of(name={"const": name}), _takes(plugin.args_type, names))
        for name, plugin in registry.items()
    ]


def _takes(kind: Struct, names: Mapping[Struct, str]) -> dict[str, Any]:
    arguments = arg_types.of(args={"$ref": f"#/$defs/{names[kind]}"})
    is_required = any(field.required for field in msgspec.structs.fields(kind))
    return arguments if is_required else {"properties": arguments["properties"]}
