"""Actions that make Holdfast need a right that it lacks: on pods, webhooks and the Lease.

Each function acts, and returns a function that checks whether the action succeeded.
"""

import itertools
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType

from docs.rights import Right
from tests.e2e import certificate_secrets
from tests.e2e.kubectl_user import refusal
from tests.e2e.namespace import Object, gates, pod
from tests.e2e.revoked_rights import APPROVER, RightsFixture
from tests.support.scrapes import metric

Done = Callable[[], bool]
SOON = {"delay": "250ms"}
RELEASES = "fieldSelector=spec.nodeName"
"""Only in the URIs of lists and watches of held pods."""
STRIP = {"op": "remove", "path": "/spec/schedulingGates/0"}
LEASE = "holdfast-controller"
UNPROCESSABLE = 422
"""The status of a JSON patch whose `test` operation fails."""


# --- held pods ---------------------------------------------------------------------------------


def is_released(stage: RightsFixture, name: str) -> Done:
    return lambda: not gates(stage.ns.get("pod", name))


def make_pod(stage: RightsFixture, name: str) -> Done:
    stored = stage.ns.create_when_called(pod(name, SOON))
    assert gates(stored)
    return is_released(stage, name)


def due(stage: RightsFixture, right: Right) -> Done:
    return make_pod(stage, f"due-{right.verb}")


def unlisted(stage: RightsFixture, right: Right) -> Done:
    """Create a pod while pods cannot be listed."""
    forget(stage, right, by=RELEASES)
    done = make_pod(stage, "unlisted")
    stage.await_refusal(right, by=RELEASES)
    return done


def forget(stage: RightsFixture, right: Right, by: str = "") -> None:
    """Force a new list of a kind, which needs the missing right."""
    with stage.without(right._replace(verb="watch")):
        stage.await_refusal(right, by=by)


def unwatched(stage: RightsFixture, right: Right) -> Done:
    """Do nothing: watches time out and are started again."""
    return stage.answered(right)


def unfrozen(stage: RightsFixture, right: Right) -> Done:
    """Freeze a namespace while namespaces cannot be listed."""
    annotate = ("annotate", "namespace", "default", "--overwrite")
    forget(stage, right)
    stage.ns.kubectl(*annotate, "holdfast.dev/freeze=a test")
    stage.afterwards.callback(stage.ns.kubectl, *annotate, "holdfast.dev/freeze-")
    stage.await_refusal(right)
    return lambda: metric(stage.controller, "holdfast_freezes ") == 1


def changed(stage: RightsFixture, right: Right) -> Done:
    """Let a release conflict with a change of the pod that the watch has not reported."""
    release = right._replace(group="holdfast.dev", resource="holds", verb="release")
    stage.afterwards.callback(stage.proxy.turn)
    with stage.without(release):
        done = make_pod(stage, "changed")
        stage.await_refusal(release)
        stage.proxy.turn(silent=True)
        stage.ns.kubectl("annotate", "pod", "changed", "team=a")
        failed = stage.asked(
            lambda request: (request.name, request.status) == ("changed", UNPROCESSABLE)
        )
    stage.ns.eventually(failed)
    stage.await_refusal(right)
    return done


AFTER: Mapping[str, str] = MappingProxyType(
    {
        "jobs": "job",
        "deployments": "deployment",
        "statefulsets": "statefulset",
        "daemonsets": "daemonset",
        "endpointslices": "service",
    }
)
"""The kinds in the annotation, by the resources that are watched."""


def waited_for(stage: RightsFixture, right: Right, kind: str) -> Done:
    """Create a pod that waits for an object of a kind that cannot be listed."""
    manifest = pod(f"after-{kind}", {"holdfast.dev/after": f"{AFTER[kind]}/missing"})
    assert gates(stage.ns.create_when_called(manifest))
    stage.await_refusal(right)
    return stage.answered(right)


def unfollowed(stage: RightsFixture, right: Right) -> Done:
    """Create a pod that waits for an object, and wait for a watch."""
    annotations = {"holdfast.dev/after": f"{AFTER[right.resource]}/missing"}
    stage.ns.create_when_called(pod(f"unfollowed-{right.resource}", annotations))
    return unwatched(stage, right)


OWNERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "replicasets": ("apps/v1", "ReplicaSet"),
        "controllerrevisions": ("apps/v1", "StatefulSet"),
        "jobs": ("batch/v1", "Job"),
    }
)
"""Owners of pods whose delay counts from the creation of such an object."""


def owned(stage: RightsFixture, right: Right) -> Done:
    """Create pods whose delay counts from their revision, each with another owner."""
    api_version, kind = OWNERS[right.resource]
    numbers = itertools.count()

    def make_owned() -> None:
        name = f"owned-{right.resource}-{next(numbers)}"
        manifest = pod(name, {"delay": "3600", "holdfast.dev/delay-from": "owner"})
        owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": name}
        labels = {"controller-revision-hash": name}
        manifest["metadata"] |= {
            "labels": labels,
            "ownerReferences": [owner | {"controller": True}],
        }
        stage.ns.create_when_called(manifest)

    make_owned()  # the first request is rejected
    answered = stage.answered(right)

    def done() -> bool:
        make_owned()
        return answered()

    return done


def untold(stage: RightsFixture, right: Right) -> Done:
    """Extend a hold repeatedly, which records an Event each time."""
    seconds = iter(range(3_600, 10_000))
    change = ("annotate", "pod", "untold", "--overwrite")
    stage.ns.create_when_called(pod("untold", {"delay": "3599"}))

    def has_event() -> bool:
        stage.ns.kubectl(*change, f"delay={next(seconds)}")
        return any(event["regarding"]["name"] == "untold" for event in events(stage))

    return has_event


def events(stage: RightsFixture, reason: str = "Held") -> list[Object]:
    all_events = stage.ns.all("events.events.k8s.io")
    return [event for event in all_events if event.get("reason") == reason]


def by_hand(stage: RightsFixture, right: Right) -> Done:
    """Release a pod as the namespace's admin."""
    stage.ns.create_when_called(pod("by-hand", {"delay": "3600"}))

    def done() -> bool:
        return not refusal(stage.admin.patch, "by-hand", [STRIP])

    done()
    return done


def approved(stage: RightsFixture, right: Right) -> Done:
    stage.ns.create_when_called(pod("asks", {"holdfast.dev/approval": "a test"}))
    path = "/metadata/annotations/holdfast.dev~1approved-by"

    def done() -> bool:
        change = {"op": "add", "path": path, "value": APPROVER}
        return not refusal(stage.approver.patch, "asks", [change])

    done()
    return done


# --- the webhooks ------------------------------------------------------------------------------


def blanked(stage: RightsFixture, right: Right, kind: str = "") -> Done:
    """Clear the caBundle of a webhook configuration."""
    kind = kind or right.resource
    operation = {"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}
    patch = ("--type=json", "-p", json.dumps([operation]))
    stage.installed.kubectl("patch", kind, "holdfast", *patch)
    stage.await_refusal(right)

    def done() -> bool:
        webhooks = stage.installed.get(kind, "holdfast")["webhooks"]
        bundles = [webhook["clientConfig"].get("caBundle") for webhook in webhooks]
        return all(bundles) and stage.ns.holds_pods()

    return done


def started(stage: RightsFixture, right: Right) -> Done:
    """Restart the controller: it must check whether all replicas know what it would publish."""
    stage.controller.stop()
    stage.controller.start()
    return blanked(stage, right, "mutatingwebhookconfiguration")


def deleted(stage: RightsFixture, right: Right) -> Done:
    stage.installed.kubectl("delete", "secret", right.name)
    stage.await_refusal(right)
    return lambda: bool(stage.installed.secret(right.name))


def corrupted(stage: RightsFixture, right: Right) -> Done:
    """Replace a certificate with invalid data."""
    certificate_secrets.corrupt(stage.installed, right.name)
    stage.await_refusal(right)
    broken = stage.installed.secret(right.name)
    return lambda: stage.installed.secret(right.name) != broken


def lost(stage: RightsFixture, right: Right) -> Done:
    stage.installed.kubectl("delete", "lease", LEASE)
    stage.await_refusal(right)
    return lambda: bool(stage.installed.kubectl("get", "lease", LEASE, "--ignore-not-found"))


def overtaken(stage: RightsFixture, right: Right) -> Done:
    """Change the Lease, so that its holder has a conflict and must read it."""
    stage.installed.kubectl("annotate", "lease", LEASE, f"by={right.verb}", "--overwrite")
    return expiring(stage, right)


def expiring(stage: RightsFixture, right: Right) -> Done:
    """Wait for the Lease to be renewed."""

    def renewed() -> str:
        return str(stage.installed.get("lease", LEASE)["spec"]["renewTime"])

    before = renewed()
    stage.await_refusal(right)
    return lambda: renewed() != before
