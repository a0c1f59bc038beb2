"""The controller, broken on purpose so that one tenant can delay others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.webhook.controller import controller
from holdfast.webhook.model.annotations import HELD_LABEL
from holdfast.webhook.model.objects import ObjectKey, Pod
from holdfast.webhook.plugins.after import objects as after_objects
from holdfast.webhook.workqueue import fair
from tests.faults.breaks.replacing import put


def largest_crowd_first() -> None:
    """The namespace with the most due pods is served first, by any free thread."""

    def _next(_self: fair.FairQueue, queue: Mapping[str, Any]) -> str | None:
        return max(queue, key=lambda namespace: len(queue[namespace]), default=None)

    put(fair.FairQueue, _next)


def goes_by_labels() -> None:
    """Only pods with the label are considered held."""
    original = controller.ReleaseController._take

    def _take(self: controller.ReleaseController, pod: Pod, *, watched: bool) -> bool:
        return HELD_LABEL in pod.labels and original(self, pod, watched=watched)

    put(controller.ReleaseController, _take)


def asks_everybody() -> None:
    """A change of an object rechecks every pod that waits for an object of its kind."""

    def _affected(self: Any, *_args: Any, **_kwargs: Any) -> Iterable[Mapping[str, ObjectKey]]:
        return (pods for targets in self.pods.values() for pods in targets.values())

    put(after_objects._FollowedKind, _affected)
