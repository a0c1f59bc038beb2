"""`holdfast release`: let held pods go now."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from webhook import guard, held_pods, reading, tables, wiring
from webhook.cluster import Api, pod_path
from webhook.commands import options, terminal
from webhook.errors import CommandError
from webhook.objects import Pod
from webhook.pipeline import Pipeline
from webhook.releaser import ATTEMPTS, Attempt, Outcome, Releaser, held_pod

_MOST_NAMED = 20

EXAMPLES = """\b
Examples:
  holdfast release web-0
  holdfast release -l app=web          asks before it releases several
  holdfast release -l app=web --yes    does not ask"""


@click.command(epilog=EXAMPLES)
@click.argument("pods", nargs=-1)
@options.scope
@click.option("-y", "--yes", is_flag=True, help="Do not ask before several pods are released.")
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
    """Release held pods now, whatever they wait for: those named, or those that -l selects.

    Needs the verb `release` on `holds.holdfast.dev` (the role holdfast-releaser), and the right to
    patch pods. Only Holdfast's own gates are taken off. --config is the cluster's configuration,
    where placement rules that resolve at release are to be followed.
    """
    _check_selection(pods, scope)
    pipeline = wiring.pipeline(wiring.Setup(config_path), wiring.unobserved)
    cluster = target.connect()
    namespace = scope.within(cluster)
    found = _selected(cluster, namespace, pods, scope.selector)
    for each in dict.fromkeys(pod.metadata.namespace for pod in found):
        _require_right(cluster, each)
    if not found:
        click.echo("No held pod is selected; nothing was released.", err=True)
        return
    if len(found) > 1 and not yes:
        _confirm(found, can_ask=sys.stdin.isatty())
    failed = [pod for pod in found if not _release(Releaser(cluster, pipeline), pipeline, pod)]
    _check_outcome(len(failed), len(found))


def _check_outcome(failed: int, found: int) -> None:
    if failed:
        raise CommandError(
            f"{failed} of {tables.counted(found, 'pod')} could not be released; the reasons are "
            "above"
        )


def _check_selection(pods: Sequence[str], scope: options.Scope) -> None:
    if bool(pods) == bool(scope.selector):
        raise click.UsageError("name pods, or select them with -l; not both")
    if pods and scope.all_namespaces:
        raise click.UsageError("a named pod is in one namespace; leave -A out")


def _selected(api: Api, namespace: str, names: Sequence[str], selector: str) -> list[Pod]:
    """Read the pods; one that is named has to be there, and be held."""
    if not names:
        query = {"fieldSelector": reading.PENDING, "labelSelector": selector}
        listed = reading.objects(api, reading.pods_path(namespace), Pod, query)
        return [pod for pod in listed if held_pods.own_gates(pod)]
    return [_named(api, namespace, name) for name in dict.fromkeys(names)]


def _named(api: Api, namespace: str, name: str) -> Pod:
    pod = reading.one(api, pod_path(namespace, name), Pod)
    if pod is None:
        raise CommandError(f"there is no pod {namespace}/{name}; holdfast list names those held")
    if not held_pods.own_gates(pod):
        raise CommandError(
            f"pod {namespace}/{name} is not held by Holdfast; holdfast explain {name} "
            f"-n {namespace} says what it waits for"
        )
    return pod


def _require_right(api: Api, namespace: str) -> None:
    """Ask for the guard's verb before anything is tried: also where no guard is installed."""
    verb, group, resource = guard.RELEASE_VERB, guard.RELEASE_GROUP, guard.RELEASE_RESOURCE
    if not reading.may(api, namespace=namespace, verb=verb, group=group, resource=resource):
        raise CommandError(
            f"you may not release pods in namespace {namespace}: the verb {verb!r} on "
            f"{resource}.{group} is missing; ask an admin to bind the ClusterRole {guard.RELEASER}"
        )


def _confirm(found: Sequence[Pod], *, can_ask: bool) -> None:
    if not can_ask:
        raise CommandError(f"{len(found)} pods are selected and nobody can confirm; give --yes")
    names = [f"  {pod.metadata.namespace}/{pod.metadata.name}" for pod in found]
    terminal.write((name, "") for name in names[:_MOST_NAMED])
    if len(names) > _MOST_NAMED:
        click.echo(f"  and {len(names) - _MOST_NAMED} more")
    click.confirm(f"Release {len(found)} pods now?", abort=True)


def _release(releaser: Releaser, pipeline: Pipeline, pod: Pod) -> bool:
    """Release one pod, again where somebody changes it meanwhile; tell how it ended."""
    note = held_pod(pod, pipeline)
    attempt = Attempt(Outcome.GONE)
    for _ in range(ATTEMPTS):
        if note is None:
            break
        attempt = releaser.release(pod.key, note)
        if attempt.outcome is not Outcome.CHANGED:
            break
        note = attempt.held
        if note is not None and note.uid != pod.metadata.uid:
            attempt = Attempt(Outcome.GONE)  # a new pod of that name is none of those selected
            break
    terminal.write([_told(pod, attempt)])
    return attempt.outcome in {Outcome.RELEASED, Outcome.GONE}


def _told(pod: Pod, attempt: Attempt) -> terminal.Styled:
    name = f"pod {pod.metadata.namespace}/{pod.metadata.name}"
    match attempt.outcome:
        case Outcome.RELEASED:
            return f"{name} released{_remarks(attempt.notes)}", "green"
        case Outcome.GONE:
            return f"{name} is held no longer", ""
        case _:
            return f"{name} not released: {attempt.reason or 'it kept changing; try again'}", "red"


def _remarks(notes: Iterable[str]) -> str:
    return "".join(f"; {note}" for note in notes)
