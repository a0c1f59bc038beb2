"""Output formats of commands that list objects, as in `kubectl get`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click

from holdfast.webhook.cli import options, terminal
from holdfast.webhook.errors import CommandError, InvalidValueError
from holdfast.webhook.report import jsonpath

T = TypeVar("T")
Document = dict[str, Any]

_NONE = "<none>"
_FORMATS = ("json", "yaml", "name", "wide", "jsonpath=", "custom-columns=")


@dataclass(frozen=True, slots=True)
class View(Generic[T]):
    """The presentation of objects of one kind.

    `resource` is the prefix of names with `-o name`. `head` and `row` receive whether the output is
    wide.
    """

    kind: str
    resource: str
    head: Callable[[bool], Sequence[str]]
    row: Callable[[T, bool], Sequence[str]]
    document: Callable[[T], Document]
    style: Callable[[T], str] = lambda _: ""


@dataclass(frozen=True, slots=True)
class Printing:
    """The output format that -o, --no-headers and --sort-by select."""

    output: str = ""
    no_headers: bool = False
    sort_by: str = ""

    @property
    def is_for_scripts(self) -> bool:
        """Whether the output is JSON, YAML or JSONPath."""
        return self.output.startswith(("json", "yaml"))

    def write(self, items: Sequence[T], view: View[T], namespace: str) -> None:
        """Print objects; an empty `namespace` means all namespaces."""
        documents = [(view.document(item), item) for item in items]
        if self.sort_by and documents:
            if not any(jsonpath.find(self.sort_by, document) for document, _ in documents):
                fields = ", ".join(f".{name}" for name in documents[0][0])
                raise CommandError(
                    f"--sort-by: no object has the field {self.sort_by}; there are {fields}"
                )
            documents.sort(key=lambda pair: self._sort_key(pair[0]))
        name, _, expression = self.output.partition("=")
        list_document = {
            "apiVersion": "holdfast.dev/v1beta1",
            "kind": f"{view.kind}List",
            "items": [document for document, _ in documents],
        }
        if name in {"json", "yaml"}:
            terminal.write_document(list_document, name)
        elif name == "jsonpath":
            terminal.write_text(jsonpath.render(expression, list_document))
        elif not documents:
            suffix = f" in {namespace} namespace" if namespace else ""
            click.echo(f"No resources found{suffix}.", err=True)
        else:
            self._write_lines(documents, view, namespace)

    def write_change(
        self,
        changed_item: T,
        known_items: Iterable[T],
        view: View[T],
        namespace: str,
        *,
        is_first: bool,
    ) -> None:
        """Print an object that changed after the list, aligned with the known objects.

        If the list was empty, `is_first` adds the headers to the first object.
        """
        document = view.document(changed_item)
        name, _, expression = self.output.partition("=")
        if name in {"json", "yaml"}:
            terminal.write_document(document, name)
        elif name == "jsonpath":
            terminal.write_text(jsonpath.render(expression, document) + "\n")
        else:
            earlier_items = () if is_first else known_items
            documents = [
                *((view.document(item), item) for item in earlier_items),
                (document, changed_item),
            ]
            self._write_lines(documents, view, namespace, last_only=not is_first)

    def _write_lines(
        self,
        documents: Sequence[tuple[Document, T]],
        view: View[T],
        namespace: str,
        *,
        last_only: bool = False,
    ) -> None:
        if self.output == "name":
            for document, _ in documents[-1:] if last_only else documents:
                click.echo(f"{view.resource}/{document['metadata']['name']}")
            return
        name, _, expression = self.output.partition("=")
        head: Sequence[str]
        rows: list[Sequence[str]]
        if name == "custom-columns":
            columns = _columns(expression)
            head = [title for title, _ in columns]
            rows = [[_cell(path, doc) for _, path in columns] for doc, _ in documents]
        else:
            wide, is_cluster_wide = name == "wide", not namespace
            head = [*(("NAMESPACE",) if is_cluster_wide else ()), *view.head(wide)]
            rows = [
                [
                    *((doc["metadata"]["namespace"],) if is_cluster_wide else ()),
                    *view.row(item, wide),
                ]
                for doc, item in documents
            ]
        styles = [view.style(item) for _, item in documents]
        lines = terminal.table(head, rows, lambda index: styles[index], headless=self.no_headers)
        terminal.write(lines[-1:] if last_only else lines)

    def _sort_key(self, document: Document) -> tuple[bool, bool, Any]:
        values = jsonpath.find(self.sort_by, document)
        value = values[0] if values else None
        is_number = isinstance(value, (int, float))
        return value is None, not is_number, value if is_number else str(value or "")


def _columns(expression: str) -> list[tuple[str, str]]:
    columns = [
        (title, path) for title, _, path in (pair.partition(":") for pair in expression.split(","))
    ]
    if not all(title and path for title, path in columns):
        raise InvalidValueError(
            f"custom-columns={expression}: use NAME:PATH pairs, such as NAME:.metadata.name"
        )
    return columns


def _cell(path: str, document: Document) -> str:
    values = [value for value in jsonpath.find(path, document) if value is not None]
    return jsonpath.text(values) or _NONE


def _output(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Return a valid format. Raises BadParameter if it or an expression in it is invalid."""
    if value in {"", *_FORMATS[:4]}:
        return value
    if not value.startswith(_FORMATS[4:]):
        raise click.BadParameter(f"use one of {', '.join(_FORMATS)}")
    name, _, expression = value.partition("=")
    try:
        if name == "jsonpath":
            jsonpath.render(expression, {})
        else:
            for _, path in _columns(expression):
                jsonpath.find(path, {})
    except (InvalidValueError, ValueError) as exc:
        raise click.BadParameter(str(exc)) from None
    return value


def _sort_by(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    try:
        jsonpath.find(value, {})
    except InvalidValueError as exc:
        raise click.BadParameter(str(exc)) from None
    return value


def printing(command: options.Function) -> options.Function:
    """Add -o, --no-headers and --sort-by to a command, passed as `printing`."""
    return options.grouped(
        command,
        "printing",
        Printing,
        click.option(
            "-o",
            "--output",
            default="",
            callback=_output,
            shell_complete=lambda _ctx, _param, text: [
                name for name in _FORMATS if name.startswith(text)
            ],
            help="The output format: json, yaml, name, wide, jsonpath=TEMPLATE, or "
            "custom-columns=NAME:PATH,...",
        ),
        click.option("--no-headers", is_flag=True, help="Do not print column headers."),
        click.option(
            "--sort-by",
            default="",
            callback=_sort_by,
            help="Sort by the field at a JSONPath, such as .metadata.name.",
        ),
    )
