"""Selection of the pods that a command changes: by name, workload or label."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from holdfast.webhook.cli import commands, options, rights, targets, terminal
from holdfast.webhook.cli.connection import CommandCluster
from holdfast.webhook.errors import CommandError
from holdfast.webhook.kube import listing
from holdfast.webhook.model.objects import ObjectKey, Pod
from holdfast.webhook.report import table
from holdfast.webhook.report.pod_status import PodWithStatus

_Found = tuple[list[PodWithStatus], list[str]]
"""The pods to change, and the problems with the other targets."""


@dataclass(frozen=True, slots=True)
class PodChoice(options.Scope):
    """The pods that a user selects, either by name or by label. Raises UsageError."""

    names: Sequence[targets.NamedTarget] = ()
    yes: bool = False

    def __post_init__(self) -> None:
        if bool(self.names) == bool(self.selector):
            message = "give pods, TYPE/NAME or a selector with -l"
            raise click.UsageError(f"{message}, not both" if self.names else message)
        if self.names and self.all_namespaces:
            raise click.UsageError("-A cannot be combined with names")


def pod_choice(verb: str) -> Callable[[options.Function], options.Function]:
    """Add names, -A, -l and --yes to a command, passed as `choice`."""
    names = click.argument(
        "names",
        nargs=-1,
        metavar="(POD | TYPE/NAME)...",
        callback=lambda _ctx, _param, value: targets.parse_all(value) if value else (),
        shell_complete=commands.complete_held_pods,
    )
    yes = click.option(
        "-y", "--yes", is_flag=True, help=f"{verb.capitalize()} several pods without asking."
    )
    return lambda command: options.grouped(command, "choice", PodChoice, names, *options.SCOPE, yes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAction:
    """An action of a command on pods.

    `concerns` returns whether the action applies to a pod, `what` describes such pods in the
    plural, and `unconcerned` returns why it does not apply to a named pod. `right` holds arguments
    of `rights.require`. `write` changes a pod, and returns the outcome or the problem.
    """

    verb: str
    done: str
    what: str
    right: tuple[str, str, str]
    concerns: Callable[[Pod], bool]
    unconcerned: Callable[[PodWithStatus], str]
    write: Callable[[PodWithStatus], tuple[str, str]]

    def run(self, cluster: CommandCluster, choice: PodChoice, suffix: str) -> None:
        """Change each pod, and print each outcome. Raises CommandError if one fails."""
        pods, problems = (self._named if choice.names else self._selected)(cluster, choice)
        for namespace in dict.fromkeys(pod.metadata.namespace for pod in pods):
            rights.require(cluster, namespace, *self.right)
        if not pods and not problems:
            click.echo(f"No {self.what} selected; nothing was {self.done}.", err=True)
            return
        total = len(pods) + len(problems)
        if len(pods) > sum(target.is_pod for target in choice.names) + 1 and not (
            choice.yes or suffix
        ):
            names = [f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods]
            question = f"{self.verb.capitalize()} {len(pods)} pods now?"
            terminal.confirm(question, names, can_ask=sys.stdin.isatty())
        for pod in pods:
            text, problem = self.write(pod)
            if problem:
                problems.append(problem)
            else:
                terminal.write([(f"{text}{suffix}", "green")])
        terminal.check_outcome(problems, total)

    def _selected(self, cluster: CommandCluster, choice: PodChoice) -> _Found:
        query = {"fieldSelector": listing.UNBOUND, "labelSelector": choice.selector}
        path = listing.pods_path(choice.within(cluster))
        return [*filter(self.concerns, listing.objects(cluster, path, PodWithStatus, query))], []

    def _named(self, cluster: CommandCluster, choice: PodChoice) -> _Found:
        """Return the named pods to change, and a problem for each other target."""
        problems: list[str] = []
        pods: dict[ObjectKey, PodWithStatus] = {}
        for target in choice.names:
            try:
                target_pods = target.pods(cluster, cluster.namespace, PodWithStatus)
            except CommandError as exc:
                problems.append(str(exc))
                continue
            concerned = {pod.key: pod for pod in target_pods if self.concerns(pod)}
            pods |= concerned
            if target.is_pod and not concerned:
                problems.append(self.unconcerned(target_pods[0]))
            elif not concerned:
                description = f"{target.kind} {target.name} in namespace {cluster.namespace}"
                count = table.counted(len(target_pods), "pod")
                problems.append(f"{description} has no {self.what}; it has {count}")
        return [*pods.values()], problems
