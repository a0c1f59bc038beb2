"""`holdfast thaw`: end the freeze of a namespace."""

from holdfast.webhook.cli import commands, configured, options, rights, terminal
from holdfast.webhook.cli.freeze import frozen, read, selected, write
from holdfast.webhook.kube import listing
from holdfast.webhook.model import freezes
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
    """Thaw a namespace: end its freeze.

    Its due pods are then released. With --all, namespaces that are also frozen themselves stay
    frozen.
    """
    time = listing.Time()
    cluster = target.connect(time.observe)
    name = selected(target, cluster.namespace, own if everywhere else "")
    what = "all namespaces" if everywhere else f"namespace {name}"
    rights.require_freezing(cluster, name)
    found = read(cluster, name)
    if found is not None and FREEZE not in found.annotations:
        terminal.write([(f"there is no freeze of {what}", "")])
    else:
        write(cluster, name, {FREEZE: None, FREEZE_UNTIL: None})
        terminal.write([(f"the freeze of {what} has ended{target.suffix}", "green")])
    found = read(cluster, own) if name != own else None
    left = found and freezes.read_freeze(found, own)
    if left and left.until_ms > time.now_ms():
        configured.note(f"{what} stays frozen, because {left}; run {freezes.thaw(left)}")
