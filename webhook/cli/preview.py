"""`holdfast preview`: show what Holdfast would change in manifests."""

import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
import yaml

from holdfast.webhook import safe_yaml
from holdfast.webhook.cli import commands, configured, freeze, manifests, options, terminal
from holdfast.webhook.cli.server_preview import ServerPreview
from holdfast.webhook.errors import CommandError, StartError, UnreachableError
from holdfast.webhook.framework.plugin import Code
from holdfast.webhook.kube.api import Api
from holdfast.webhook.kube.kubeconfig import kubeconfigs
from holdfast.webhook.model import messages
from holdfast.webhook.plugins.after.targets import AFTER
from holdfast.webhook.report import cycles, table
from holdfast.webhook.report import preview as previews
from holdfast.webhook.report.preview import Document, OfflinePreview, Preview
from holdfast.webhook.report.scope import AdmissionScope, LabelsOf
from holdfast.webhook.runtime import pipelines

EXAMPLES = """\b
Examples:
  holdfast preview -R -f manifests/
  holdfast preview -k overlays/production
  curl -fsSL https://example.com/web.yaml | holdfast preview -f -
  holdfast preview -f deployment.yaml --dry-run=server -n shop
  holdfast preview --strict manifests/*.yaml   in a pre-commit hook or in CI"""

SIZE_LIMIT = 4 << 20
"""Maximum bytes of an input: a rendered folder with CRDs is larger than a configuration."""

_WAIT_MS = 3_000
"""Request timeout for the installed configuration."""

Make = Callable[[Document], Sequence[Preview]]


@commands.command(epilog=EXAMPLES)
@click.argument("files", nargs=-1)
@click.option(
    "-f",
    "--filename",
    multiple=True,
    help="A YAML or JSON file, or a folder of them; - is standard input.",
)
@click.option("-R", "--recursive", is_flag=True, help="Also read subfolders of -f.")
@click.option("-k", "--kustomize", multiple=True, help="A folder with a kustomization.")
@click.option(
    "--dry-run",
    type=click.Choice(["client", "server"]),
    default="client",
    show_default=True,
    help="With server, ask the API server, without storing the objects; with client, decide here.",
)
@click.option("--strict", is_flag=True, help="Exit with status 1 also if there are warnings.")
@options.installed
@options.target
def preview(
    *,
    files: tuple[str, ...],
    filename: tuple[str, ...],
    recursive: bool,
    kustomize: tuple[str, ...],
    dry_run: str,
    strict: bool,
    installed: options.Installed,
    target: options.Target,
) -> None:
    """Show what Holdfast would change in manifests.

    Nothing is written, and no cluster is needed unless you give --dry-run=server. The exit status
    is 1 if anything would be rejected, or if pods wait for each other; with --strict, also if there
    are warnings. With -v=1, plugins that change nothing are shown as well.
    """
    if not (files or filename or kustomize):
        raise click.UsageError("give a file with -f, or - for standard input")
    names = [*manifests.files([*filename, *files], recursive=recursive)]
    make, namespace = (_online if dry_run == "server" else _offline)(target, installed)
    items: list[Document] = []
    sources = [
        *((name, None) for name in names),
        *((name, manifests.kustomized(name)) for name in kustomize),
    ]
    errors: list[str] = []
    groups = [group for source in sources for group in _shown(*source, make, items, errors)]
    if not groups and not errors:
        kinds = ", ".join(dict.fromkeys(str(item["kind"]) for item in items if item.get("kind")))
        hint = f"; the files have {kinds}" if kinds else ""
        terminal.write([(f"No pods and no pod templates found{hint}.", "")], err=True)
    _check_outcome(
        errors,
        len(sources),
        refused=sum(any(result.refusals for result in group) for group in groups),
        warned=strict and sum(any(result.warnings for result in group) for group in groups),
        cycle=cycles.find(items, namespace),
    )


def _check_outcome(
    errors: Sequence[str], files: int, *, refused: int, warned: int, cycle: Sequence[str]
) -> None:
    """Report all problems. Raises CommandError if there are any."""
    message = (
        f"these pods never start, because they wait for each other: {' > '.join(cycle)}; "
        f"remove one from annotation {AFTER}"
    )
    counts = [
        f"{len(errors)} of {table.counted(files, 'file')} cannot be read" if errors else "",
        f"{refused} would be rejected" if refused else "",
        f"{table.counted(warned, 'object')} with warnings" if warned else "",
    ]
    problems = [*errors, *([message] if cycle else [])]
    if len(problems) == 1 and not (refused or warned) and files == 1:
        raise CommandError(problems[0])
    if any(counts) or cycle:
        terminal.write([(problem, "red") for problem in problems], err=True)
        summary = ", ".join(filter(None, counts)) or "pods wait for each other"
        raise CommandError(f"{summary}; the reasons are above")


def _online(target: options.Target, installed: options.Installed) -> tuple[Make, str]:
    if installed.config_path:
        raise click.UsageError(
            "--config cannot be combined with --dry-run=server: the admission server uses the "
            "installed configuration"
        )
    cluster = target.connect()
    warnings: list[str] = []
    cluster.on_warning = warnings.append
    return ServerPreview(cluster, cluster.namespace, warnings).preview, cluster.namespace


def _offline(target: options.Target, installed: options.Installed) -> tuple[Make, str]:
    setup, namespace, labels_of = _setup(target, installed)
    pipeline = pipelines.admission_pipeline(setup)
    scope = AdmissionScope(pipeline.profiles.selectors, labels_of, installed.own)
    now_ms = int(time.time() * 1_000)
    return OfflinePreview(pipeline, namespace, now_ms, scope).preview, namespace


def _setup(
    target: options.Target, installed: options.Installed
) -> tuple[pipelines.Setup, str, LabelsOf]:
    """Return configuration, namespace and label lookup, from the cluster if it is reachable."""
    namespace = target.namespace or "default"
    fallback = pipelines.Setup(installed.config_path), namespace, lambda _: None
    if installed.config_path:
        return fallback  # works without a cluster, as in a pre-commit hook
    if not any(file.exists() for file in kubeconfigs(target.kubeconfig)):
        return fallback
    try:
        cluster = replace(target, request_timeout=target.request_timeout or _WAIT_MS).connect()
        return installed.setup(cluster), cluster.namespace, cache(partial(_labels, cluster))
    except (StartError, UnreachableError) as exc:
        configured.note_defaults(exc, installed.own)
        return fallback


def _labels(api: Api, namespace: str) -> Mapping[str, str] | None:
    obj = freeze.read(api, namespace)
    return obj.labels if obj else None


def _shown(
    name: str, text: bytes | None, make: Make, items: list[Document], errors: list[str]
) -> Iterator[Sequence[Preview]]:
    """Print the previews of a file's objects, and yield those of each object.

    Appends all objects to `items`, and the error to `errors` if the file cannot be read.
    """
    try:
        documents = _documents(name, text)
    except CommandError as exc:
        errors.append(str(exc))
        return
    for document in documents:
        for item in previews.objects(document):
            items.append(item)
            if previews.concerns(item):
                group = make(item)
                terminal.write(line for result in group for line in _lines(name, result))
                yield group


def _documents(name: str, text: bytes | None = None) -> Sequence[Any]:
    try:
        if text is None:
            with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
                text = safe_yaml.read(file, SIZE_LIMIT)
        else:
            safe_yaml.read(io.BytesIO(text), SIZE_LIMIT)
    except safe_yaml.SizeError as exc:
        raise CommandError(f"{name}: {exc}; split it") from None
    except OSError as exc:
        raise CommandError(
            f"{name}: cannot be read ({exc.strerror}); name a readable file, or - for standard "
            "input"
        ) from None
    try:
        stream = io.BytesIO(text)
        stream.name = "standard input" if name == "-" else name  # shown in errors
        return [*yaml.load_all(stream, safe_yaml.ManifestLoader)]
    except safe_yaml.MISTAKES as exc:
        raise CommandError(
            f"{name}: invalid YAML: {messages.one_line(exc)}; correct it there"
        ) from None


def _lines(name: str, result: Preview) -> Iterator[terminal.Styled]:
    prefix = "" if name == "-" else f"{name}: "
    if result.refusals:
        yield f"{prefix}{result.what}: rejected", "bold red"
        yield from ((f"  {reason}", "red") for reason in result.refusals)
    else:
        verdict = "changed" if result.diff else "unchanged"
        yield f"{prefix}{result.what}: {verdict}", "bold"
    if result.unserved:
        yield f"  not sent to Holdfast: {result.unserved}", ""
    steps = [step for step in result.steps if step.code not in {Code.REJECT, Code.SKIP}]
    if not commands.chosen().get("verbosity"):
        steps = [step for step in steps if step.changes or step.code is Code.ERROR]
    yield from ((f"  {step.plugin}: {step.summary}", "") for step in steps)
    if result.steps and not (steps or result.diff or result.refusals):
        yield "  no plugin changes it", ""
    yield from ((f"  warning: {warning}", "yellow") for warning in result.warnings)
    if not result.refusals:
        yield from ((f"  {line}", _STYLES.get(line[:1], "dim")) for line in result.diff)


_STYLES = {"+": "green", "-": "red", "@": "cyan"}
