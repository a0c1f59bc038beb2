"""Profiles, and the runner of their plugins.

A profile enables plugins in order, each with its own arguments; the pod's schedulerName chooses
it. The runner times plugins and puts their names into what goes wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from webhook import holds, values
from webhook.errors import PluginFailedError
from webhook.framework import HELD_STATE, Code, Context, Holder, Plugin, Releasing, Result
from webhook.objects import Pod
from webhook.review import AddGate, Edit, PodReview, RemoveAnnotation, SetAnnotation
from webhook.runner import Observe, Runner, described, may_block

REST_OF_PODS = "*"
"""The profile for every schedulerName that no other profile names."""

_WHOLE = ""  # in the place of a plugin's name: a whole extension point was measured
_log = logging.getLogger("holdfast.plugins")


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


class Pipeline:
    """All profiles, and the runner of their plugins. Safe to call from several threads."""

    def __init__(
        self, profiles: Iterable[Profile], *, timer: Callable[[], float], observe: Observe
    ) -> None:
        self.profiles: Mapping[str, Profile] = {profile.name: profile for profile in profiles}
        self._runner = Runner(timer, observe)
        self._allowed: set[tuple[str, str]] = set()

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
            may_block(plugin) and plugin.concerns(pod) for plugin in profile.plugins
        )

    def at_work(self, review: PodReview) -> str | None:
        """Name the plugin that a review waits for now, of those that may block."""
        return self._runner.at_work(review)

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
        return self._runner.timed("mutate", profile.name, lambda: self._mutate(profile, context))

    def _mutate(self, profile: Profile, context: Context) -> Verdict:
        edits: list[Edit] = []
        warnings: list[str] = []
        for index, plugin in enumerate(profile.plugins):
            result = self._runner.run(plugin, "mutate", plugin.mutate, context)
            if result.code is Code.REFUSE:
                behind = profile.plugins[index + 1 :] if profile.run_all else ()
                return self._all_refusals(result, behind, context)
            edits.extend(result.edits)
            warnings.extend(result.warnings)
            if any(isinstance(edit, AddGate) for edit in result.edits):
                context.state[HELD_STATE] = True
        if any(not isinstance(edit, RemoveAnnotation) for edit in edits):
            edits.append(SetAnnotation(holds.PROFILE, profile.name))
        return Verdict(Code.SUCCESS, edits, (), warnings)

    def _all_refusals(self, refusal: Result, behind: Iterable[Plugin], context: Context) -> Verdict:
        """Ask the plugins behind the one that refused as well: what they refuse is told with it."""
        reasons = [refusal.reason]
        for plugin in behind:
            try:
                result = self._runner.run(plugin, "mutate", plugin.mutate, context)
            except PluginFailedError as exc:
                _log.error("%s: %s", context.review.described, exc)  # the pod is refused anyway
                continue
            reasons += [result.reason] if result.code is Code.REFUSE else []
        return Verdict(Code.REFUSE, (), reasons)

    def validate(self, review: PodReview, *, now_ms: int) -> Verdict:
        """Run `validate` of every plugin and gather all refusals."""
        profile = self.profile_for(review.pod) or Profile("", ())
        context = Context(review, profile.name, now_ms)
        verdict = self._runner.timed(
            "validate", profile.name, lambda: self._validate(profile, context)
        )
        if review.workload is None:
            return verdict
        path = review.workload.path
        return replace(verdict, reasons=[f"{path}.metadata: {one}" for one in verdict.reasons])

    def _validate(self, profile: Profile, context: Context) -> Verdict:
        reasons = _added_finalizers(context.review)
        warnings: list[str] = []
        for plugin in profile.plugins:
            result = self._runner.run(plugin, "validate", plugin.validate, context)
            warnings.extend(result.warnings)
            if result.code is Code.REFUSE:
                reasons.append(result.reason)
                if not profile.run_all:
                    break
        return Verdict(Code.REFUSE if reasons else Code.SUCCESS, (), reasons, warnings)

    # --- held pods -----------------------------------------------------------------------------

    def due(self, pod: Pod) -> holds.Due:
        """Decide when a held pod is due, by the plugins of its profile that hold it.

        A pod that no plugin of the configuration knows is decided by its annotations and hint.
        """
        profile = self.profile_for(pod)
        decisions = [
            self._due(plugin, pod)
            for plugin in (profile.plugins if profile else ())
            if isinstance(plugin, Holder) and plugin.gate in pod.gates
        ]
        if not decisions:
            return _by_annotations(pod)
        return max(decisions, key=lambda decision: (decision.at_ms, decision.problem))

    def _due(self, plugin: Plugin, pod: Pod) -> holds.Due:
        if (pod.metadata.uid, plugin.name) in self._allowed:
            return holds.Due(pod.created_ms)
        try:
            decision = plugin.due(pod)  # type: ignore[attr-defined]
            at_ms = min(max(int(decision.at_ms), pod.created_ms), holds.NEVER_MS)
            return holds.Due(at_ms, str(decision.problem))
        except Exception as exc:  # noqa: BLE001 - one plugin must not keep all pods
            problem = f"plugin {plugin.name!r} cannot say when it is due: {described(exc)}"
            _log.error("%s/%s: %s", *pod.key, problem)
            return replace(_by_annotations(pod), problem=problem)

    def allow(self, uid: str, plugin: str) -> None:
        """Note that a plugin holds a pod no longer."""
        self._allowed.add((uid, plugin))

    def forget(self, uid: str) -> None:
        """Forget what was noted of a pod that is held no longer."""
        if self._allowed:
            self._allowed = {one for one in self._allowed if one[0] != uid}

    def rechecks(self, pod: Pod) -> bool:
        """Tell whether a plugin wants a say when this pod is released."""
        profile = self.profile_for(pod)
        return profile is not None and any(
            isinstance(plugin, Releasing) and _wants_a_say(plugin, pod)
            for plugin in profile.plugins
        )

    def at_release(self, pod: Pod) -> Verdict:
        """Run `at_release` of each plugin that has it; whatever they say, the pod may go."""
        profile = self.profile_for(pod)
        if profile is None:
            return Verdict(Code.SKIP)
        edits: list[Edit] = []
        warnings: list[str] = []
        for plugin in profile.plugins:
            if not isinstance(plugin, Releasing) or not _wants_a_say(plugin, pod):
                continue
            try:
                call = partial(plugin.at_release, pod)
                result = self._runner.measured(plugin, "release", profile.name, call)
            except PluginFailedError as exc:
                _log.error("%s/%s: %s", *pod.key, exc)
                result = Result(warnings=[str(exc)])
            edits.extend(result.edits)
            warnings.extend([*result.warnings, *([result.reason] if result.reason else [])])
        return Verdict(Code.SUCCESS, edits, (), warnings)


def _wants_a_say(plugin: Plugin, pod: Pod) -> bool:
    """Tell whether to ask a plugin when a pod is released; one that fails is asked, and told of."""
    try:
        return bool(getattr(plugin, "rechecks", plugin.concerns)(pod))
    except Exception as exc:  # noqa: BLE001 - one plugin must not keep all pods
        _log.error("%s/%s: plugin %r failed: %s", *pod.key, plugin.name, described(exc))
        return True


def _by_annotations(pod: Pod) -> holds.Due:
    return holds.decide(
        pod.annotations,
        created_ms=pod.created_ms,
        uid=pod.metadata.uid,
        delay_keys=holds.DELAY_KEYS,
    )


def _added_finalizers(review: PodReview) -> list[str]:
    """Refuse finalizers of ours that somebody else adds: nobody but Holdfast may."""
    before = review.old.finalizers if review.old else ()
    return [
        f"finalizer {values.shown(finalizer)} is Holdfast's own; leave it out"
        for finalizer in review.pod.finalizers
        if finalizer.startswith(holds.OWN_PREFIX) and finalizer not in before
    ]
