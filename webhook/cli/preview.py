"""`holdfast preview`: what Holdfast would change in manifests."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click
import yaml

from holdfast.webhook import safe_yaml
from holdfast.webhook.cli import options, terminal
from holdfast.webhook.cli.dry_run import DryRun
from holdfast.webhook.errors import CommandError
from holdfast.webhook.framework.plugin import Code
from holdfast.webhook.model import messages
from holdfast.webhook.report import preview as previews
from holdfast.webhook.report.preview import Document, Preview
from holdfast.webhook.runtime import pipelines

EXAMPLES = """\b
Examples:
  holdfast preview -f deployment.yaml
  kustomize build . | holdfast preview -f -
  holdfast preview -f deployment.yaml --config holdfast.yaml
  holdfast preview -f deployment.yaml --cluster -n shop
  holdfast preview manifests/*.yaml            in a pre-commit hook or in CI"""

SIZE_LIMIT = 4 << 20
"""Bytes of a file: more than a configuration, for what a whole folder makes, CRDs and all."""

Make = Callable[[Document], Preview]


@click.command(epilog=EXAMPLES)
@click.argument("files", nargs=-1)
@click.option("-f", "--filename", multiple=True, help="A YAML or JSON file; - is standard input.")
@click.option(
    "--cluster", "live", is_flag=True, help="Ask the cluster, with a server-side dry run."
)
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
    """Show what Holdfast would change in the pods and templates of files.

    Nothing is written, and no cluster is needed unless you give --cluster. The exit status is 1
    if anything would be rejected. Objects that are not pods and have no pod template are ignored.
    """
    names = [*filename, *files]
    if not names:
        raise click.UsageError("give a file with -f, or - for standard input")
    if live:
        cluster = target.connect()
        make: Make = DryRun(cluster, namespace or cluster.namespace).preview
    else:
        make = partial(
            previews.preview,
            pipeline=pipelines.admission_pipeline(pipelines.Setup(config_path)),
            namespace=namespace or "default",
            now_ms=int(time.time() * 1_000),
        )
    made = [each for name in names for each in _shown(name, make)]
    if not made:
        click.echo("No pods and no pod templates found.", err=True)
    refused = sum(bool(each.refusals) for each in made)
    if refused:
        raise CommandError(f"{refused} would be rejected; the reasons are above")


def _shown(name: str, make: Make) -> Iterator[Preview]:
    """Print the previews of a file's objects, and yield them."""
    for document in _documents(name):
        for each in previews.objects(document):
            if previews.concerns(each):
                made = make(each)
                terminal.write(_lines(name, made))
                yield made


def _documents(name: str) -> Sequence[Any]:
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
            text = safe_yaml.read(file, SIZE_LIMIT)
    except safe_yaml.SizeError as exc:
        raise CommandError(f"{name}: {exc}; split it") from None
    except OSError as exc:
        raise CommandError(
            f"{name}: cannot be read ({exc.strerror}); name a readable file, or - for standard "
            "input"
        ) from None
    try:
        return [*yaml.load_all(text, safe_yaml.Loader)]
    except safe_yaml.MISTAKES as exc:
        raise CommandError(
            f"{name}: invalid YAML: {messages.one_line(exc)}; correct it there"
        ) from None


def _lines(name: str, made: Preview) -> Iterator[terminal.Styled]:
    place = "" if name == "-" else f"{name}: "
    if made.refusals:
        yield f"{place}{made.what}: rejected", "bold red"
        yield from ((f"  {reason}", "red") for reason in made.refusals)
    else:
        verdict = "changed" if made.diff else "unchanged"
        yield f"{place}{made.what}: {verdict}", "bold"
    steps = [step for step in made.steps if step.code not in {Code.REJECT, Code.SKIP}]
    yield from ((f"  {step.plugin}: {step.summary}", "") for step in steps)
    yield from ((f"  warning: {warning}", "yellow") for warning in made.warnings)
    if not made.refusals:
        yield from ((f"  {line}", _STYLES.get(line[:1], "dim")) for line in made.diff)


_STYLES = {"+": "green", "-": "red", "@": "cyan"}
