"""What is done to have Holdfast need a right that it lacks: held pods, the webhooks, the Lease.

Each function does it, and returns what tells whether it got done after all.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from docs.rights import Right
from tests.e2e import pairs
from tests.e2e.actors import refusal
from tests.e2e.deprived import Stage
from tests.e2e.world import Object, gates, pod

Done = Callable[[], bool]
SOON = {"delay": "250ms"}
RELEASES = "fieldSelector=spec.nodeName"
"""In the URI of the lists and watches of held pods, and no others."""
STRIP = {"op": "remove", "path": "/spec/schedulingGates/0"}
LEASE = "holdfast-controller"
UNPROCESSABLE = 422
"""The answer to a patch that fails its own tests."""


# --- held pods ---------------------------------------------------------------------------------


def is_released(stage: Stage, name: str) -> Done:
    return lambda: not gates(stage.world.get("pod", name))


def make_pod(stage: Stage, name: str) -> Done:
    """Make a pod that is due at once, and tell whether it is released."""
    made = stage.world.create_when_called(pod(name, SOON))
    assert gates(made)
    return is_released(stage, name)


def due(stage: Stage, right: Right) -> Done:
    """Make a pod that is due at once."""
    return make_pod(stage, f"due-{right.verb}")


def unlisted(stage: Stage, right: Right) -> Done:
    """Make a pod of which no list tells."""
    forget(stage, right, by=RELEASES)
    done = make_pod(stage, "unlisted")
    stage.await_refusal(right, by=RELEASES)
    return done


def forget(stage: Stage, right: Right, by: str = "") -> None:
    """Have everything of a kind listed anew, which the missing right is for."""
    with stage.without(right._replace(verb="watch")):
        stage.await_refusal(right, by=by)


def unwatched(stage: Stage, right: Right) -> Done:
    """Do nothing: a watch ends by itself, and another is asked for."""
    return stage.answered(right)


def changed(stage: Stage, right: Right) -> Done:
    """Have a release meet a change of the pod of which the watch has not told."""
    release = right._replace(group="holdfast.dev", resource="holds", verb="release")
    stage.afterwards.callback(stage.proxy.turn)
    with stage.without(release):
        done = make_pod(stage, "changed")
        stage.await_refusal(release)
        stage.proxy.turn(silent=True)
        stage.world.kubectl("annotate", "pod", "changed", "team=a")
        failed = stage.asked(lambda one: (one.name, one.status) == ("changed", UNPROCESSABLE))
    stage.world.eventually(failed)
    stage.await_refusal(right)
    return done


def untold(stage: Stage, right: Right) -> Done:
    """Have a pod held ever longer, which is told each time."""
    seconds = iter(range(3_600, 10_000))
    change = ("annotate", "pod", "untold", "--overwrite")
    stage.world.create_when_called(pod("untold", {"delay": "3599"}))

    def told() -> bool:
        stage.world.kubectl(*change, f"delay={next(seconds)}")
        return any(one["regarding"]["name"] == "untold" for one in events(stage))

    return told


def events(stage: Stage, reason: str = "Held") -> list[Object]:
    found = stage.world.all("events.events.k8s.io")
    return [one for one in found if one.get("reason") == reason]


def by_hand(stage: Stage, right: Right) -> Done:
    """Have a namespace's admin release a pod."""
    stage.world.create_when_called(pod("by-hand", {"delay": "3600"}))

    def done() -> bool:
        return not refusal(stage.admin.patch, "by-hand", [STRIP])

    done()
    return done


# --- the webhooks ------------------------------------------------------------------------------


def blanked(stage: Stage, right: Right, kind: str = "") -> Done:
    """Take the caBundle out of a webhook configuration."""
    kind = kind or right.resource
    blank = {"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}
    patch = ("--type=json", "-p", json.dumps([blank]))
    stage.installed.kubectl("patch", kind, "holdfast", *patch)
    stage.await_refusal(right)

    def done() -> bool:
        webhooks = stage.installed.get(kind, "holdfast")["webhooks"]
        bundles = [one["clientConfig"].get("caBundle") for one in webhooks]
        return all(bundles) and stage.world.holds_pods()

    return done


def started(stage: Stage, right: Right) -> Done:
    """Start the controller anew: it has to find out whether what it would publish is known."""
    stage.controller.stop()
    stage.controller.start()
    return blanked(stage, right, "mutatingwebhookconfiguration")


def deleted(stage: Stage, right: Right) -> Done:
    """Delete a Secret with a certificate and its key."""
    stage.installed.kubectl("delete", "secret", right.name)
    stage.await_refusal(right)
    return lambda: bool(stage.installed.secret(right.name))


def spoilt(stage: Stage, right: Right) -> Done:
    """Put something else in the place of a certificate."""
    pairs.corrupt(stage.installed, right.name)
    stage.await_refusal(right)
    broken = stage.installed.secret(right.name)
    return lambda: stage.installed.secret(right.name) != broken


def lost(stage: Stage, right: Right) -> Done:
    """Delete the Lease."""
    stage.installed.kubectl("delete", "lease", LEASE)
    stage.await_refusal(right)
    return lambda: bool(stage.installed.kubectl("get", "lease", LEASE, "--ignore-not-found"))


def overtaken(stage: Stage, right: Right) -> Done:
    """Write the Lease ahead of its holder, who has to read it then."""
    stage.installed.kubectl("annotate", "lease", LEASE, f"by={right.verb}", "--overwrite")
    return expiring(stage, right)


def expiring(stage: Stage, right: Right) -> Done:
    """Wait for the Lease to be renewed."""

    def renewed() -> str:
        return str(stage.installed.get("lease", LEASE)["spec"]["renewTime"])

    before = renewed()
    stage.await_refusal(right)
    return lambda: renewed() != before
