"""Only approvers approve pods, and change pods that ask for approval."""

import pytest

from holdfast.webhook.model.approvals import APPROVED_BY, DENIED_BY, KEY, MARKS
from holdfast.webhook.model.approvals import GATE as APPROVAL_GATE
from tests.e2e.guard.changes import STRIP, annotation, write
from tests.e2e.guard.cluster import CONTROLLER, Guarded
from tests.e2e.guard.objects import FOREIGN_GATE
from tests.e2e.kubectl_user import refusal
from tests.e2e.namespace import Namespace, gates, pod

pytestmark = pytest.mark.xdist_group("guard")


def test_only_approvers_approve_and_only_in_their_own_name(guarded: Guarded, ns: Namespace) -> None:
    spec = {"schedulingGates": [{"name": APPROVAL_GATE}]}
    ns.apply(*(pod(name, {KEY: "a test"}, **spec) for name in ("asks", "other")))
    for role in ("edit", "holdfast-approver"):
        ns.kubectl("create", "rolebinding", f"ann-{role}", "--user=ann", f"--clusterrole={role}")
    jane, amy, ann = (guarded.user(ns, name) for name in ("jane", "amy", "ann"))
    approved, denied = annotation(APPROVED_BY, "ann"), annotation(DENIED_BY, "ann")
    ns.eventually(lambda: not refusal(ann.patch, "asks", [approved]))
    for user, name in ((jane, "jane"), (amy, "amy")):  # the admin may release, but not approve
        message = refusal(user.patch, "asks", [annotation(APPROVED_BY, name)])
        assert message.endswith(
            f"{name} may not approve or deny pod {ns.namespace}/asks: this needs the verb "
            f"'approve' on holds.holdfast.dev in namespace {ns.namespace} (role holdfast-approver)"
        )
    for key in (APPROVED_BY, DENIED_BY):
        assert "must be the name of the user" in refusal(
            ann.patch, "asks", [annotation(key, "amy")]
        )
    assert "may not release it" in refusal(ann.patch, "asks", [STRIP])
    for mark in MARKS:  # without a hold annotation, no webhook reviews it
        forged = pod("forged", {mark: "amy"})
        assert "may not approve or deny pod" in refusal(jane.create, forged)
    ann.create(forged)
    ann.patch("other", [denied], dry_run=False)
    ann.patch("asks", [approved], dry_run=False)
    ns.eventually(lambda: "asks" in ns.releases())
    assert gates(ns.get("pod", "other")) == [APPROVAL_GATE]
    assert "must be the name" in refusal(ann.patch, "asks", [annotation(APPROVED_BY, "amy")])
    (approver,) = {
        event["user"]["username"]
        for event in ns.audit()
        if event["verb"] == "patch"
        and event["objectRef"]["name"] == "asks"
        and event["responseStatus"]["code"] == 200
        and event["user"]["username"] != CONTROLLER
        and "subresource" not in event["objectRef"]
        and "dryRun" not in event["requestURI"]
    }
    assert approver == "ann"


def test_only_approvers_change_containers_of_pods_with_approval(
    guarded: Guarded, ns: Namespace
) -> None:
    init_containers = [{"name": "first", "image": "busybox"}]
    for name, gate, annotations in (
        ("asks", APPROVAL_GATE, {KEY: "a test"}),
        ("waits", FOREIGN_GATE, {KEY: "a test", APPROVED_BY: "ann"}),
        ("free", FOREIGN_GATE, {}),
    ):
        ns.apply(
            pod(name, annotations, schedulingGates=[{"name": gate}], initContainers=init_containers)
        )
    for role in ("edit", "holdfast-approver"):
        ns.kubectl("create", "rolebinding", f"ann-{role}", "--user=ann", f"--clusterrole={role}")
    ns.kubectl("create", "role", "debug", "--verb=get,patch", "--resource=pods/ephemeralcontainers")
    for user in ("jane", "ann"):
        ns.kubectl("create", "rolebinding", f"{user}-debug", f"--user={user}", "--role=debug")
    jane, ann = guarded.user(ns, "jane"), guarded.user(ns, "ann")
    ns.eventually(lambda: not refusal(ann.patch, "asks", [annotation(APPROVED_BY, "ann")]))
    debugger = write("/spec/ephemeralContainers", [{"name": "more", "image": "evil"}])
    for change in (
        [[write("/spec/containers/0/image", "evil")]],
        [[write("/spec/initContainers/0/image", "evil")]],
        [[debugger], "--subresource=ephemeralcontainers"],
    ):
        assert refusal(jane.patch, "free", *change) == ""
        for name in ("asks", "waits"):
            message = refusal(jane.patch, name, *change)
            assert (
                f"jane may not change the containers of pod {ns.namespace}/{name}: this" in message
            )
            assert refusal(ann.patch, name, *change) == ""
    assert refusal(jane.patch, "asks", [write("/metadata/labels", {"a": "b"})]) == ""
