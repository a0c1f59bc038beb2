"""The plugin framework: the scheduling framework's model, for admission.

A plugin says whom it concerns, returns edits for a pod (`mutate`) or refuses it (`validate`), and,
where it holds pods, decides when each is due (`due`). Profiles enable plugins in order, each with
its own arguments; the pod's schedulerName chooses the profile. The runner times plugins and puts
their names into what they say; plugins know no metrics, no clock, no I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec

from webhook import holds, values
from webhook.errors import PluginFailedError
from webhook.objects import Pod
from webhook.review import AddGate, Edit, PodReview, SetAnnotation

REST_OF_PODS = "*"
"""The profile for every schedulerName that no other profile names."""


class Args(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of a plugin's arguments: immutable, checked strictly, camelCase in the file."""


class Code(enum.StrEnum):
    """How an extension point ended; the values are labels of metrics."""

    SUCCESS = "Success"
    SKIP = "Skip"
    REFUSE = "Refuse"
    ERROR = "Error"


@dataclass(frozen=True, slots=True)
class Result:
    """What a plugin answers at one extension point."""

    code: Code = Code.SUCCESS
    edits: Sequence[Edit] = ()
    reason: str = ""
    warnings: Sequence[str] = ()


def success(*edits: Edit, warnings: Sequence[str] = ()) -> Result:
    """Carry on, with these edits."""
    return Result(Code.SUCCESS, edits, "", warnings)


def skip() -> Result:
    """Leave the pod alone, and spare this plugin the later extension points of this review."""
    return Result(Code.SKIP)


def refuse(reason: str) -> Result:
    """Refuse the pod; the reason is for the person who wrote it."""
    return Result(Code.REFUSE, (), reason)


@dataclass(frozen=True, slots=True)
class Context:
    """What a plugin is told beside the pod.

    `now_ms` is this process's time; `state` is shared between the plugins of one review.
    """

    review: PodReview
    profile: str
    now_ms: int
    state: dict[str, Any] = field(default_factory=dict)


class Plugin(Protocol):
    """What every plugin has. One is made for each profile that enables it."""

    name: ClassVar[str]
    may_block: ClassVar[bool]
    """True where a call may wait for something: it then runs in a thread, under a deadline."""

    @property
    def keys(self) -> Sequence[str]:
        """Name the annotations that decide; a change of one on a stored pod is validated."""
        ...

    def match(self, pod: str) -> str:
        """Give the CEL expression that is true for the pods this plugin concerns.

        `pod` is the pod in CEL: `object`, or the path of a template in it.
        """
        ...

    def concerns(self, pod: Pod) -> bool:
        """Tell the same as `match`, in Python."""
        ...

    def mutate(self, pod: Pod, context: Context) -> Result:
        """Decide about a pod that is being created."""
        ...

    def validate(self, pod: Pod, context: Context) -> Result:
        """Check a pod as it would be stored, at CREATE and at UPDATE."""
        ...


@runtime_checkable
class Holder(Protocol):
    """What a plugin that holds pods has as well."""

    gate: ClassVar[str]

    def due(self, pod: Pod) -> holds.Due:
        """Decide when a pod that carries the gate is due."""
        ...


class PluginClass(Protocol):
    """A plugin's factory: its class, with the class of its arguments."""

    name: str
    args_type: type[Args]

    def __call__(self, args: Any) -> Plugin:
        """Make the plugin. Raises ConfigurationError on arguments that make no sense."""
        ...


@dataclass(frozen=True, slots=True)
class Profile:
    """A named list of plugins, in the order in which they run."""

    name: str
    plugins: Sequence[Plugin]


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


class Observe(Protocol):
    """Where the runner reports how long a plugin took, in seconds."""

    def __call__(
        self, *, plugin: str, extension_point: str, status: str, profile: str, seconds: float
    ) -> None:
        """Take one measurement."""
        ...


class Pipeline:
    """All profiles, and the runner of their plugins."""

    def __init__(
        self, profiles: Iterable[Profile], *, timer: Callable[[], float], observe: Observe
    ) -> None:
        self.profiles: Mapping[str, Profile] = {profile.name: profile for profile in profiles}
        self._timer = timer
        self._observe = observe

    def profile_for(self, pod: Pod) -> Profile | None:
        """Choose the profile: the recorded one, else by schedulerName, else the rest's."""
        recorded = self.profiles.get(pod.annotations.get(holds.PROFILE, ""))
        return (
            recorded
            or self.profiles.get(pod.spec.scheduler_name)
            or self.profiles.get(REST_OF_PODS)
        )

    def may_block(self, pod: Pod) -> bool:
        """Tell whether reviewing this pod may wait for something."""
        profile = self.profile_for(pod)
        return profile is not None and any(
            plugin.may_block and plugin.concerns(pod) for plugin in profile.plugins
        )

    def mutate(self, review: PodReview, *, now_ms: int) -> Verdict:
        """Run `mutate` of each plugin, up to the first refusal.

        A refusal is answered with all that is wrong, so that it can be mended at once.
        """
        forged = _added_finalizers(review)
        if forged:
            return Verdict(Code.REFUSE, (), forged)
        profile = self.profile_for(review.pod)
        if profile is None:
            return Verdict(Code.SKIP)
        context = Context(review, profile.name, now_ms)
        edits: list[Edit] = []
        warnings: list[str] = []
        for plugin in profile.plugins:
            result = self._run(plugin, "mutate", plugin.mutate, context)
            if result.code is Code.REFUSE:
                return self._all_refusals(profile, plugin, result, context)
            edits.extend(result.edits)
            warnings.extend(result.warnings)
        if any(isinstance(edit, AddGate) for edit in edits):
            edits.append(SetAnnotation(holds.PROFILE, profile.name))
        return Verdict(Code.SUCCESS, edits, (), warnings)

    def validate(self, review: PodReview, *, now_ms: int) -> Verdict:
        """Run `validate` of every plugin and gather all refusals."""
        profile = self.profile_for(review.pod)
        reasons = _added_finalizers(review)
        if profile is None:
            return Verdict(Code.REFUSE if reasons else Code.SKIP, (), reasons)
        context = Context(review, profile.name, now_ms)
        results = [self._run(p, "validate", p.validate, context) for p in profile.plugins]
        reasons += [result.reason for result in results if result.code is Code.REFUSE]
        if review.workload is not None:
            reasons = [f"{review.workload.path}.metadata: {reason}" for reason in reasons]
        warnings = [warning for result in results for warning in result.warnings]
        return Verdict(Code.REFUSE if reasons else Code.SUCCESS, (), reasons, warnings)

    def due(self, pod: Pod) -> holds.Due:
        """Decide when a held pod is due, by the plugins of its profile that hold it.

        A pod that no plugin of the configuration knows is decided by its annotations and hint.
        """
        profile = self.profile_for(pod)
        holders = [
            plugin
            for plugin in (profile.plugins if profile else ())
            if isinstance(plugin, Holder) and plugin.gate in pod.gates
        ]
        if not holders:
            return holds.decide(
                pod.annotations,
                created_ms=pod.created_ms,
                uid=pod.metadata.uid,
                delay_keys=holds.DELAY_KEYS,
            )
        decisions = [holder.due(pod) for holder in holders]
        return max(decisions, key=lambda decision: decision.at_ms)

    def _all_refusals(
        self, profile: Profile, refuser: Plugin, result: Result, context: Context
    ) -> Verdict:
        reasons = [result.reason]
        for plugin in profile.plugins:
            if plugin is not refuser:
                other = self._run(plugin, "validate", plugin.validate, context)
                reasons += [other.reason] if other.code is Code.REFUSE else []
        return Verdict(Code.REFUSE, (), reasons)

    def _run(
        self,
        plugin: Plugin,
        point: str,
        call: Callable[[Pod, Context], Result],
        context: Context,
    ) -> Result:
        started = self._timer()
        code = Code.ERROR
        try:
            result = call(context.review.pod, context)
            code = result.code
        except Exception as exc:
            raise PluginFailedError(
                f"plugin {plugin.name!r} failed in {point}: {type(exc).__name__}: {exc}"
            ) from exc
        finally:
            self._observe(
                plugin=plugin.name,
                extension_point=point,
                status=code.value,
                profile=context.profile,
                seconds=self._timer() - started,
            )
        return result


def _added_finalizers(review: PodReview) -> list[str]:
    """Refuse finalizers of ours that somebody else adds: nobody but Holdfast may."""
    before = review.old.finalizers if review.old else ()
    return [
        f"finalizer {values.shown(finalizer)} is Holdfast's own; leave it out"
        for finalizer in review.pod.finalizers
        if finalizer.startswith(holds.OWN_PREFIX) and finalizer not in before
    ]
