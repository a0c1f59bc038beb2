"""`python -m docs.generate`: write the parts of the pages that come from the code and its tests.

Each part stands between two markers, `<!-- NAME:begin -->` and `<!-- NAME:end -->`. A unit test
holds the checked-in text to what is made here.
"""

from __future__ import annotations

import ast
import inspect
import logging
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import click
import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from docs import error_cases
from tests.unit.delay_values import DELAYS, INSTANTS, Refusal, Row
from webhook import cli, config, plugins, values
from webhook.metrics import ControllerMetrics, ServerMetrics

COMMAND = "python -m docs.generate"
ROOT = Path(__file__).resolve().parent
HELP_WIDTH = 80

FIELD_MEANINGS: Mapping[str, str] = {
    "Configuration.apiVersion": "The version of this format.",
    "Configuration.kind": "What the file is.",
    "Configuration.profiles": "The profiles. A `schedulerName` may stand in one of them only.",
    "ProfileConfig.schedulerName": "The pods that the profile serves, by their "
    "`spec.schedulerName`; `*` serves all that no other profile names.",
    "ProfileConfig.plugins": "Which plugins run beside, or instead of, the default ones.",
    "ProfileConfig.pluginConfig": "The arguments of the plugins, each named at most once.",
    "PluginSet.enabled": "Plugins that run behind the default ones, in this order.",
    "PluginSet.disabled": "Default plugins that do not run; `*` names them all.",
    "PluginName.name": "The plugin's name.",
    "PluginConfig.name": "The plugin's name.",
    "PluginConfig.args": "Its arguments: see the plugin's own table.",
}
"""What a field means where the code has no docstring under it."""


# --- what users write --------------------------------------------------------------------------


def delays() -> str:
    """Make the table of delays from the tests' own."""
    return _values(DELAYS, lambda ms: values.canonical_delay(ms) if ms else "holds nothing")


def instants() -> str:
    """Make the table of times from the tests' own."""
    return _values(INSTANTS, values.canonical_instant)


def _values(rows: Iterable[Row], accepted: Callable[[int], str]) -> str:
    return _table(
        ("value", "outcome", "what it shows"),
        (
            (
                f"`{values.shown(row.value)}`",
                f"refused: {row.outcome}"
                if isinstance(row.outcome, Refusal)
                else accepted(row.outcome),
                row.note,
            )
            for row in rows
        ),
    )


# --- configuration -----------------------------------------------------------------------------


def fields() -> str:
    """Make the table of each part of the configuration file, from its types."""
    kinds: list[type[Any]] = [config.Configuration, *_inner(config.Configuration)]
    return "\n\n".join(f"### {kind.__name__}\n\n{_fields(kind)}" for kind in dict.fromkeys(kinds))


def arguments() -> str:
    """Make the table of each built-in plugin's arguments, from their types."""
    return "\n\n".join(
        f"### {plugin.name}\n\n{_fields(plugin.args_type)}" for plugin in plugins.BUILT_IN
    )


def _fields(kind: type[Any]) -> str:
    described = _docstrings(kind)
    rows = []
    for each in msgspec.structs.fields(kind):
        name = f"{kind.__name__}.{each.encode_name}"
        meaning = described.get(each.name) or FIELD_MEANINGS.get(name)
        if meaning is None:
            raise LookupError(f"{name} has no meaning: write a docstring under it in {kind}")
        rows.append((f"`{each.encode_name}`", _type(each.type), _default(each), meaning))
    return _table(("field", "type", "default", "meaning"), rows)


def _inner(kind: type[Any]) -> Iterator[type[Any]]:
    """Give the parts of a part, each once, in the order of the file."""
    for each in msgspec.structs.fields(kind):
        for part in (each.type, *typing.get_args(each.type)):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield part
                yield from _inner(part)


def _type(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in {list, tuple}:
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return "mapping"
    return {str: "text", int: "whole number", bool: "`true` or `false`"}.get(kind) or kind.__name__


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    text = msgspec.json.encode(value).decode()
    return {'""': "empty", "[]": "empty", "{}": "empty"}.get(text, f"`{text}`")


def _docstrings(kind: type[Any]) -> dict[str, str]:
    """Read the docstrings under a class's fields."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)  # noqa: S101 - the source of a class
    found = {}
    for line, below in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            found[line.target.id] = " ".join(str(below.value.value).split())
    return found


# --- the command -------------------------------------------------------------------------------


def commands() -> str:
    """Make the help of `holdfast` and of each of its commands."""
    root = _context(cli.cli, "holdfast", None)
    parts = [_help("holdfast", root)]
    for name in sorted(cli.cli.commands):
        command = cli.cli.commands[name]
        parts.append(_help(f"holdfast {name}", _context(command, name, root)))
    return "\n\n".join(parts)


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    width = {"terminal_width": HELP_WIDTH, "max_content_width": HELP_WIDTH}
    return click.Context(
        command, info_name=name, parent=parent, **{**command.context_settings, **width}
    )


def _help(title: str, context: click.Context) -> str:
    text = "\n".join(line.rstrip() for line in context.get_help().splitlines())
    return f"## {title}\n\n```text\n{text}\n```"


# --- metrics -----------------------------------------------------------------------------------

REGISTRIES: Mapping[str, Callable[[], CollectorRegistry]] = MappingProxyType(
    {
        "Admission server": lambda: ServerMetrics().registry,
        "Controller": lambda: ControllerMetrics().registry,
    }
)


def metrics() -> str:
    """Make the table of the metrics of each registry."""
    parts = []
    for title, registry in REGISTRIES.items():
        rows = [
            (f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels) or "none", meaning)
            for name, kind, labels, meaning in described_metrics(registry())
        ]
        table = _table(("name", "type", "labels", "meaning"), rows)
        parts.append(f"### {title}\n\n{table}")
    return "\n\n".join(parts)


def described_metrics(registry: CollectorRegistry) -> list[tuple[str, str, Sequence[str], str]]:
    """Give each metric's name as Prometheus has it, its type, its labels and its meaning."""
    suffix = {"counter": "_total", "info": "_info"}
    found = []
    # private, and the only way to metrics that have no sample yet
    for collector in list(registry._collector_to_names):
        assert isinstance(collector, MetricWrapperBase)  # noqa: S101 - all of ours are
        metric = next(iter(collector.describe()))
        labels = collector._labelnames
        name = metric.name + suffix.get(metric.type, "")
        found.append((name, metric.type, labels, metric.documentation))
    return found


# --- errors ------------------------------------------------------------------------------------


def errors() -> str:
    """Make the list of messages, each produced by the code that users meet."""
    parts = []
    for title, cases in error_cases.CASES.items():
        parts.append(f"## {title}\n\n" + "\n".join(error(case) for case in cases))
    return "\n\n".join(parts)


def error(case: error_cases.Case) -> str:
    """Make the entry of one message."""
    text = case.produce()
    text = f"`` {text} ``" if "`" in text else f"`{text}`"
    return f"- {text}<br>{case.cause}" + (f" **Cure:** {case.cure}" if case.cure else "")


# --- pages -------------------------------------------------------------------------------------

PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = MappingProxyType(
    {
        "reference/annotations.md": {"values": delays, "instants": instants},
        "reference/configuration.md": {"fields": fields, "arguments": arguments},
        "reference/cli.md": {"commands": commands},
        "reference/metrics.md": {"metrics": metrics},
        "reference/errors.md": {"errors": errors},
    }
)


def rendered(page: str) -> str:
    """Give a page's text with its generated parts as they have to be."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, make in PAGES[page].items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        found = re.search(f"{re.escape(begin)}\n.*?{re.escape(end)}", text, re.DOTALL)
        if found is None:
            raise LookupError(f"docs/{page} lacks the lines {begin} and {end}; put them back")
        part = f"{begin}\n\n{make()}\n\n{end}"
        text = text[: found.start()] + part + text[found.end() :]
    return text


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


@click.command()
def main() -> None:
    """Write the generated parts of all pages."""
    logging.disable()  # some messages are produced by what a server would log
    for page in PAGES:
        text = rendered(page)
        path = ROOT / page
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            click.echo(f"docs/{page}: written")


if __name__ == "__main__":
    main()
