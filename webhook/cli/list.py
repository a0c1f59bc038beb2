"""`holdfast list`: held pods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from holdfast.webhook.cli import options, terminal
from holdfast.webhook.cli.freeze_lookup import FreezeLookup
from holdfast.webhook.kube import listing
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.report import held_pods
from holdfast.webhook.report.held_pods import HeldPodSummary
from holdfast.webhook.runtime import pipelines

EXAMPLES = """\b
Examples:
  holdfast list                      in this namespace
  holdfast list -A -o wide           in all namespaces, with gates and due times
  holdfast list -l app=web --watch   watch the pods of an application
  holdfast list -A -o json           for scripts"""


@click.command("list", epilog=EXAMPLES)
@options.scope
@options.holdfast_namespace
@options.output
@click.option("-w", "--watch", is_flag=True, help="Watch for changes until Ctrl-C.")
@options.config
@options.target
def list(  # noqa: A001 - the command's name
    *,
    scope: options.Scope,
    output: str,
    watch: bool,
    config_path: Path | None,
    own: str,
    target: options.Target,
) -> None:
    """List held pods, with the reason and the time left."""
    if watch and output not in {"table", "wide"}:
        raise click.UsageError("--watch supports only the table and wide outputs")
    decider = pipelines.release_decider(pipelines.Setup(config_path))
    time = listing.Time()
    cluster = target.connect(time.observe)
    namespace = scope.within(cluster)
    view = _ListView(namespace, output == "wide", time)
    freeze_of = FreezeLookup(cluster, namespace, time.now_ms, own)
    path = listing.pods_path(namespace)
    query = {"fieldSelector": listing.PENDING, "labelSelector": scope.selector}

    def held(pods: Iterable[Pod]) -> Iterable[HeldPodSummary]:
        return held_pods.held_pods(pods, decider, freeze_of)

    if watch:
        from holdfast.webhook.cli.watching import follow_pods  # noqa: PLC0415 - it needs all of rich

        follow_pods(cluster, path, query, lambda pods: view.lines(held(pods)))
        return

    found = held(listing.objects(cluster, path, Pod, query))
    if output in {"json", "yaml"}:
        terminal.write_document(held_pods.documents(found, time.now_ms()), output)
    elif found:
        terminal.write(view.lines(found))
    else:
        where = f"namespace {namespace}" if namespace else "any namespace"
        click.echo(f"No held pods in {where}.", err=True)


@dataclass(frozen=True, slots=True)
class _ListView:
    """The list's format."""

    namespace: str
    wide: bool
    time: listing.Time

    def lines(self, found: Iterable[HeldPodSummary]) -> Iterable[terminal.Styled]:
        """Format the list as of now; overdue pods are red."""
        now_ms = self.time.now_ms()
        shown = tuple(found)
        head = held_pods.HEAD_WIDE if self.wide else held_pods.HEAD
        rows = [
            held_pods.row(one, now_ms, wide=self.wide, namespace=not self.namespace)
            for one in shown
        ]
        return terminal.table(
            head if self.namespace else ("NAMESPACE", *head),
            rows,
            lambda number: "red" if shown[number].is_overdue(now_ms) else "",
        )
