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
from datetime import datetime
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, Union

import click
import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from docs import error_cases
from docs import rights as manifests
from tests.e2e.needs import NEEDS
from tests.faults import records
from tests.faults.broken import BREAKS
from tests.faults.judge import SOAK
from tests.faults.scene import Fault
from tests.faults.table import FAULTS
from tests.unit.delay_values import DELAYS, INSTANTS, Refusal, Row
from webhook import cli, config, plugins, schema, values
from webhook.metrics import ControllerMetrics, ServerMetrics

COMMAND = "python -m docs.generate"
ROOT = Path(__file__).resolve().parent
HELP_WIDTH = 80
NEAR = 0.5
"""The share of what a check allows from which on its figures are told."""


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
    return _table(("field", "type", "default", "meaning"), rows)


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


# --- faults ------------------------------------------------------------------------------------


def faults() -> str:
    """Make the table of the faults, from the rows that are run."""
    rows = [
        (f"`{each.name}`", _first_line(each.act), each.means, _failing(each)) for each in FAULTS
    ]
    return _table(("fault", "what is done", "what then", "creations meanwhile"), rows)


def _failing(fault: Fault) -> str:
    if fault.group == SOAK:
        return "as with what comes"
    if fault.outage:
        return "may fail"
    return "may be refused where they ask" if fault.refuses else "none fails"


def alone() -> str:
    """Name the rows that have the machine for themselves."""
    return "\n".join(f"- `{each.name}`" for each in FAULTS if each.alone)


def runs() -> str:
    """Make the table of the runs of all rows whose figures are kept."""
    kept = records.read_all()
    if not kept:
        return "None yet on the product as it is."
    asked = ("seed", "begun", "product")
    counted = ("rows run", "failed", "pods", "of them delayed", "VMs restarted")
    found = ("early", "stuck", "astray", "latest release")
    rows = [
        (
            str(each.seed),
            f"{datetime.fromisoformat(each.began):%Y-%m-%d %H:%M}",
            f"`{each.product}`",
            f"{each.rows} of {len(FAULTS)}",
            ", ".join(f"`{name}`" for name in each.failed) or "none",
            f"{each.pods:,}",
            f"{each.delayed:,}",
            f"{each.restarts:,}",
            str(each.early),
            str(each.stuck),
            str(each.astray),
            f"{each.latest:.1f} s",
        )
        for each in kept
    ]
    return _table((*asked, *counted, *found), rows)


def near() -> str:
    """Make the table of what came near to a bound in whole runs, of the last one's product."""
    whole = [each for each in records.read_all() if each.rows == len(FAULTS)]
    whole = [each for each in whole if each.product == whole[-1].product]
    rows = [
        (f"`{fault}`", check, f"{_most(found):.4g}", *map(_found, found))
        for (fault, check), found in records.nearest(whole, NEAR)
    ]
    return _table(("fault", "check", "allowed", *(str(each.seed) for each in whole)), rows)


def _most(found: Iterable[records.Found]) -> float:
    return max(each.most for each in found if each)


def _found(found: records.Found) -> str:
    return f"{found.found:.3g}" if found else "-"


def breaks() -> str:
    """Make the table of how each row was made to fail."""
    rows = [(f"`{each.name}`", _first_line(BREAKS[each.broken]), each.caught_by) for each in FAULTS]
    return _table(("fault", "broken on purpose", "the check that fails then"), rows)


def _first_line(described: Callable[..., object]) -> str:
    return (inspect.getdoc(described) or "").partition("\n")[0]


# --- rights ------------------------------------------------------------------------------------


def rights() -> str:
    """Make the table of each role that the manifests have."""
    head = ("API group", "resources", "verbs", "what for")
    return "\n\n".join(f"### {title}\n\n{_table(head, rows)}" for title, rows in manifests.roles())


def needs() -> str:
    """Make the table of what goes wrong without each right, from the tests that take it away."""
    rows = [(f"`{name}`", need.without) for name, need in NEEDS.items()]
    return _table(("right", "without it"), rows)


# --- pages -------------------------------------------------------------------------------------

PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = MappingProxyType(
    {
        "reference/annotations.md": {"values": delays, "instants": instants},
        "reference/configuration.md": {"fields": fields, "arguments": arguments},
        "reference/cli.md": {"commands": commands},
        "reference/metrics.md": {"metrics": metrics},
        "reference/errors.md": {"errors": errors},
        "explanation/failure-modes.md": {
            "faults": faults,
            "alone": alone,
            "breaks": breaks,
            "runs": runs,
            "near": near,
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


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


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
