"""`holdfast thaw`: end the freeze of a namespace."""

from holdfast.webhook.cli import commands, options, rights, terminal
from holdfast.webhook.cli.freeze import frozen, read, selected, write
from holdfast.webhook.model.freezes import FREEZE, FREEZE_UNTIL

EXAMPLES = """\b
Examples:
  holdfast thaw -n shop
  holdfast thaw --all"""


@commands.command(epilog=EXAMPLES)
@frozen
@options.dry_run
@options.target
def thaw(*, own: str, everywhere: bool, target: options.Target) -> None:
    """End the freeze of a namespace, or of all.

    Its due pods are released. With --all, namespaces that are frozen themselves stay frozen.
    """
    cluster = target.connect()
    name = selected(target, cluster.namespace, own if everywhere else "")
    what = "all namespaces" if everywhere else f"namespace {name}"
    rights.require_freezing(cluster, name)
    found = read(cluster, name)
    if found is not None and FREEZE not in found.annotations:
        missing = f"there is no freeze of {what}" if everywhere else f"{what} is not frozen"
        terminal.write([(missing, "")])
        return
    write(cluster, name, {FREEZE: None, FREEZE_UNTIL: None})
    terminal.write([(f"the freeze of {what} has ended{target.suffix}", "green")])
