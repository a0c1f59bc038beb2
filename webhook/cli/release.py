"""`holdfast release`: release held pods now."""

from __future__ import annotations

from functools import partial

from holdfast.webhook.cli import commands, options
from holdfast.webhook.cli.selection import PodAction, PodChoice, pod_choice
from holdfast.webhook.controller.pending import pending_release
from holdfast.webhook.controller.releaser import ATTEMPTS, Attempt, Outcome, Releaser
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.kube import listing
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.policies.pods import RELEASE_VERB, RELEASER
from holdfast.webhook.report import held_pods
from holdfast.webhook.report.pod_status import PodWithStatus
from holdfast.webhook.runtime import pipelines

EXAMPLES = """\b
Examples:
  holdfast release web-0 pod/web-1 job/migrate
  holdfast release deployment/web      asks before releasing several pods
  holdfast release -l app=web --yes    does not ask
  holdfast release deployment/web --dry-run=server"""


@commands.command(epilog=EXAMPLES)
@pod_choice("release")
@options.dry_run
@options.installed
@options.target
def release(*, choice: PodChoice, installed: options.Installed, target: options.Target) -> None:
    """Release held pods now, by name, by workload or by label.

    You need the verb `release` on `holds.holdfast.dev` (ClusterRole holdfast-releaser), and get and
    patch on pods; with -l or a workload also list. A workload also needs get on it, a Deployment
    list on ReplicaSets, and a VM list on VMIs. Only Holdfast's own gates are removed. Each pod is
    reported; the exit status is 1 if one could not be released.
    """
    time = listing.CommandClock()
    cluster = target.connect(time.observe)
    # affects only the printed notes: all of Holdfast's gates are removed in any case
    decider = pipelines.release_decider(installed.setup(cluster, is_quiet=True))
    releaser = Releaser(cluster, decider, time.now_ms, force=True)
    PodAction(
        verb="release",
        done="released",
        what="held pods",
        right=("release pods", RELEASE_VERB, RELEASER),
        concerns=lambda pod: bool(held_pods.own_gates(pod)),
        unconcerned=_unheld,
        write=partial(_release, releaser, decider),
    ).run(cluster, choice, target.suffix)


def _unheld(pod: PodWithStatus) -> str:
    """Return a message that a pod is not held, with its state."""
    namespace, name = pod.key
    location = f" on {pod.spec.node_name}" if pod.spec.node_name else ""
    state = f"it is {pod.status.phase or 'Pending'}{location}"
    if pod.gates:
        state += f" and has gates of other components: {', '.join(pod.gates)}"
    elif not location:
        state += f"; holdfast explain {name} -n {namespace} shows what it waits for"
    return f"pod {namespace}/{name} is not held: {state}"


def _release(releaser: Releaser, decider: ReleaseDecider, pod: Pod) -> tuple[str, str]:
    """Release a pod, retrying if it changes meanwhile; return the outcome or the problem."""
    pending = pending_release(pod, decider)
    attempt = Attempt(Outcome.GONE)
    for _ in range(ATTEMPTS):
        if pending is None:
            break
        attempt = releaser.release(pod.key, pending)
        if attempt.outcome is not Outcome.CHANGED:
            break
        pending = attempt.held
        if pending is not None and pending.uid != pod.metadata.uid:
            attempt = Attempt(Outcome.GONE)  # a new pod of that name was not selected
            break
    name = f"pod {pod.metadata.namespace}/{pod.metadata.name}"
    match attempt.outcome:
        case Outcome.RELEASED:
            return "; ".join([f"{name} released", *attempt.notes]), ""
        case Outcome.GONE:
            return f"{name} is no longer held", ""
        case _:
            return "", f"{name} not released: {attempt.reason or 'it kept changing; try again'}"
