"""`holdfast preview`: what Holdfast would make of manifests, before anything is applied."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import yaml

from webhook import preview as previews
from webhook import values, wiring, yaml_text
from webhook.commands import options, terminal
from webhook.commands.dry_run import DryRun
from webhook.errors import CommandError
from webhook.framework import Code
from webhook.preview import Document, Preview

EXAMPLES = """\b
Examples:
  holdfast preview -f deployment.yaml
  kustomize build . | holdfast preview -f -
  holdfast preview -f deployment.yaml --config holdfast.yaml
  holdfast preview -f deployment.yaml --cluster -n shop
  holdfast preview manifests/*.yaml            in a pre-commit hook, or in CI"""

SIZE_LIMIT = 4 << 20
"""Bytes of a file: more than a configuration, for what a whole folder makes, CRDs and all."""

Make = Callable[[Document], Preview]


@click.command(epilog=EXAMPLES)
@click.argument("files", nargs=-1)
@click.option("-f", "--filename", multiple=True, help="A file of YAML or JSON; - is the input.")
@click.option("--cluster", "live", is_flag=True, help="Ask the cluster, by a server-side dry run.")
@options.namespace
@options.config
@options.target
def preview(
    *,
    files: tuple[str, ...],
    filename: tuple[str, ...],
    live: bool,
    namespace: str | None,
    config_path: Path | None,
    target: options.Target,
) -> None:
    """Show what Holdfast would make of the pods and templates in files, and why.

    Nothing is written, and without --cluster no cluster is asked. Exit status 1 where something
    would be refused. Objects that are no pods and have no template are passed over.
    """
    names = [*filename, *files]
    if not names:
        raise click.UsageError("name a file with -f, or - for the input")
    if live:
        cluster = target.connect()
        make: Make = DryRun(cluster, namespace or cluster.namespace).preview
    else:
        make = _offline(config_path, namespace or "default")
    made = [each for name in names for each in _shown(name, make)]
    if not made:
        click.echo("No pod and no template of pods is in what was given.", err=True)
    refused = sum(bool(each.refusals) for each in made)
    if refused:
        raise CommandError(f"{refused} would be refused; the reasons are above")


def _offline(config_path: Path | None, namespace: str) -> Make:
    pipeline = wiring.pipeline(wiring.Setup(config_path), wiring.unobserved)

    def make(document: Document) -> Preview:
        now_ms = int(time.time() * 1_000)
        return previews.preview(document, pipeline, namespace=namespace, now_ms=now_ms)

    return make


def _shown(name: str, make: Make) -> Iterator[Preview]:
    """Show what becomes of all objects of a file, and give it."""
    for document in _documents(name):
        for each in previews.objects(document):
            if previews.concerns(each):
                made = make(each)
                terminal.write(_lines(name, made))
                yield made


def _documents(name: str) -> Sequence[Any]:
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
            text = yaml_text.read(file, SIZE_LIMIT)
    except yaml_text.SizeError as exc:
        raise CommandError(f"{name}: {exc}; give it in parts") from None
    except OSError as exc:
        raise CommandError(
            f"{name}: cannot be read ({exc.strerror}); name a readable file, or - for the input"
        ) from None
    try:
        return [*yaml.load_all(text, _Loader)]
    except yaml_text.MISTAKES as exc:
        raise CommandError(
            f"{name}: is no YAML: {values.one_line(exc)}; correct it there"
        ) from None


def _lines(name: str, made: Preview) -> Iterator[terminal.Styled]:
    place = "" if name == "-" else f"{name}: "
    if made.refusals:
        yield f"{place}{made.what}: refused", "bold red"
        yield from ((f"  {reason}", "red") for reason in made.refusals)
    else:
        verdict = "changed" if made.diff else "left as it is"
        yield f"{place}{made.what}: {verdict}", "bold"
    steps = [step for step in made.steps if step.code is not Code.REFUSE]
    yield from ((f"  {step.plugin}: {step.told}", "") for step in steps)
    yield from ((f"  warning: {warning}", "yellow") for warning in made.warnings)
    if not made.refusals:
        yield from ((f"  {line}", _STYLES.get(line[:1], "dim")) for line in made.diff)


_STYLES = {"+": "green", "-": "red", "@": "cyan"}


class _Loader(yaml_text.Loader):
    """YAML as kubectl reads it: a time is text, as in JSON."""


_Loader.yaml_implicit_resolvers = {
    first: [one for one in resolvers if one[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml_text.Loader.yaml_implicit_resolvers.items()
}
