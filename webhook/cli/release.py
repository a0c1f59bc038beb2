"""`holdfast release`: release held pods now."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click

from holdfast.webhook.cli import commands, options, rights, targets, terminal
from holdfast.webhook.cli.connection import CommandCluster
from holdfast.webhook.cli.targets import NamedTarget
from holdfast.webhook.controller.pending import pending_release
from holdfast.webhook.controller.releaser import ATTEMPTS, Attempt, Outcome, Releaser
from holdfast.webhook.errors import CommandError
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.client import Api
from holdfast.webhook.model.objects import ObjectKey, Pod
from holdfast.webhook.policies.pods import RELEASE_VERB, RELEASER
from holdfast.webhook.report import held_pods, table
from holdfast.webhook.report.pod_status import PodWithStatus
from holdfast.webhook.runtime import pipelines

EXAMPLES = """\b
Examples:
  holdfast release web-0
  holdfast release web-0 pod/web-1 job/migrate
  holdfast release deployment/web      asks before releasing several pods
  holdfast release -l app=web --yes    does not ask
  holdfast release deployment/web --dry-run=server"""


@commands.command(epilog=EXAMPLES)
@click.argument(
    "names", nargs=-1, metavar="(POD | TYPE/NAME)...", shell_complete=commands.complete_held_pods
)
@options.scope
@click.option("-y", "--yes", is_flag=True, help="Release several pods without asking.")
@options.dry_run
@options.installed
@options.target
def release(
    *,
    names: tuple[str, ...],
    scope: options.Scope,
    yes: bool,
    installed: options.Installed,
    target: options.Target,
) -> None:
    """Release held pods now, by name, by workload or by label.

    You need the verb `release` on `holds.holdfast.dev` (ClusterRole holdfast-releaser), and get and
    patch on pods; with -l or a workload also list. Only Holdfast's own gates are removed. Each pod
    is reported; the exit status is 1 if one could not be released.
    """
    _check_selection(names, scope)
    wanted = targets.parse_all(names) if names else []
    time = listing.Time()
    cluster = target.connect(time.observe)
    # it decides only which notes are printed: the gates that are removed are Holdfast's own
    decider = pipelines.release_decider(installed.setup(cluster, is_quiet=True))
    selection = _named(cluster, cluster.namespace, wanted) if names else _selected(cluster, scope)
    found = selection.pods
    for each in dict.fromkeys(pod.metadata.namespace for pod in found):
        rights.require(cluster, each, "release pods", RELEASE_VERB, RELEASER)
    if not found and not selection.problems:
        click.echo("No held pods selected; nothing was released.", err=True)
        return
    if len(found) > sum(each.is_pod for each in wanted) + 1 and not yes and not target.suffix:
        shown = [f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in found]
        question = f"Release {len(found)} pods now?"
        terminal.confirm(question, shown, can_ask=sys.stdin.isatty())
    releaser = Releaser(cluster, decider, time.now_ms, force=True)
    problems = [*selection.problems]
    for pod in found:
        text, problem = _release(releaser, decider, pod)
        if problem:
            problems.append(problem)
        else:
            terminal.write([(f"{text}{target.suffix}", "green")])
    terminal.check_outcome(problems, len(found) + len(selection.problems))


def _check_selection(names: Sequence[str], scope: options.Scope) -> None:
    if bool(names) == bool(scope.selector):
        either = "give pods, TYPE/NAME or a selector with -l"
        raise click.UsageError(f"{either}, not both" if names else either)
    if names and scope.all_namespaces:
        raise click.UsageError("-A cannot be combined with names")


@dataclass(frozen=True, slots=True)
class _Selection:
    """The pods to release, and why others cannot be."""

    pods: list[PodWithStatus]
    problems: list[str]


def _selected(cluster: CommandCluster, scope: options.Scope) -> _Selection:
    query = {"fieldSelector": listing.PENDING, "labelSelector": scope.selector}
    path = listing.pods_path(scope.within(cluster))
    listed = listing.objects(cluster, path, PodWithStatus, query)
    return _Selection([pod for pod in listed if held_pods.own_gates(pod)], [])


def _named(api: Api, namespace: str, wanted: Iterable[NamedTarget]) -> _Selection:
    """Read the pods that are named; those that are missing or not held are problems."""
    pods: dict[ObjectKey, PodWithStatus] = {}
    problems = []
    for each in wanted:
        try:
            found = each.pods(api, namespace, PodWithStatus)
        except CommandError as exc:
            problems.append(str(exc))
            continue
        held = {pod.key: pod for pod in found if held_pods.own_gates(pod)}
        pods |= held
        if each.is_pod and not held:
            problems.append(_unheld(found[0]))
        elif not held:
            place = f"{each.kind} {each.name} in namespace {namespace}"
            problems.append(f"{place} has no held pods; it has {table.counted(len(found), 'pod')}")
    return _Selection([*pods.values()], problems)


def _unheld(pod: PodWithStatus) -> str:
    """Say what a pod does that is not held."""
    namespace, name = pod.key
    where = f" on {pod.spec.node_name}" if pod.spec.node_name else ""
    state = f"it is {pod.status.phase or 'Pending'}{where}"
    if pod.gates:
        state += f" and has gates of other components: {', '.join(pod.gates)}"
    elif not where:
        state += f"; holdfast explain {name} -n {namespace} shows what it waits for"
    return f"pod {namespace}/{name} is not held: {state}"


def _release(releaser: Releaser, decider: ReleaseDecider, pod: Pod) -> tuple[str, str]:
    """Release one pod, and retry if it changes meanwhile; return the outcome or the problem."""
    note = pending_release(pod, decider)
    attempt = Attempt(Outcome.GONE)
    for _ in range(ATTEMPTS):
        if note is None:
            break
        attempt = releaser.release(pod.key, note)
        if attempt.outcome is not Outcome.CHANGED:
            break
        note = attempt.held
        if note is not None and note.uid != pod.metadata.uid:
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
