"""`holdfast approve`: approve held pods; and what it shares with `holdfast deny`."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from holdfast.webhook.cli import options, rights, terminal
from holdfast.webhook.controller.releaser import ATTEMPTS
from holdfast.webhook.errors import CommandError
from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.kube import listing, patching
from holdfast.webhook.kube.client import READ_TIMEOUT, Api, Cluster, pod_path
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
from holdfast.webhook.report import table

EXAMPLES = """\b
Examples:
  holdfast approve web-0 web-1
  holdfast approve web-0 -n shop"""


@click.command(epilog=EXAMPLES)
@click.argument("pods", nargs=-1, required=True)
@options.namespace
@options.target
def approve(*, pods: tuple[str, ...], namespace: str | None, target: options.Target) -> None:
    """Approve held pods that wait for an approval.

    Your user name is recorded on the pod. You need the verb `approve` on `holds.holdfast.dev`
    (ClusterRole holdfast-approver) and permission to get and patch pods. An approval replaces an
    earlier denial.
    """
    decide(target.connect(), namespace, pods, denied=None)


def decide(
    cluster: Cluster, namespace: str | None, names: Sequence[str], *, denied: str | None
) -> None:
    """Approve pods, or deny them with a reason, which may be empty. Raises CommandError."""
    where = namespace or cluster.namespace
    rights.require(cluster, where, "approve or deny pods", APPROVE_VERB, APPROVER)
    user = _user(cluster)
    failed = [
        name for name in dict.fromkeys(names) if not _decide(cluster, where, name, user, denied)
    ]
    if failed:
        counted = table.counted(len(names), "pod")
        raise CommandError(f"{len(failed)} of {counted} failed; the reasons are above")


def _user(api: Api) -> str:
    """Return the name of this user, as the API server knows it."""
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    answer = msgspec.json.decode(api.request("POST", path, body=msgspec.json.encode(asked)))
    return str(answer["status"]["userInfo"]["username"])


def _decide(api: Api, namespace: str, name: str, user: str, denied: str | None) -> bool:
    """Write the user's name to a pod, and print the outcome."""
    done, shown_name = "approved" if denied is None else "denied", f"pod {namespace}/{name}"
    problem = "it kept changing; try again"
    for _ in range(ATTEMPTS):
        pod = listing.one(api, pod_path(namespace, name), Pod)
        if pod is None or GATE not in pod.gates:
            problem = "it does not wait for an approval" if pod else "there is no such pod"
            break
        operations = patch(pod, _edits(pod, user, denied))
        version = (pod.metadata.uid, pod.metadata.resource_version)
        refusal = patching.write(
            api,
            pod_path(namespace, name),
            patching.guarded(*version, operations),
            timeout=READ_TIMEOUT,
        )
        if refusal is None:
            reason = reasons.shown(pod.annotations.get(KEY, ""))
            terminal.write([(f"{shown_name} {done} by {user}: {reason}", "green")])
            return True
        problem = str(refusal)
    terminal.write([(f"{shown_name} not {done}: {problem}", "red")])
    return False


def _edits(pod: Pod, user: str, denied: str | None) -> list[Edit]:
    wanted = {APPROVED_BY: user} if denied is None else {DENIED_BY: user}
    if denied:
        wanted[DENIED_REASON] = denied
    old = [RemoveAnnotation(key) for key in MARKS if key in pod.annotations and key not in wanted]
    return [*old, *(SetAnnotation(key, value) for key, value in wanted.items())]
