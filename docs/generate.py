"""`python -m docs.generate`: write the parts of the pages that come from the code and its tests.

Each part stands between two markers, `<!-- NAME:begin -->` and `<!-- NAME:end -->`. A unit test
holds the checked-in text to what is made here.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, Union

import click
import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from docs import error_cases, fault_tables
from docs import rights as manifests
from docs.tables import table
from tests.e2e.needs import NEEDS
from tests.unit.delay_values import DELAYS, INSTANTS, Refusal, Row
from webhook import cli, config, plugins, schema, values
from webhook.metrics import ControllerMetrics, ServerMetrics

COMMAND = "python -m docs.generate"
ROOT = Path(__file__).resolve().parent
HELP_WIDTH = 80


# --- what users write --------------------------------------------------------------------------


def delays() -> str:
    """Make the table of delays from the tests' own."""
    return _values(DELAYS, lambda ms: values.canonical_delay(ms) if ms else "holds nothing")


def instants() -> str:
    """Make the table of times from the tests' own."""
    return _values(INSTANTS, values.canonical_instant)


def _values(rows: Iterable[Row], accepted: Callable[[int], str]) -> str:
    return table(
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
    kinds = schema.with_parts([config.Configuration])
    return "\n\n".join(f"### {kind.__name__}\n\n{_fields(kind)}" for kind in kinds)


def arguments() -> str:
    """Make the tables of each built-in plugin's arguments and of what is within them."""
    parts = []
    for plugin in plugins.BUILT_IN:
        parts.append(f"### {plugin.name}\n\n{_fields(plugin.args_type)}")
        inner = schema.with_parts([plugin.args_type])[1:]
        parts += [f"#### {kind.__name__}\n\n{_described(kind)}" for kind in inner]
    return "\n\n".join(parts)


def schema_file() -> str:
    """Make the JSON Schema of a file that names built-in plugins alone."""
    return json.dumps(schema.schema(plugins.registry(())), indent=2) + "\n"


def _described(kind: schema.Struct) -> str:
    return f"{inspect.getdoc(kind)}\n\n{_fields(kind)}"


def _fields(kind: schema.Struct) -> str:
    described = schema.field_docs(kind)
    rows = []
    for each in msgspec.structs.fields(kind):
        meaning = described.get(each.name)
        if meaning is None:
            raise LookupError(f"{each.name} has no meaning: write a docstring under it in {kind}")
        rows.append((f"`{each.encode_name}`", _type(each.type), _default(each), meaning))
    return table(("field", "type", "default", "meaning"), rows)


def _type(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return " or ".join(f"`{value}`" if value else "empty" for value in inner)
    if origin is Annotated:
        return _type(inner[0])
    if origin in {Union, UnionType}:
        return " or ".join(_type(one) for one in inner if one is not type(None))
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
    return {'""': "empty", "[]": "empty", "{}": "empty", "null": "none"}.get(text, f"`{text}`")


# --- the command -------------------------------------------------------------------------------


def commands() -> str:
    """Make the help of `holdfast` and of each of its commands."""
    return "\n\n".join(_helps("holdfast", _context(cli.cli, "holdfast", None)))


def _helps(title: str, context: click.Context) -> Iterator[str]:
    """Give the help of a command, then those of the commands in it."""
    yield _help(title, context)
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None  # noqa: S101 - it is listed
            yield from _helps(f"{title} {name}", _context(command, name, context))


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


INFORMATION: Mapping[str, Sequence[str]] = MappingProxyType(
    {"holdfast_build": ("version",), "holdfast_configuration": ("digest",)}
)
"""The labels of what is information alone, which its metrics have only when they are set."""


def metrics() -> str:
    """Make the table of the metrics of each registry."""
    parts = []
    for title, registry in REGISTRIES.items():
        rows = [
            (f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels) or "none", meaning)
            for name, kind, labels, meaning in described_metrics(registry())
        ]
        made = table(("name", "type", "labels", "meaning"), rows)
        parts.append(f"### {title}\n\n{made}")
    return "\n\n".join(parts)


def described_metrics(registry: CollectorRegistry) -> list[tuple[str, str, Sequence[str], str]]:
    """Give each metric's name as Prometheus has it, its type, its labels and its meaning."""
    suffix = {"counter": "_total", "info": "_info"}
    found = []
    # private, and the only way to metrics that have no sample yet
    for collector in list(registry._collector_to_names):
        assert isinstance(collector, MetricWrapperBase)  # noqa: S101 - all of ours are
        metric = next(iter(collector.describe()))
        labels = INFORMATION.get(metric.name, collector._labelnames)
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
    why = f"<br>{case.cause}" if case.cause else ""
    return f"- {text}{why}" + (f" **Cure:** {case.cure}" if case.cure else "")


# --- rights ------------------------------------------------------------------------------------


def rights() -> str:
    """Make the table of each role that the manifests have."""
    head = ("API group", "resources", "verbs", "what for")
    return "\n\n".join(f"### {title}\n\n{table(head, rows)}" for title, rows in manifests.roles())


def needs() -> str:
    """Make the table of what goes wrong without each right, from the tests that take it away."""
    rows = [(f"`{name}`", need.without) for name, need in NEEDS.items()]
    return table(("right", "without it"), rows)


# --- pages -------------------------------------------------------------------------------------

PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = MappingProxyType(
    {
        "reference/annotations.md": {"values": delays, "instants": instants},
        "reference/configuration.md": {"fields": fields, "arguments": arguments},
        "reference/cli.md": {"commands": commands},
        "reference/metrics.md": {"metrics": metrics},
        "reference/errors.md": {"errors": errors},
        "explanation/failure-modes.md": {
            "faults": fault_tables.faults,
            "alone": fault_tables.alone,
            "breaks": fault_tables.breaks,
            "runs": fault_tables.runs,
            "near": fault_tables.near,
        },
        "reference/rights.md": {"rights": rights, "needs": needs},
    }
)


FILES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {"reference/configuration.schema.json": schema_file}
)
"""Files that are made as a whole."""


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


@click.command()
def main() -> None:
    """Write the generated parts of all pages."""
    logging.disable()  # some messages are produced by what a server would log
    made = {page: rendered(page) for page in PAGES} | {file: FILES[file]() for file in FILES}
    for name, text in made.items():
        path = ROOT / name
        if not path.exists() or text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            click.echo(f"docs/{name}: written")


if __name__ == "__main__":
    main()
