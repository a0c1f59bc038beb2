"""`holdfast release`: release held pods now."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from holdfast.webhook.cli import options, rights, terminal
from holdfast.webhook.controller.pending import pending_release
from holdfast.webhook.controller.releaser import ATTEMPTS, Attempt, Outcome, Releaser
from holdfast.webhook.errors import CommandError
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.client import Api, pod_path
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.policies.pods import RELEASE_VERB, RELEASER
from holdfast.webhook.report import held_pods, table
from holdfast.webhook.runtime import pipelines

EXAMPLES = """\b
Examples:
  holdfast release web-0
  holdfast release -l app=web          asks before releasing several pods
  holdfast release -l app=web --yes    does not ask"""


@click.command(epilog=EXAMPLES)
@click.argument("pods", nargs=-1)
@options.scope
@click.option("-y", "--yes", is_flag=True, help="Release several pods without asking.")
@options.config
@options.target
def release(
    *,
    pods: tuple[str, ...],
    scope: options.Scope,
    yes: bool,
    config_path: Path | None,
    target: options.Target,
) -> None:
    """Release held pods now, by name or by label.

    You need the verb `release` on `holds.holdfast.dev` (ClusterRole holdfast-releaser) and
    permission to patch pods. Only Holdfast's own gates are removed. Give the cluster's
    configuration with --config if placement rules are resolved at release.
    """
    _check_selection(pods, scope)
    decider = pipelines.release_decider(pipelines.Setup(config_path))
    time = listing.Time()
    cluster = target.connect(time.observe)
    namespace = scope.within(cluster)
    found = _selected(cluster, namespace, pods, scope.selector)
    for each in dict.fromkeys(pod.metadata.namespace for pod in found):
        rights.require(cluster, each, "release pods", RELEASE_VERB, RELEASER)
    if not found:
        click.echo("No held pods selected; nothing was released.", err=True)
        return
    if len(found) > 1 and not yes:
        names = [f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in found]
        question = f"Release {len(found)} pods now?"
        terminal.confirm(question, names, can_ask=sys.stdin.isatty())
    releaser = Releaser(cluster, decider, time.now_ms, force=True)
    failed = [pod for pod in found if not _release(releaser, decider, pod)]
    _check_outcome(len(failed), len(found))


def _check_outcome(failed: int, found: int) -> None:
    if failed:
        raise CommandError(
            f"{failed} of {table.counted(found, 'pod')} could not be released; the reasons are "
            "above"
        )


def _check_selection(pods: Sequence[str], scope: options.Scope) -> None:
    if bool(pods) == bool(scope.selector):
        raise click.UsageError("give pod names or a selector with -l, not both")
    if pods and scope.all_namespaces:
        raise click.UsageError("-A cannot be combined with pod names")


def _selected(api: Api, namespace: str, names: Sequence[str], selector: str) -> list[Pod]:
    """Read the pods; one that is named has to be there, and be held."""
    if not names:
        query = {"fieldSelector": listing.PENDING, "labelSelector": selector}
        listed = listing.objects(api, listing.pods_path(namespace), Pod, query)
        return [pod for pod in listed if held_pods.own_gates(pod)]
    return [_named(api, namespace, name) for name in dict.fromkeys(names)]


def _named(api: Api, namespace: str, name: str) -> Pod:
    pod = listing.one(api, pod_path(namespace, name), Pod)
    if pod is None:
        raise CommandError(f"there is no pod {namespace}/{name}; holdfast list shows held pods")
    if not held_pods.own_gates(pod):
        raise CommandError(
            f"pod {namespace}/{name} is not held by Holdfast; holdfast explain {name} "
            f"-n {namespace} shows what it waits for"
        )
    return pod


def _release(releaser: Releaser, decider: ReleaseDecider, pod: Pod) -> bool:
    """Release one pod, retry if it changes meanwhile, and print the outcome."""
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
    terminal.write([_outcome(pod, attempt)])
    return attempt.outcome in {Outcome.RELEASED, Outcome.GONE}


def _outcome(pod: Pod, attempt: Attempt) -> terminal.Styled:
    name = f"pod {pod.metadata.namespace}/{pod.metadata.name}"
    match attempt.outcome:
        case Outcome.RELEASED:
            return f"{name} released{_remarks(attempt.notes)}", "green"
        case Outcome.GONE:
            return f"{name} is no longer held", ""
        case _:
            return f"{name} not released: {attempt.reason or 'it kept changing; try again'}", "red"


def _remarks(notes: Iterable[str]) -> str:
    return "".join(f"; {note}" for note in notes)
