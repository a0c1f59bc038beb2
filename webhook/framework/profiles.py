"""Profiles, which select the plugins that serve a pod, and the Verdict of these plugins.

A profile enables plugins in order, each with its own arguments. The pod's schedulerName selects
the profile.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import msgspec

from holdfast.webhook.framework.plugin import Code, Plugin, overrides
from holdfast.webhook.model.annotations import (
    ALLOWED_ANNOTATION,
    HELD_LABEL,
    PROFILE_ANNOTATION,
    RELEASED_ANNOTATION,
)
from holdfast.webhook.model.edits import Edit
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.review import PodReview

DEFAULT_SCHEDULER = "default-scheduler"
"""The API server's default for pods, and for templates of built-in kinds (DefaultSchedulerName).

It is not set in the template of a VirtualMachine.
"""
REST_OF_PODS = "*"
"""The profile for every schedulerName that no other profile names."""


@dataclass(eq=False)
class Profile:
    """A named list of plugins, in the order in which they run.

    It serves the pods with one schedulerName, by default its name, in all namespaces or in some.
    `run_all` reports every rejection, not only the first, like the scheduler's runAllFilters. A
    plugin that fails in `permit` for longer than the timeout no longer holds the pod.
    """

    name: str
    plugins: Sequence[Plugin]
    run_all: bool = True
    _: KW_ONLY
    scheduler_name: str = ""
    namespaces: Sequence[str] = ()
    permit_timeout_ms: int | None = None

    def __post_init__(self) -> None:
        self.scheduler_name = self.scheduler_name or self.name
        # Determined once, because looking up the extension points would slow down every review.
        self.blocking = [
            plugin for plugin in self.plugins if plugin.may_block or overrides(plugin, "blocks")
        ]
        self.holding = [plugin for plugin in self.plugins if plugin.gate]
        self.releasing = [plugin for plugin in self.plugins if overrides(plugin, "at_release")]
        self.finalizing = [plugin for plugin in self.plugins if plugin.finalizer]
        self.written = {name for plugin in self.plugins for name in plugin.scheduler_names}


class Verdict(msgspec.Struct, frozen=True):
    """The joint decision of a profile's plugins about one pod."""

    code: Code
    edits: Sequence[Edit] = ()
    reasons: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def message(self) -> str:
        """All reasons, joined on one line."""
        return "; ".join(self.reasons)


def scheduler_of(pod: Pod) -> str:
    """Return the scheduler name of a pod, or of a template's pods."""
    return pod.spec.scheduler_name or DEFAULT_SCHEDULER


@dataclass(frozen=True, slots=True)
class Selectors:
    """Label selectors, in JSON form, of the namespaces and pods that the webhooks receive."""

    namespaces: Mapping[str, Any] = field(default_factory=dict)
    objects: Mapping[str, Any] = field(default_factory=dict)


NO_SELECTORS = Selectors()


class Profiles:
    """All profiles, by name, and the selectors of all webhooks."""

    def __init__(self, profiles: Iterable[Profile], selectors: Selectors = NO_SELECTORS) -> None:
        self.by_name: Mapping[str, Profile] = {profile.name: profile for profile in profiles}
        self.selectors = selectors
        self._served = {
            (profile.scheduler_name, namespace): profile
            for profile in self.by_name.values()
            for namespace in profile.namespaces or ("",)
        }
        self.plugins = [plugin for profile in self.by_name.values() for plugin in profile.plugins]
        self.reserved_annotations = _unique(
            [ALLOWED_ANNOTATION, RELEASED_ANNOTATION],
            *(plugin.reserved_annotations for plugin in self.plugins),
        )
        self.reserved_labels = _unique(
            [HELD_LABEL], *(plugin.reserved_labels for plugin in self.plugins)
        )

    def select(self, pod: Pod) -> Profile | None:
        """Return a stored pod's profile: the recorded one, or else the one for a new pod."""
        namespace = pod.metadata.namespace
        return self.recorded(pod, namespace) or self._serving(pod, namespace)

    def select_for(self, review: PodReview) -> Profile | None:
        """Return the profile of a pod or template under review.

        A profile that names the pod's namespace takes precedence over one for all namespaces. Users
        can forge the recorded profile of a new pod. It is used only if `mutate` may have recorded
        it before `validate`: new pods of the namespace may have it, and its plugins may set the
        current schedulerName.
        """
        if review.workload is None and review.request.operation != "CREATE":
            return self.select(review.old or review.pod)
        namespace = review.request.namespace
        recorded = self.recorded(review.pod, namespace)
        if (
            recorded is not None
            and scheduler_of(review.pod) in recorded.written
            and self._served_by(recorded.scheduler_name, namespace) is recorded
        ):
            return recorded
        return self._serving(review.pod, namespace)

    def recorded(self, pod: Pod, namespace: str) -> Profile | None:
        """Return the profile recorded on a pod, or None if it does not serve the namespace."""
        profile = self.by_name.get(pod.annotations.get(PROFILE_ANNOTATION, ""))
        return profile if profile and namespace in (profile.namespaces or (namespace,)) else None

    def _serving(self, pod: Pod, namespace: str) -> Profile | None:
        return self._served_by(scheduler_of(pod), namespace) or self._served_by(
            REST_OF_PODS, namespace
        )

    def _served_by(self, scheduler: str, namespace: str) -> Profile | None:
        return self._served.get((scheduler, namespace)) or self._served.get((scheduler, ""))


def _unique(*groups: Sequence[str]) -> Sequence[str]:
    return [*dict.fromkeys(key for keys in groups for key in keys)]
