"""`holdfast approve` and `holdfast deny`: decide about held pods that wait for an approval."""

from __future__ import annotations

from functools import partial

import click
import msgspec

from holdfast.webhook import safe_json
from holdfast.webhook.cli import commands, options
from holdfast.webhook.cli.selection import PodAction, PodChoice, pod_choice
from holdfast.webhook.controller.releaser import ATTEMPTS
from holdfast.webhook.errors import InvalidValueError
from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.kube import listing, patching
from holdfast.webhook.kube.api import READ_TIMEOUT, Api, pod_path
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

APPROVE_EXAMPLES = """\b
Examples:
  holdfast approve web-0 web-1
  holdfast approve deployment/web -n shop    asks before approving several pods
  holdfast approve -l app=web --yes          does not ask"""
DENY_EXAMPLES = """\b
Examples:
  holdfast deny web-0 --reason "change freeze until Monday"
  holdfast deny -l app=web --yes"""


@commands.command(epilog=APPROVE_EXAMPLES)
@pod_choice("approve")
@options.dry_run
@options.target
def approve(*, choice: PodChoice, target: options.Target) -> None:
    """Approve held pods that wait for an approval.

    Your user name is recorded on the pod. You need the verb `approve` on `holds.holdfast.dev`
    (ClusterRole holdfast-approver), and get and patch on pods; with -l or a workload also list. A
    workload also needs get on it, a Deployment list on ReplicaSets, and a VM list on VMIs. An
    approval replaces an earlier denial.
    """
    _decide(target, choice, denied=None)


@commands.command(epilog=DENY_EXAMPLES)
@pod_choice("deny")
@click.option("--reason", default="", help="The reason, which the pod's Event shows.")
@options.dry_run
@options.target
def deny(*, choice: PodChoice, reason: str, target: options.Target) -> None:
    """Deny held pods that wait for an approval. They stay held.

    You need the same permissions as for `holdfast approve`. Denied pods can still be approved.
    """
    try:
        text = reasons.parse(reason) if reason else ""
    except InvalidValueError as exc:
        raise click.UsageError(f"--reason: {exc}") from None
    _decide(target, choice, denied=text)


def _decide(target: options.Target, choice: PodChoice, *, denied: str | None) -> None:
    """Approve pods, or deny them with a reason, which may be empty. Raises CommandError."""
    cluster = target.connect()
    verb, done = ("approve", "approved") if denied is None else ("deny", "denied")
    PodAction(
        verb=verb,
        done=done,
        what="pods that wait for an approval",
        right=("approve or deny pods", APPROVE_VERB, APPROVER),
        concerns=lambda pod: GATE in pod.gates,
        unconcerned=lambda pod: f"{_shown(pod)} not {done}: it does not wait for an approval",
        write=partial(_write, cluster, _user(cluster), denied, done),
    ).run(cluster, choice, target.suffix)


def _user(api: Api) -> str:
    """Return the user name that the API server authenticated."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    response = api.request("POST", path, body=msgspec.json.encode(review))
    return str(listing.decoded(response, path, safe_json.ANY)["status"]["userInfo"]["username"])


def _write(api: Api, user: str, denied: str | None, done: str, pod: Pod) -> tuple[str, str]:
    """Write a decision to a pod, and return the outcome or the problem."""
    path, problem, uid = pod_path(*pod.key), "it kept changing; try again", pod.metadata.uid
    current_pod: Pod | None = pod
    for _ in range(ATTEMPTS):
        if current_pod is None or current_pod.metadata.uid != uid or GATE not in current_pod.gates:
            problem = "it no longer waits for an approval"
            break
        operations = patch(current_pod, _edits(current_pod, user, denied))
        guarded = patching.guarded(uid, current_pod.metadata.resource_version, operations)
        refusal = patching.write(api, path, guarded, timeout=READ_TIMEOUT)
        if refusal is None:
            reason = reasons.shown(current_pod.annotations.get(KEY, ""))
            return f"{_shown(pod)} {done} by {user}: {reason}", ""
        problem, current_pod = str(refusal), listing.one(api, path, Pod)
    return "", f"{_shown(pod)} not {done}: {problem}"


def _shown(pod: Pod) -> str:
    return f"pod {pod.metadata.namespace}/{pod.metadata.name}"


def _edits(pod: Pod, user: str, denied: str | None) -> list[Edit]:
    marks = {APPROVED_BY: user} if denied is None else {DENIED_BY: user}
    if denied:
        marks[DENIED_REASON] = denied
    removals = [
        RemoveAnnotation(key) for key in MARKS if key in pod.annotations and key not in marks
    ]
    return [*removals, *(SetAnnotation(key, value) for key, value in marks.items())]
