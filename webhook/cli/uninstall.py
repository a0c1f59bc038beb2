"""`holdfast uninstall`: remove Holdfast from a cluster without leaving pods stuck."""

import sys

import click

from holdfast.webhook.cli import options, terminal
from holdfast.webhook.cli.removal import Removal

_STILL_SERVED = (
    "holdfast dev still holds pods in this cluster; stop it with Ctrl-C, or, if it was killed, run "
    "kubectl delete mutatingwebhookconfiguration,validatingwebhookconfiguration holdfast-dev"
)

EXAMPLES = """\b
Examples:
  holdfast uninstall --release wait    wait until held pods are due
  holdfast uninstall --release now     release held pods immediately
  holdfast uninstall --release now --purge --yes"""


@click.command(epilog=EXAMPLES)
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
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@options.option("--namespace", default="holdfast-system")
@options.option(
    "--timeout",
    type=float,
    default=120.0,
    help="Seconds for each step. Waiting for held pods to become due is not limited.",
)
@options.target
def uninstall(
    *, release: str, purge: bool, yes: bool, namespace: str, timeout: float, target: options.Target
) -> None:
    """Remove Holdfast from the cluster without leaving pods stuck.

    First the webhooks are removed, so that no more pods are held. While the controller still runs,
    held pods are released and VM nodes recorded. Then the controller stops and everything else is
    removed. If a gate or finalizer cannot be removed, the command stops before it removes anything
    needed for that: run it again. VMs keep their recorded nodes unless you give --purge.

    Where Holdfast is gone already, --release now frees the pods that still have its gates and
    finalizers, for example after a restore.
    """
    cluster = target.connect()
    if not yes:
        question = f"Uninstall Holdfast from {cluster.server}?"
        terminal.confirm(question, can_ask=sys.stdin.isatty())
    removal = Removal(cluster, namespace, timeout)
    removal.stop_asking()
    if release == "wait":
        removal.wait_for_releases()
    removal.record_landings(purge=purge)
    removal.stop_controller()
    removal.clear_pods()
    if purge:
        removal.forget_vms()
    removal.remove_rest()
    terminal.write([("Holdfast is uninstalled", "green")])
    if removal.is_served_from_elsewhere():
        terminal.write([(_STILL_SERVED, "yellow")])
