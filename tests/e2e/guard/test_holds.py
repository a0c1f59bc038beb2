"""Only users with the verb release may release a held pod or change its hold."""

from collections.abc import Sequence

import pytest

from holdfast.webhook.policies import pods as pod_policies
from tests.e2e.guard.changes import HOLD_CHANGES, STRIP, annotation, remove, write
from tests.e2e.guard.cluster import Guarded
from tests.e2e.guard.objects import FOREIGN_GATE, GATE, full, held
from tests.e2e.kubectl_user import Operation, refusal
from tests.e2e.namespace import Namespace, gates, pod

pytestmark = pytest.mark.xdist_group("guard")


@pytest.mark.parametrize(("change", "what"), HOLD_CHANGES.values(), ids=HOLD_CHANGES)
def test_developer_cannot_release_or_change_a_hold(
    guarded: Guarded, shared: Namespace, change: Sequence[Operation], what: str
) -> None:
    message = refusal(guarded.user(shared, "jane").patch, "held", change, dry_run=False)
    name = shared.namespace
    assert message.endswith(
        f"pod {name}/held is held by holdfast.dev/delay: jane may not {what}: this needs "
        f"the verb 'release' on holds.holdfast.dev in namespace {name} (role holdfast-releaser)"
    )


def test_key_in_the_hint_is_guarded_even_if_unconfigured(guarded: Guarded, ns: Namespace) -> None:
    hint = {"example.com/wait": "1000", "holdfast.dev/held": "example.com/wait=1000s,jitter=1s"}
    ns.apply(pod("old", hint, schedulingGates=[{"name": GATE}]))
    jane = guarded.user(ns, "jane")
    message = refusal(jane.patch, "old", [annotation("example.com/wait", "0")])
    assert "jane may not change example.com/wait:" in message
    jane.patch("old", [annotation("jitter", "mine")])


def test_annotations_cannot_be_changed_through_the_pod_status(
    guarded: Guarded, ns: Namespace
) -> None:
    ns.apply(held("held"))
    ns.kubectl("create", "role", "status", "--verb=get,patch", "--resource=pods/status")
    ns.kubectl("create", "rolebinding", "status", "--user=jane", "--role=status")
    jane = guarded.user(ns, "jane")
    message = refusal(jane.patch, "held", [annotation("delay", "0")], "--subresource=status")
    assert "jane may not change delay:" in message
    jane.patch("held", [annotation("team", "a")], "--subresource=status")


def test_namespace_admin_may_release_and_change_holds(guarded: Guarded, ns: Namespace) -> None:
    ns.apply(held("held"))
    amy = guarded.user(ns, "amy")
    ns.eventually(lambda: not refusal(amy.patch, "held", [STRIP]))  # wait for role aggregation
    messages = {
        name: refusal(amy.patch, "held", operations)
        for name, (operations, _) in HOLD_CHANGES.items()
    }
    assert messages == dict.fromkeys(HOLD_CHANGES, "")
    amy.patch("held", [STRIP], dry_run=False)
    assert gates(ns.get("pod", "held")) == []


def test_namespace_with_held_pods_can_be_deleted(guarded: Guarded) -> None:
    ns = guarded.ns()
    ns.apply(held("held"))
    ns.plane.kubectl("delete", "namespace", ns.namespace, "--timeout=60s")


def test_role_named_in_the_message_permits_the_release(guarded: Guarded, ns: Namespace) -> None:
    ns.apply(held("held"))
    jane = guarded.user(ns, "jane")
    assert "(role holdfast-releaser)" in refusal(jane.patch, "held", [STRIP])
    ns.kubectl("create", "rolebinding", "cure", "--user=jane", "--clusterrole=holdfast-releaser")
    ns.eventually(lambda: not refusal(jane.patch, "held", [STRIP]))


def test_replica_set_orphans_and_adopts_held_pods(guarded: Guarded, ns: Namespace) -> None:
    """The garbage collector removes the owner reference, and the ReplicaSet controller adds it."""
    template = held("web")
    metadata = {**template["metadata"], "labels": {"app": "web"}}
    web = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": metadata, "spec": template["spec"]},
        },
    }

    def owned(number: int) -> set[str]:
        """Return the UIDs of both pods once each has this number of owners."""
        metas = [manifest["metadata"] for manifest in ns.all("pods")]
        alike = all(len(meta.get("ownerReferences", ())) == number for meta in metas)
        return {meta["uid"] for meta in metas} if alike and len(metas) == 2 else set()

    ns.apply(web)
    before = ns.eventually(lambda: owned(1))
    ns.kubectl("delete", "replicaset", "web", "--cascade=orphan")
    assert ns.eventually(lambda: owned(0)) == before
    ns.apply(web)
    assert ns.eventually(lambda: owned(1)) == before
    assert [gates(manifest) for manifest in ns.all("pods")] == [[GATE]] * 2


def test_shared_controller_manager_account_may_move_held_pods(
    guarded: Guarded, ns: Namespace
) -> None:
    """It may run without a ServiceAccount for each controller."""
    ns.apply(held("held"))
    name = "system:kube-controller-manager"
    ns.kubectl("create", "rolebinding", "kcm", f"--user={name}", "--clusterrole=edit")
    manager = guarded.user(ns, name)
    ns.eventually(lambda: "forbidden" not in refusal(manager.kubectl, "get", "pods"))
    for change, field in HOLD_CHANGES.values():
        message = refusal(manager.patch, "held", change)
        assert "may not" in message if field != pod_policies.MOVED else message == ""


def test_release_right_is_limited_to_its_namespace(
    guarded: Guarded, ns: Namespace, shared: Namespace
) -> None:
    ns.kubectl("create", "rolebinding", "more", "--user=amy", "--clusterrole=edit")
    shared.kubectl("create", "rolebinding", "guest", "--user=ann", "--clusterrole=edit")
    ns.kubectl("create", "rolebinding", "chief", "--user=ann", "--clusterrole=admin")
    message = refusal(guarded.user(shared, "ann").patch, "held", [STRIP])
    assert "ann may not release it" in message


def test_developer_can_make_other_changes_to_a_held_pod(guarded: Guarded, ns: Namespace) -> None:
    ns.apply(full("full"))
    jane = guarded.user(ns, "jane")
    jane.kubectl("label", "pod", "full", "app=other", "--overwrite")
    jane.kubectl("annotate", "pod", "full", "team=b", "sticky=yes", "--overwrite")
    jane.patch("full", [remove("/spec/schedulingGates/1")], dry_run=False)
    jane.patch("full", [remove("/metadata/finalizers")], dry_run=False)
    assert gates(ns.get("pod", "full")) == [GATE]
    jane.kubectl("delete", "pod", "full")
    assert ns.all("pods") == []


def test_guard_ignores_pods_without_our_gate(guarded: Guarded, ns: Namespace) -> None:
    spec = {"schedulingGates": [{"name": FOREIGN_GATE}]}
    ns.apply(pod("free", {"delay": "15"}), pod("others", {"delay": "15"}, **spec))
    jane = guarded.user(ns, "jane")
    for name in ("free", "others"):
        jane.kubectl("annotate", "pod", name, "delay=0", "holdfast.dev/held=x", "--overwrite")
        jane.kubectl("annotate", "pod", name, "delay-", "holdfast.dev/held-")
    jane.patch("others", [STRIP], dry_run=False)


def test_gates_cannot_be_added_to_an_existing_pod(guarded: Guarded, shared: Namespace) -> None:
    for actor in (guarded.controller(shared), guarded.user(shared, "amy")):
        operations = [write("/spec/schedulingGates/-", {"name": "holdfast.dev/other"})]
        assert "only deletion is allowed" in refusal(actor.patch, "full", operations)
