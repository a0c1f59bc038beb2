"""The pipeline: all that the plugins of a pod's profile decide, at admission and of held pods.

The runner times plugins and puts their names into what goes wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from webhook import bounds, holds, values
from webhook.errors import PluginFailedError
from webhook.framework import (
    HELD_STATE,
    Code,
    Context,
    Finalizing,
    Marking,
    Plugin,
    Result,
    skip,
)
from webhook.holding import Holding
from webhook.objects import Pod
from webhook.patch import edited
from webhook.profiles import Profile, Verdict
from webhook.review import AddGate, Edit, PodReview, RemoveAnnotation, SetAnnotation
from webhook.runner import Observe, described, may_block
from webhook.workloads import Workload

_MOST_NAMED = 3
"""Of finalizers that are refused."""
_MOST_FURTHER = 256 << 10
"""Bytes of a pod that is decoded whole to tell what else is wrong with it; one may cost seventy
times its length then, and what is wrong with a larger one is told one by one."""
_log = logging.getLogger("holdfast.plugins")

Call = Callable[[Pod, Context], Result]


class Pipeline(Holding):
    """All profiles, and the runner of their plugins. Safe to call from several threads."""

    def __init__(
        self, profiles: Iterable[Profile], *, timer: Callable[[], float], observe: Observe
    ) -> None:
        super().__init__(profiles, timer=timer, observe=observe)
        self._blocking = {
            profile.name: [one for one in profile.plugins if may_block(one)]
            for profile in self.profiles.values()
        }
        self._marking = {
            name: [one for one in plugins if isinstance(one, Marking)]
            for name, plugins in self._blocking.items()
        }

    def may_block(self, review: PodReview) -> bool:
        """Tell whether a review may wait for something: a plugin that may block is asked."""
        profile = self.profile_for(review.pod)
        if profile is None:
            return False
        asked = any(_is_concerned(plugin, review) for plugin in self._blocking[profile.name])
        if not asked and review.workload is not None:
            asked = any(_is_marked(plugin, review) for plugin in self._marking[profile.name])
        return asked and not _excess(review)

    def at_work(self, review: PodReview) -> str | None:
        """Name the plugin that a review waits for now, of those that may block."""
        return self._runner.at_work(review)

    def mutate(self, review: PodReview, *, now_ms: int) -> Verdict:
        """Run `mutate` of each plugin, up to the first refusal; of none where there is too much.

        With `run_all`, a refusal is answered with all that is wrong, so that it can be mended at
        once: what the plugins behind it refuse, and what `validate` would.
        """
        profile = self.profile_for(review.pod)
        excess = bounds.excess(review.pod)
        wrong = [excess] if excess else _added_finalizers(review, profile)
        if wrong:
            return Verdict(Code.REFUSE, (), wrong)
        if profile is None:
            return Verdict(Code.SKIP)
        context = Context(review, profile.name, now_ms)
        return self._runner.timed("mutate", profile.name, self._mutate, profile, context)

    def _mutate(self, profile: Profile, context: Context) -> Verdict:
        edits: list[Edit] = []
        warnings: list[str] = []
        reasons: list[str] = []
        served: list[Plugin] = []
        for plugin in profile.plugins:
            result = self._mutated(plugin, context, refused=bool(reasons))
            edits.extend(result.edits)
            warnings.extend(result.warnings)
            if result.code is Code.SUCCESS:
                served.append(plugin)
            if result.code is Code.REFUSE:
                reasons.append(result.reason)
                if not profile.run_all:
                    break
        if reasons:
            further = self._further_refusals(served, edits, context) if profile.run_all else ()
            return Verdict(Code.REFUSE, (), list(dict.fromkeys((*reasons, *further))))
        if any(not isinstance(edit, RemoveAnnotation) for edit in edits):
            edits.append(SetAnnotation(holds.PROFILE, profile.name))
        return Verdict(Code.SUCCESS, edits, (), warnings)

    def _mutating(self, plugin: Plugin) -> Call:
        """Give what asks a plugin about a pod that is being created."""
        return _asking(plugin, plugin.mutate)

    def _mutated(self, plugin: Plugin, context: Context, *, refused: bool) -> Result:
        """Ask a plugin; one that fails does not matter any more once the pod is refused."""
        try:
            result = self._runner.run(plugin, "mutate", self._mutating(plugin), context)
        except PluginFailedError as exc:
            if not refused:
                raise
            _log.error("%s: %s", context.review.described, exc)
            return Result(Code.ERROR)
        for edit in result.edits:
            if isinstance(edit, AddGate):
                context.state[HELD_STATE] = True
        return result

    def _further_refusals(
        self, plugins: Iterable[Plugin], edits: Iterable[Edit], context: Context
    ) -> Iterator[str]:
        """Ask `validate` as well of the plugins that served a pod which another one refused.

        It is asked about the pod as it would be stored, so that all that is wrong is told at once.
        A plugin that skipped the pod is spared.
        """
        asked = context.review
        if len(asked.request.object) > _MOST_FURTHER:
            return
        try:
            stored = replace(context, review=edited(asked, edits))
        except Exception as exc:  # noqa: BLE001 - the pod is refused, whatever edits others made
            _log.error("%s: edits that do not fit the pod: %s", asked.described, described(exc))
            return
        for plugin in plugins:
            try:
                result = self._runner.run(plugin, "validate", plugin.validate, stored, asked)
            except PluginFailedError as exc:
                _log.error("%s: %s", asked.described, exc)  # the pod is refused anyway
                continue
            if result.code is Code.REFUSE:
                yield result.reason

    def validate(self, review: PodReview, *, now_ms: int) -> Verdict:
        """Run `validate` of every plugin and gather all refusals; of none where there is too much.

        An update of a pod that is there already is let be: what it has cannot be mended any more.
        """
        excess = _excess(review)
        if excess:
            where = f"{review.workload.path}: " if review.workload else ""
            return Verdict(Code.REFUSE, (), [where + excess])
        profile = self.profile_for(review.pod) or Profile("", ())
        context = Context(review, profile.name, now_ms)
        return self._runner.timed("validate", profile.name, self._validate, profile, context)

    def _validate(self, profile: Profile, context: Context) -> Verdict:
        workload = context.review.workload
        where = f"{workload.path}.metadata: " if workload else ""
        reasons = [where + one for one in _added_finalizers(context.review, profile)]
        warnings: list[str] = []
        for place, plugin, call in _checks(profile, workload, where):
            result = self._runner.run(plugin, "validate", call, context)
            warnings.extend(result.warnings)
            if result.code is Code.REFUSE:
                reasons.append(place + result.reason)
                if not profile.run_all:
                    break
        return Verdict(Code.REFUSE if reasons else Code.SUCCESS, (), reasons, warnings)


def _excess(review: PodReview) -> str:
    """Say of what there is too much for it to be stored; empty for an update of a pod."""
    if review.workload is None and review.request.operation != "CREATE":
        return ""
    return bounds.excess(review.pod)


def _asking(plugin: Plugin, call: Call) -> Call:
    """Give what asks a plugin: one that may block is spared what does not concern it.

    Such a review is answered where it arrives, and all others would wait with it.
    """
    return partial(_where_concerned, plugin, call) if may_block(plugin) else call


def _where_concerned(plugin: Plugin, call: Call, pod: Pod, context: Context) -> Result:
    return call(pod, context) if _is_concerned(plugin, context.review) else skip()


def _is_concerned(plugin: Plugin, review: PodReview) -> bool:
    """Tell whether a pod concerns a plugin, or an update changes what decides for it."""
    if plugin.concerns(review.pod):
        return True
    if review.old is None:
        return False
    new, old = review.pod.annotations, review.old.annotations
    return any(new.get(key) != old.get(key) for key in plugin.keys)


def _is_marked(plugin: Marking, review: PodReview) -> bool:
    """Tell whether a workload has an annotation of a plugin's on itself, or had one."""
    found = [one for one in (review.workload, review.old_workload) if one is not None]
    return any(
        key in one.annotations for one in found for key in plugin.workload_keys.get(one.kind, ())
    )


def _checks(
    profile: Profile, workload: Workload | None, where: str
) -> Iterator[tuple[str, Plugin, Call]]:
    """List the calls that check a pod, or a workload with its template, and where each looks."""
    for plugin in profile.plugins:
        if workload is not None and isinstance(plugin, Marking):
            yield "metadata: ", plugin, partial(_validate_workload, plugin)
        yield where, plugin, _asking(plugin, plugin.validate)


def _validate_workload(plugin: Marking, _template: Pod, context: Context) -> Result:
    review = context.review
    if may_block(plugin) and not _is_marked(plugin, review):
        return skip()
    assert review.workload is not None  # noqa: S101 - as `_checks` has seen
    return plugin.validate_workload(review.workload, review.old_workload)


def _added_finalizers(review: PodReview, profile: Profile | None) -> list[str]:
    """Refuse finalizers of ours that somebody else adds: nobody but Holdfast may.

    A pod may name hundreds of thousands, and one many times over.
    """
    found = (one for one in review.pod.finalizers if one.startswith(holds.OWN_PREFIX))
    ours = dict.fromkeys(found)
    if not ours:
        return []
    before = frozenset(review.old.finalizers if review.old else ())
    added = [finalizer for finalizer in ours if finalizer not in before]
    allowed = {
        plugin.finalizer
        for plugin in (profile.plugins if profile and added else ())
        if isinstance(plugin, Finalizing) and plugin.may_carry(review)
    }
    wrong = [finalizer for finalizer in added if finalizer not in allowed]
    reasons = [
        f"finalizer {values.shown(finalizer)} is Holdfast's own; leave it out"
        for finalizer in wrong[:_MOST_NAMED]
    ]
    if len(wrong) > _MOST_NAMED:
        reasons.append(f"so are {len(wrong) - _MOST_NAMED:,} more of its finalizers")
    return reasons
