"""`holdfast approve`: approve held pods; and what it shares with `holdfast deny`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click
import msgspec

from holdfast.webhook.cli import commands, options, rights, targets, terminal
from holdfast.webhook.cli.targets import NamedTarget
from holdfast.webhook.controller.releaser import ATTEMPTS
from holdfast.webhook.errors import CommandError
from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.kube import listing, patching
from holdfast.webhook.kube.client import READ_TIMEOUT, Api, pod_path
from holdfast.webhook.model import reasons
from holdfast.webhook.model.approvals import (
    APPROVED_BY,
    DENIED_BY,
    DENIED_REASON,
    GATE,
    KEY,
    MARKS,
)
from holdfast.webhook.model.edits import Edit, RemoveAnnotation, SetAnnotation
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.policies.pods import APPROVE_VERB, APPROVER

EXAMPLES = """\b
Examples:
  holdfast approve web-0 web-1
  holdfast approve deployment/web -n shop
  holdfast approve web-0 --dry-run=server"""


approvable = click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="(POD | TYPE/NAME)...",
    shell_complete=commands.complete_held_pods,
)


@commands.command(epilog=EXAMPLES)
@approvable
@options.dry_run
@options.target
def approve(*, names: tuple[str, ...], target: options.Target) -> None:
    """Approve held pods that wait for an approval.

    Your user name is recorded on the pod. You need the verb `approve` on `holds.holdfast.dev`
    (ClusterRole holdfast-approver) and permission to get and patch pods. An approval replaces an
    earlier denial.
    """
    decide(target, names, denied=None)


def decide(target: options.Target, names: Sequence[str], *, denied: str | None) -> None:
    """Approve pods, or deny them with a reason, which may be empty. Raises CommandError."""
    wanted = targets.parse_all(names)
    cluster = target.connect()
    where = cluster.namespace
    rights.require(cluster, where, "approve or deny pods", APPROVE_VERB, APPROVER)
    user = _user(cluster)
    pods: dict[str, None] = {}
    problems = []
    for each in wanted:
        try:
            pods |= dict.fromkeys(_pods(cluster, where, each))
        except CommandError as exc:
            problems.append(str(exc))
    total = len(problems) + len(pods)
    decision = _Decision(cluster, where, user, denied, target.suffix)
    problems += filter(None, map(decision.write, pods))
    terminal.check_outcome(problems, total)


def _pods(api: Api, namespace: str, wanted: NamedTarget) -> Sequence[str]:
    """Name the pods of a workload that wait for an approval, or a pod."""
    if wanted.is_pod:
        return [wanted.name]
    found = wanted.pods(api, namespace, Pod)
    waiting = [pod.metadata.name for pod in found if GATE in pod.gates]
    if not waiting:
        place = f"{wanted.kind} {wanted.name} in namespace {namespace}"
        raise CommandError(f"no pod of {place} waits for an approval")
    return waiting


def _user(api: Api) -> str:
    """Return the name of this user, as the API server knows it."""
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    answer = msgspec.json.decode(api.request("POST", path, body=msgspec.json.encode(asked)))
    return str(answer["status"]["userInfo"]["username"])


@dataclass(frozen=True, slots=True)
class _Decision:
    """A decision to write to pods: the user, and for a denial its reason."""

    api: Api
    namespace: str
    user: str
    denied: str | None
    suffix: str

    def write(self, name: str) -> str:
        """Write it to a pod, and print that; return the problem, if any."""
        done = "approved" if self.denied is None else "denied"
        path, shown_name = pod_path(self.namespace, name), f"pod {self.namespace}/{name}"
        problem = "it kept changing; try again"
        for _ in range(ATTEMPTS):
            pod = listing.one(self.api, path, Pod)
            if pod is None or GATE not in pod.gates:
                problem = "it does not wait for an approval" if pod else "not found"
                break
            operations = patch(pod, _edits(pod, self.user, self.denied))
            version = (pod.metadata.uid, pod.metadata.resource_version)
            refusal = patching.write(
                self.api, path, patching.guarded(*version, operations), timeout=READ_TIMEOUT
            )
            if refusal is None:
                reason = reasons.shown(pod.annotations.get(KEY, ""))
                text = f"{shown_name} {done} by {self.user}: {reason}{self.suffix}"
                terminal.write([(text, "green")])
                return ""
            problem = str(refusal)
        return f"{shown_name} not {done}: {problem}"


def _edits(pod: Pod, user: str, denied: str | None) -> list[Edit]:
    wanted = {APPROVED_BY: user} if denied is None else {DENIED_BY: user}
    if denied:
        wanted[DENIED_REASON] = denied
    old = [RemoveAnnotation(key) for key in MARKS if key in pod.annotations and key not in wanted]
    return [*old, *(SetAnnotation(key, value) for key, value in wanted.items())]
