"""`holdfast list`: list held pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from types import MappingProxyType

import click

from holdfast.webhook.cli import commands, configured, options
from holdfast.webhook.cli.freeze_lookup import FreezeLookup
from holdfast.webhook.cli.pace_lookup import pace_places
from holdfast.webhook.cli.printing import Printing, View, printing
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.lookup import MOST_OF_A_COMMAND, ClusterLookup
from holdfast.webhook.model.objects import ObjectKey, Pod
from holdfast.webhook.report import held_pods
from holdfast.webhook.report.held_pods import HeldPodSummary
from holdfast.webhook.report.pace_places import PacePlace
from holdfast.webhook.runtime import pipelines

EXAMPLES = """\b
Examples:
  holdfast list                      in this namespace
  holdfast list -A -o wide           in all namespaces, with gates and due times
  holdfast list -l app=web --watch   watch the pods of an application
  holdfast list -o name | xargs holdfast release --yes
  holdfast list -A --sort-by=.due -o custom-columns=POD:.metadata.name,DUE:.due"""


@commands.command("list", epilog=EXAMPLES)
@options.scope
@printing
@click.option("-w", "--watch", is_flag=True, help="After listing, watch for changes until Ctrl-C.")
@options.installed
@options.target
def list(  # noqa: A001 - the command's name
    *,
    scope: options.Scope,
    printing: Printing,
    watch: bool,
    installed: options.Installed,
    target: options.Target,
) -> None:
    """List held pods, with the reason and the time left."""
    time = listing.CommandClock()
    cluster = target.connect(time.observe)
    handle = Handle()
    handle.connect(lookup=ClusterLookup(lambda: cluster, per_minute=MOST_OF_A_COMMAND))
    decider = pipelines.release_decider(installed.setup(cluster), handle=handle)
    namespace = scope.within(cluster)
    freeze_of = FreezeLookup(cluster, namespace, time.now_ms, installed.own)
    printer = _HeldPods(printing, namespace, time, decider, freeze_of)
    path = listing.pods_path(namespace)
    query = {"fieldSelector": listing.UNBOUND, "labelSelector": scope.selector}
    if watch:
        from holdfast.webhook.cli.watching import follow_pods  # noqa: PLC0415 - rarely needed

        follow_pods(cluster, path, query, on_list=printer.on_list, on_change=printer.on_change)
    else:
        pods = [
            pod for pod in listing.objects(cluster, path, Pod, query) if held_pods.own_gates(pod)
        ]
        printer.write(pods, pace_places(cluster, pods, decider, time.now_ms(), freeze_of))


@dataclass(slots=True)
class _HeldPods:
    """Prints held pods and their changes."""

    printing: Printing
    namespace: str
    time: listing.CommandClock
    decider: ReleaseDecider
    freeze_of: FreezeLookup
    _: KW_ONLY
    known: dict[ObjectKey, HeldPodSummary] = field(default_factory=dict)
    is_listed: bool = False
    is_headed: bool = False

    def write(
        self, pods: Iterable[Pod], places: Mapping[ObjectKey, PacePlace] = MappingProxyType({})
    ) -> None:
        """Print the list; `places` is empty in a watch, because places change too often."""
        summaries = held_pods.held_pods(pods, self.decider, self.freeze_of, places)
        self.known = {(summary.namespace, summary.name): summary for summary in summaries}
        self.is_headed = bool(summaries)
        self.printing.write(summaries, self._view(), self.namespace)
        namespaces = {summary.namespace for summary in summaries}
        for freeze in self.freeze_of.active():  # those that no row shows
            if freeze.namespace not in namespaces and not (freeze.everywhere and namespaces):
                configured.note(str(freeze))

    def on_list(self, pods: Sequence[Pod]) -> None:
        """Print the list; after an interruption, or for a script, print each changed pod."""
        if not self.is_listed and not self.printing.is_for_scripts:
            self.write(pods)
            self.is_listed = True
            return
        for pod in pods:
            self.on_change(pod, is_deleted=False)
        for key in self.known.keys() - {pod.key for pod in pods}:
            self._end(key, "released")

    def on_change(self, pod: Pod, *, is_deleted: bool) -> None:
        """Print a pod whose hold has begun, changed or ended."""
        if is_deleted or not held_pods.own_gates(pod):
            # a bound pod leaves the selection, so that its release looks like a deletion
            self._end(pod.key, "deleted" if is_deleted and held_pods.own_gates(pod) else "released")
            return
        freeze = self.freeze_of(pod.metadata.namespace)
        summary = held_pods.described(pod, self.decider, freeze)
        if self.known.get(pod.key) != summary:
            self.known[pod.key] = summary
            self._change(summary)

    def _end(self, key: ObjectKey, ending: str) -> None:
        summary = self.known.pop(key, None)
        if summary is not None:
            self._change(replace(summary, ended=ending))

    def _change(self, summary: HeldPodSummary) -> None:
        summaries, is_first = self.known.values(), not self.is_headed
        self.is_headed = True
        self.printing.write_change(
            summary, summaries, self._view(), self.namespace, is_first=is_first
        )

    def _view(self) -> View[HeldPodSummary]:
        """Return the view at the current time; overdue pods are red."""
        now_ms = self.time.now_ms()
        return View(
            "HeldPod",
            "pod",
            head=lambda wide: held_pods.HEAD_WIDE if wide else held_pods.HEAD,
            row=lambda summary, wide: held_pods.row(summary, now_ms, wide=wide),
            document=lambda summary: held_pods.document(summary, now_ms),
            style=lambda summary: "red" if summary.is_overdue(now_ms) else "",
        )
