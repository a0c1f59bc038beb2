"""`holdfast uninstall`: remove Holdfast from a cluster without leaving pods stuck.

Without its server, a webhook configuration causes rejections; without its controller, a gate or
finalizer blocks a pod forever. So the configurations are removed first, then gates and finalizers,
and the permissions to do so last.
"""

import sys

import click

from holdfast.webhook.cli import commands, options, remnants, terminal
from holdfast.webhook.cli.removal import Removal
from holdfast.webhook.kube import listing

_STILL_SERVED = (
    "holdfast dev still holds pods in this cluster; stop it with Ctrl-C, or, if it was killed, run "
    "kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration holdfast-dev"
)

EXAMPLES = """\b
Examples:
  holdfast uninstall --release wait    wait until held pods are due
  holdfast uninstall --release now     release held pods immediately"""


@commands.command(epilog=EXAMPLES)
@click.option(
    "--release",
    type=click.Choice(["now", "wait"]),
    required=True,
    help="Release held pods immediately (now), or wait until they are due (wait).",
)
@click.option(
    "--purge",
    is_flag=True,
    help="Also remove the recorded nodes of VMs, from every configured annotation.",
)
@click.option(
    "--prepare",
    is_flag=True,
    help="Keep the policies, the namespace and permissions for the installer to delete.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@options.own_namespace
@options.option(
    "--timeout",
    type=commands.DURATION,
    default="2m",
    help="The time limit of each step, except waiting for held pods to become due.",
)
@options.dry_run
@options.target
def uninstall(
    *,
    release: str,
    purge: bool,
    prepare: bool,
    yes: bool,
    own: str,
    timeout: int,
    target: options.Target,
) -> None:
    """Remove Holdfast from the cluster without leaving pods stuck.

    The webhooks are removed first, so that no more pods are held. After held pods are released
    and VM nodes recorded, everything else is removed, including the namespace, which must not have
    workloads of others. If a gate or finalizer cannot be removed, the command stops: run it again.

    If Holdfast has already been removed, --release now removes its gates and finalizers from
    pods, for example after a restore.
    """
    clock = listing.CommandClock()
    cluster = target.connect(clock.observe)
    removal = Removal(cluster, own, timeout / 1_000, target.suffix, clock.now_ms)
    removal.require_namespace(prepare=prepare)
    if not yes and not target.suffix:
        is_deleted = not prepare and remnants.is_own(cluster, own)
        namespace = f"and delete namespace {own}" if is_deleted else f"(namespace {own})"
        question = f"Uninstall Holdfast from {cluster.server} {namespace}?"
        terminal.confirm(question, can_ask=sys.stdin.isatty())
    removal.stop_asking()
    if release == "wait":
        removal.wait_for_releases()
    removal.record_landings(purge=purge)
    removal.stop_controller()
    removal.clear_pods(waited=release == "wait")
    if purge:
        removal.forget_vms()
    if prepare:
        removal.remove_made()
        terminal.write([(f"Holdfast can be removed{target.suffix}", "green")])
        return
    removal.remove_rest()
    result = "Holdfast is uninstalled" if removal.done else f"nothing was installed in {own}"
    terminal.write([(f"{result}{target.suffix}", "green")])
    if remnants.is_dev_registered(cluster):
        terminal.write([(_STILL_SERVED, "yellow")])
