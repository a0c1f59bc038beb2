"""Profiles: which plugins serve which pods, and what they come to together.

A profile enables plugins in order, each with its own arguments; the pod's schedulerName chooses
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from webhook import holds
from webhook.framework import Code, Plugin
from webhook.objects import Pod
from webhook.review import Edit
from webhook.runner import Observe, Runner

DEFAULT_SCHEDULER = "default-scheduler"
"""What the API server fills in where a pod names no scheduler (Kubernetes' DefaultSchedulerName).

Into templates it does so as well, but for those of kinds that it does not know: VirtualMachines.
"""
REST_OF_PODS = "*"
"""The profile for every schedulerName that no other profile names."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A named list of plugins, in the order in which they run.

    `run_all` has every refusal told, not the first alone: the scheduler's runAllFilters.
    """

    name: str
    plugins: Sequence[Plugin]
    run_all: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the pipeline decided about one pod."""

    code: Code
    edits: Sequence[Edit] = ()
    reasons: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def message(self) -> str:
        """The reasons on one line."""
        return "; ".join(self.reasons)


def scheduler_of(pod: Pod) -> str:
    """Name the scheduler that places a pod, or will place a template's."""
    return pod.spec.scheduler_name or DEFAULT_SCHEDULER


class Profiles:
    """All profiles, by their names, and the runner of their plugins."""

    def __init__(
        self, profiles: Iterable[Profile], *, timer: Callable[[], float], observe: Observe
    ) -> None:
        self.profiles: Mapping[str, Profile] = {profile.name: profile for profile in profiles}
        self._runner = Runner(timer, observe)

    def profile_for(self, pod: Pod) -> Profile | None:
        """Choose the profile: the recorded one, else by schedulerName, else the rest's."""
        recorded = self.profiles.get(pod.annotations.get(holds.PROFILE, ""))
        return recorded or self.profiles.get(scheduler_of(pod)) or self.profiles.get(REST_OF_PODS)
