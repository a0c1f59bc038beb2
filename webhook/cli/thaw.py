"""`holdfast thaw`: end the freeze of a namespace."""

import click

from holdfast.webhook.cli import options, terminal
from holdfast.webhook.cli.freeze import frozen, selected, write
from holdfast.webhook.model.freezes import FREEZE, FREEZE_UNTIL

EXAMPLES = """\b
Examples:
  holdfast thaw -n shop
  holdfast thaw --all"""


@click.command(epilog=EXAMPLES)
@frozen
@options.target
def thaw(*, namespace: str | None, own: str, everywhere: bool, target: options.Target) -> None:
    """End the freeze of a namespace, or of all.

    Its due pods are released. With --all, namespaces that are frozen themselves stay frozen.
    """
    cluster = target.connect()
    name = selected(namespace, cluster.namespace, own if everywhere else "")
    write(cluster, name, {FREEZE: None, FREEZE_UNTIL: None})
    what = "all namespaces" if everywhere else f"namespace {name}"
    terminal.write([(f"the freeze of {what} has ended", "green")])
