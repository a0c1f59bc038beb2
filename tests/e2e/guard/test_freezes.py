"""Users who may freeze a namespace may not change anything else in it."""

import json

import pytest

from holdfast.webhook.model.freezes import FREEZE, FREEZE_UNTIL
from tests.e2e.guard.changes import FREEZER_MAY_NOT, LEVEL, annotation, write
from tests.e2e.guard.cluster import Guarded
from tests.e2e.guard.objects import role
from tests.e2e.kubectl_user import KubectlUser, refusal
from tests.e2e.namespace import Namespace

pytestmark = pytest.mark.xdist_group("guard")


def test_freezer_may_only_change_freeze_annotations(guarded: Guarded, ns: Namespace) -> None:
    for what in ("annotate", "label"):
        ns.kubectl(what, "namespace", ns.namespace, "team=a")
    fred, name = guarded.user(ns, "fred"), ns.namespace
    for change, what in FREEZER_MAY_NOT.values():
        message = refusal(fred.patch, name, change, kind="namespace")
        assert f"with the verb 'freeze' alone, you may not change {what}" in message
    freeze = [annotation(FREEZE, "x"), annotation(FREEZE_UNTIL, "2020-01-01T00:00:00Z")]
    fred.patch(name, freeze, kind="namespace", dry_run=False)
    fred.patch(name, [annotation(FREEZE, None)], kind="namespace", dry_run=False)

    ns.kubectl("create", "role", "own", "--verb=update", "--resource=namespaces")
    ns.kubectl("create", "rolebinding", "own", "--user=fred", "--role=own")
    ns.eventually(lambda: not refusal(fred.patch, name, [LEVEL], kind="namespace"))
    for user in (KubectlUser(ns, ns.plane.kubeconfig), fred):
        for change, _ in FREEZER_MAY_NOT.values():
            user.patch(name, change, kind="namespace")


def test_freezer_cannot_grant_patch_on_namespaces(guarded: Guarded, ns: Namespace) -> None:
    """An account that may patch namespaces, without the verb 'freeze', may change every field."""
    fay, may_patch = guarded.user(ns, "fay"), role("labeler", "namespaces", "get", "patch")
    message = (
        "you may not grant the verb 'patch' on namespaces: bind the ClusterRole holdfast-freezer"
    )
    ns.eventually(lambda: message in refusal(fay.create, may_patch))
    reader_role = role("labeler", "namespaces", "get")
    empty_role = role("empty", "pods") | {"rules": None}
    fay.create(reader_role, role("reader", "pods", "get", "patch"), empty_role, dry_run=False)
    fay.patch("empty", [write("/metadata/labels", {"team": "a"})], kind="role")
    change = [write("/rules", may_patch["rules"])]
    for name in ("labeler", "empty"):
        assert message in refusal(fay.patch, name, change, kind="role")

    ns.kubectl("patch", "role", "labeler", "--type=json", f"--patch={json.dumps(change)}")
    fay.patch("labeler", [write("/metadata/labels", {"team": "a"})], kind="role")
    account = f"system:serviceaccount:{ns.namespace}:default"
    ns.kubectl("annotate", "namespace", ns.namespace, "team=a")
    fay.kubectl("create", "rolebinding", "x", "--clusterrole=holdfast-freezer", f"--user={account}")
    bound_user = guarded.user(ns, account)
    freeze = [annotation(FREEZE, "x")]
    ns.eventually(lambda: not refusal(bound_user.patch, ns.namespace, freeze, kind="namespace"))
    assert "you may not change metadata.labels" in refusal(
        bound_user.patch, ns.namespace, [LEVEL], kind="namespace"
    )

    ns.kubectl("create", "role", "own", "--verb=update", "--resource=namespaces")
    ns.kubectl("create", "rolebinding", "own", "--user=fay", "--role=own")
    ns.eventually(lambda: not refusal(fay.create, role("other", "namespaces", "patch")))
