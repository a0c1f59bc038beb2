"""`python -m docs.generate`: write the parts of pages that are generated from code and tests.

Each part is between two markers, `<!-- NAME:begin -->` and `<!-- NAME:end -->`. A unit test
compares the checked-in text with the output of this module.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union

import click
import msgspec
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from docs import error_cases, fault_tables, recording, transcript
from docs import rights as manifests
from docs.tables import table
from holdfast.webhook import plugins
from holdfast.webhook.cli import stored_help
from holdfast.webhook.cli.commands import GLOBALS, option_rows
from holdfast.webhook.cli.main import cli
from holdfast.webhook.config import config, schema
from holdfast.webhook.model import durations, messages
from holdfast.webhook.telemetry.metrics import ControllerMetrics, ServerMetrics
from tests.support.after_values import OBJECTS
from tests.support.delay_values import DELAYS, INSTANTS
from tests.support.troubleshooting import MISTAKES

COMMAND = "python -m docs.generate"
LONGEST_VALUE = 40
"""Maximum length of a value on a page; longer ones matter only to tests."""
MOST_REJECTED = 3
"""Maximum number of values shown for each rejection reason."""
COMMON = 3
"""An option shared by at least this many commands is described once."""
BY_HAND = frozenset({"holdfast completion", "holdfast options"})
"""Commands that are described by hand on the page."""
ROOT = Path(__file__).resolve().parent
PRIVILEGES = ROOT.parent / "tests" / "support" / "privileges.yaml"

Option = tuple[str, str]
"""An option's names, and its help."""


class Metric(NamedTuple):
    """A metric: its name as exposed to Prometheus, its type, labels and meaning."""

    name: str
    kind: str
    labels: Sequence[str]
    meaning: str


# --- annotation values -------------------------------------------------------------------------


def delays() -> str:
    """Return the table of delays, from the values in the tests."""
    return _values(DELAYS, lambda ms: durations.canonical_delay(ms) if ms else "not held")


def instants() -> str:
    """Return the table of times, from the values in the tests."""
    return _values(INSTANTS, durations.canonical_instant)


def objects() -> str:
    """Return the table of objects to wait for, from the values in the tests."""
    return _values(OBJECTS, str)


def _values(rows: Iterable[Any], accepted: Callable[[Any], str]) -> str:
    """Return a table of the values, grouped by result, accepted ones first."""
    grouped: dict[str, list[str]] = {}
    for case in sorted(rows, key=lambda row: not _is_accepted(row)):
        if len(case.value) <= LONGEST_VALUE:
            result = _result(case, accepted)
            grouped.setdefault(result, []).append(f"`{messages.quote(case.value)}`")
    return table(
        ("result", "values"),
        [(result, _listed(result, values)) for result, values in grouped.items()],
    )


def _listed(result: str, values: Sequence[str]) -> str:
    shown = values[:MOST_REJECTED] if result.startswith(_REJECTED) else values
    return ", ".join(shown) + (", …" if len(shown) < len(values) else "")


_REJECTED = "rejected: "


def _is_accepted(row: Any) -> bool:
    return not hasattr(row.outcome, "in_words")


def _result(row: Any, accepted: Callable[[Any], str]) -> str:
    if not _is_accepted(row):
        return f"{_REJECTED}{row.outcome.in_words}"
    canonical = accepted(row.outcome)
    return "accepted as written" if canonical == row.value else canonical


# --- configuration -----------------------------------------------------------------------------


_CONCEPTS = "https://kubernetes.io/docs/concepts"
_NODES = f"{_CONCEPTS}/scheduling-eviction"
NAMES: Mapping[str, str] = MappingProxyType(
    {
        "str": "string",
        "int": "integer",
        "bool": "boolean",
        "LabelSelector": f"[label selector]({_CONCEPTS}/overview/working-with-objects/labels/)",
        "NodeRequirement": f"[node requirements]({_NODES}/assign-pod-node/#node-affinity)",
        "RuleToleration": f"[tolerations]({_NODES}/taint-and-toleration/)",
        "PluginName": "`{name: PLUGIN}`",
    }
)
"""Names of types without a table; most of them are the same as in Kubernetes."""


def fields() -> str:
    """Return a table for each part of the configuration file, from its types."""
    kinds = [kind for kind in schema.with_parts([config.Configuration]) if _has_table(kind)]
    return "\n\n".join(f"### {kind.__name__}\n\n{_fields(kind)}" for kind in kinds)


def arguments() -> str:
    """Return the tables of each built-in plugin's arguments and of the types nested in them."""
    parts = []
    for plugin in plugins.BUILT_IN:
        parts.append(f"### {plugin.name}\n\n{_fields(plugin.args_type)}")
        kinds = filter(_has_table, schema.with_parts([plugin.args_type])[1:])
        parts += [f"#### {kind.__name__}\n\n{_described(kind)}" for kind in kinds]
    return "\n\n".join(parts)


def schema_file() -> str:
    """Return the JSON Schema of a configuration file that uses only built-in plugins."""
    return json.dumps(schema.schema(plugins.registry(())), indent=2) + "\n"


def _has_table(kind: schema.Struct) -> bool:
    return kind.__name__ not in {*NAMES, config.SelectorRequirement.__name__}


def _described(kind: schema.Struct) -> str:
    return f"{inspect.getdoc(kind)}\n\n{_fields(kind)}"


def _fields(kind: schema.Struct) -> str:
    descriptions = schema.field_docs(kind)
    rows = []
    for field in msgspec.structs.fields(kind):
        meaning = descriptions.get(field.name)
        if meaning is None:
            raise LookupError(
                f"{field.name} has no description: add a docstring below it in {kind}"
            )
        rows.append((f"`{field.encode_name}`", _type(field.type), _default(field), meaning))
    if not rows:
        return "No arguments."
    return table(("field", "type", "default", "meaning"), rows)


def _type(kind: Any) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return " or ".join(f"`{value}`" if value else "empty" for value in args)
    if origin is Annotated:
        return _type(args[0])
    if origin in {Union, UnionType}:
        return " or ".join(_type(arg) for arg in args if arg is not type(None))
    if origin in {list, tuple}:
        return f"list of {_type(args[0])}"
    if origin is dict:
        return "mapping"
    return NAMES.get(kind.__name__, kind.__name__)


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    if isinstance(value, msgspec.Struct):
        return "empty"
    if value == [config.ProfileConfig()]:
        return "one, empty"
    text = msgspec.json.encode(value).decode()
    return {'""': "empty", "[]": "empty", "{}": "empty", "null": "none"}.get(text, f"`{text}`")


# --- the command -------------------------------------------------------------------------------


def commands() -> str:
    """Return the help of `holdfast` and its commands.

    Common options are described once, unless there are two with the same flag.
    """
    contexts = dict(_contexts("holdfast", _context(cli, "holdfast", None)))
    counts = Counter(record for context in contexts.values() for record in _options(context))
    frequent = [record for record, count in counts.items() if count >= COMMON]
    meanings = Counter(flag for flag, _ in frequent)
    common = [record for record in frequent if meanings[record[0]] == 1]
    flags = option_rows(contexts["holdfast"], GLOBALS, global_flags=True)
    parts = [f"## Global options\n\n{_code(_definitions(flags))}"]
    parts.append(f"## Common options\n\n{_code(_definitions(common))}")
    parts += [
        _help(title, context, common)
        for title, context in contexts.items()
        if title not in BY_HAND and not isinstance(context.command, click.Group)
    ]
    return "\n\n".join(parts)


def _contexts(
    title: str, context: click.Context, *, aliases: bool = False
) -> Iterator[tuple[str, click.Context]]:
    """Yield a command, then each of its subcommands."""
    yield title, context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None  # noqa: S101 - it is listed
            if aliases or command.name == name:
                yield from _contexts(f"{title} {name}", _context(command, name, context))


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    width = stored_help.WIDTH - 2  # as click does
    settings = {**command.context_settings, "terminal_width": width}
    return click.Context(command, info_name=name, parent=parent, **settings)


def help_file() -> str:
    """Return the help of all commands, by name, as they print it."""
    texts = {
        title.removeprefix("holdfast").strip(): context.get_help()
        for title, context in _contexts("holdfast", _context(cli, "holdfast", None), aliases=True)
    }
    return json.dumps(texts, indent=2) + "\n"


def _help(title: str, context: click.Context, common: Sequence[Option]) -> str:
    formatter, command, options = context.make_formatter(), context.command, _options(context)
    if command.collect_usage_pieces(context) != [command.options_metavar]:
        command.format_usage(context, formatter)
    command.format_help_text(context, formatter)
    own = [option for option in options if option not in common]
    if own:
        with formatter.section("Options"):
            formatter.write_dl(own)
    click.Command.format_epilog(command, context, formatter)
    text = f"## {title}\n\n{_code(formatter.getvalue())}"
    shared = [f"`{option[0].split()[0].rstrip(',')}`" for option in options if option in common]
    return f"{text}\n\nCommon options: {', '.join(shared)}" if shared else text


def _options(context: click.Context) -> list[Option]:
    """Return the options of a command as its help shows them, without --help."""
    return option_rows(context, context.command.params)


def _definitions(options: Sequence[Option]) -> str:
    formatter = click.HelpFormatter(width=stored_help.WIDTH)
    formatter.write_dl(options)
    return formatter.getvalue()


def _code(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
    return f"```text\n{lines}\n```"


def picture(command: str, title: str) -> str:
    """Return an SVG of a command and its output on the page, which a test checks in a cluster."""
    page = (ROOT / "how-to" / "inspect-and-release.md").read_text(encoding="utf-8")
    step = next(step for step in transcript.steps(page) if step.command.startswith(command))
    return recording.still([f"$ {step.command}", *step.output], title)


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
"""The labels of the info metrics, which have none until they are set."""


def metrics() -> str:
    """Return the tables of metrics: first those of both processes, then those of each."""
    groups = {title: described_metrics(make()) for title, make in REGISTRIES.items()}
    server, controller = groups.values()
    both = [metric for metric in server if metric in controller]
    groups = {"Both processes": both} | {
        title: [metric for metric in exposed if metric not in both]
        for title, exposed in groups.items()
    }
    return "\n\n".join(f"### {title}\n\n{_metrics(exposed)}" for title, exposed in groups.items())


def _metrics(exposed: Iterable[Metric]) -> str:
    rows = [
        (f"`{name}{{{','.join(labels)}}}`" if labels else f"`{name}`", kind, meaning)
        for name, kind, labels, meaning in exposed
    ]
    return table(("name and labels", "type", "meaning"), rows)


def described_metrics(registry: CollectorRegistry) -> list[Metric]:
    """Return each metric as exposed to Prometheus."""
    suffix = {"counter": "_total", "info": "_info"}
    entries = []
    # private, but the only way to list metrics that have no samples yet
    for collector in list(registry._collector_to_names):
        assert isinstance(collector, MetricWrapperBase)  # noqa: S101 - all of ours are
        metric = next(iter(collector.describe()))
        labels = INFORMATION.get(metric.name, collector._labelnames)
        name = metric.name + suffix.get(metric.type, "")
        entries.append(Metric(name, metric.type, labels, metric.documentation))
    return entries


# --- errors ------------------------------------------------------------------------------------


def errors() -> str:
    """Return the table of messages that do not state the whole fix."""
    return table(("message", "what to do"), [error(case) for case in error_cases.CASES])


def error(case: error_cases.Case) -> tuple[str, str]:
    """Return the table cells of one message."""
    return _quoted(case.produce()), case.note


def troubleshooting() -> str:
    """Return the tables of common mistakes and the messages about them."""
    parts = []
    for title, mistakes in MISTAKES.items():
        rows = [
            (mistake.mistake, _quoted(mistake.answer()))
            for mistake in mistakes
            if mistake.is_on_page
        ]
        if rows:
            parts.append(f"## {title}\n\n{table(('mistake', 'answer'), rows)}")
    return "\n\n".join(parts)


def _quoted(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


# --- rights ------------------------------------------------------------------------------------


def rights() -> str:
    """Return a table for each role in the manifests."""
    head = ("resources", "verbs", "purpose")
    return "\n\n".join(f"### {title}\n\n{table(head, rows)}" for title, rows in manifests.roles())


# --- attackers ---------------------------------------------------------------------------------


def privileges() -> str:
    """Return what each attacker can and cannot do; `PRIVILEGES` also names tests for each row."""
    grouped: dict[str, list[str]] = {}
    for privilege in yaml.safe_load(PRIVILEGES.read_text(encoding="utf-8")):
        text = f"- **Can** {privilege['can']}.\n  **Cannot** {privilege['cannot']}."
        grouped.setdefault(privilege["attacker"], []).append(text)
    return "\n\n".join(
        f"### {attacker[0].upper()}{attacker[1:]}\n\n" + "\n".join(rows)
        for attacker, rows in grouped.items()
    )


# --- pages -------------------------------------------------------------------------------------

PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = MappingProxyType(
    {
        "reference/annotations.md": {
            "values": delays,
            "instants": instants,
            "objects": objects,
        },
        "reference/configuration.md": {"fields": fields, "arguments": arguments},
        "reference/cli.md": {"commands": commands},
        "reference/metrics.md": {"metrics": metrics},
        "how-to/troubleshooting.md": {"mistakes": troubleshooting, "errors": errors},
        "explanation/failure-modes.md": {"latest": fault_tables.latest},
        "explanation/security.md": {"privileges": privileges},
        "reference/rights.md": {"rights": rights},
    }
)


FILES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "reference/configuration.schema.json": schema_file,
        "../webhook/cli/help.json": help_file,
        "images/list.svg": partial(
            picture, "holdfast list", "holdfast list: each held pod, its delay and the time left"
        ),
        "images/explain.svg": partial(
            picture, "holdfast explain", "holdfast explain: why a pod is held, and what to do"
        ),
    }
)
"""Files that are generated completely."""


def rendered(page: str) -> str:
    """Return a page with up-to-date generated parts. Raises LookupError if a marker is missing."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, make in PAGES[page].items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        match = re.search(f"{re.escape(begin)}\n.*?{re.escape(end)}", text, re.DOTALL)
        if match is None:
            raise LookupError(f"docs/{page} lacks the lines {begin} and {end}; put them back")
        part = f"{begin}\n\n{make()}\n\n{end}"
        text = text[: match.start()] + part + text[match.end() :]
    return text


@click.command()
def main() -> None:
    """Write the generated parts of all pages."""
    logging.disable()  # producing some of the messages also logs them
    texts = {page: rendered(page) for page in PAGES} | {file: FILES[file]() for file in FILES}
    for name, text in texts.items():
        path = (ROOT / name).resolve()
        if not path.exists() or text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            click.echo(f"{path.relative_to(ROOT.parent)}: written")


if __name__ == "__main__":
    main()
