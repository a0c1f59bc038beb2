"""`holdfast list`: the pods that are held."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from webhook import held_pods, reading, wiring
from webhook.commands import options, terminal
from webhook.held_pods import HeldPod
from webhook.objects import Pod

EXAMPLES = """\b
Examples:
  holdfast list                      those of this namespace
  holdfast list -A -o wide           all, with their gates and due times
  holdfast list -l app=web --watch   follow those of an application
  holdfast list -A -o json           for a program"""


@click.command("list", epilog=EXAMPLES)
@options.scope
@options.output
@click.option("-w", "--watch", is_flag=True, help="Go on, and show each change, until Ctrl-C.")
@options.config
@options.target
def list(  # noqa: A001 - the command's name
    *,
    scope: options.Scope,
    output: str,
    watch: bool,
    config_path: Path | None,
    target: options.Target,
) -> None:
    """List the pods that are held: by what, since when, for how long still."""
    if watch and output not in {"table", "wide"}:
        raise click.UsageError("--watch writes tables; leave -o json or -o yaml out")
    pipeline = wiring.pipeline(wiring.Setup(config_path), wiring.unobserved)
    time = reading.Time()
    cluster = target.connect(time.take)
    namespace = scope.within(cluster)
    page = _Page(namespace, output == "wide", time)
    path = reading.pods_path(namespace)
    query = {"fieldSelector": reading.PENDING, "labelSelector": scope.selector}

    def held(pods: Iterable[Pod]) -> Iterable[HeldPod]:
        return held_pods.held_pods(pods, pipeline)

    if watch:
        from webhook.commands.watching import follow_pods  # noqa: PLC0415 - it needs all of rich

        follow_pods(cluster, path, query, lambda pods: page.lines(held(pods)))
        return

    found = held(reading.objects(cluster, path, Pod, query))
    if output in {"json", "yaml"}:
        terminal.write_document(held_pods.documents(found, time.now_ms()), output)
    elif found:
        terminal.write(page.lines(found))
    else:
        where = f"namespace {namespace}" if namespace else "any namespace"
        click.echo(f"No pod is held in {where}.", err=True)


@dataclass(frozen=True, slots=True)
class _Page:
    """How the list looks."""

    namespace: str
    wide: bool
    time: reading.Time

    def lines(self, found: Iterable[HeldPod]) -> Iterable[terminal.Styled]:
        """Lay the list out, as of now; what is overdue is red."""
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
