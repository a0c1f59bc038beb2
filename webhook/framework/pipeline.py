"""The admission pipeline, which runs the plugins of a profile for a pod under review."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.webhook.errors import PluginFailedError
from holdfast.webhook.framework.plugin import Code, Context, Plugin, Result
from holdfast.webhook.framework.profiles import Profile, Profiles, Verdict, scheduler_of
from holdfast.webhook.framework.runner import Runner
from holdfast.webhook.framework.stray_keys import StrayKeys
from holdfast.webhook.model import limits, messages
from holdfast.webhook.model.annotations import (
    ALLOWED_ANNOTATION,
    HELD_LABEL,
    OWN_PREFIX,
    PROFILE_ANNOTATION,
)
from holdfast.webhook.model.edits import (
    AddGate,
    Edit,
    RemoveAnnotation,
    RemoveLabel,
    SetAnnotation,
    SetLabel,
)
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.review import PodReview
from holdfast.webhook.model.workloads import Workload

_MAX_NAMED = 3
"""Maximum number of rejected finalizers that a message names."""
_NO_PROFILE = Profile("", ())
_REMOVALS = frozenset({RemoveAnnotation, RemoveLabel})
_log = logging.getLogger("holdfast.plugins")


@dataclass(eq=False)
class AdmissionPipeline:
    """Runs the plugins of a pod's profile. Safe to use from several threads."""

    profiles: Profiles
    runner: Runner

    def __post_init__(self) -> None:
        self._stray_keys = StrayKeys(self.profiles)
        self._gates = {plugin.gate for plugin in self.profiles.plugins}

    def may_block(self, review: PodReview) -> bool:
        """Return whether a plugin that may block will be called."""
        return any(map(self._may_block, _each(review))) and not _find_excess(review)

    def _may_block(self, review: PodReview) -> bool:
        profile = self.profiles.select_for(review)
        if profile is None or not profile.blocking:
            return False
        is_update, is_workload = review.old is not None, review.workload is not None
        for plugin in profile.blocking:
            try:
                is_called = (
                    plugin.concerns(review.pod)
                    or (is_update and _has_changed_key(plugin, review))
                    or (is_workload and _has_workload_key(plugin, review))
                )
                if is_called and (plugin.may_block or plugin.blocks(review)):
                    return True
            except Exception:  # noqa: BLE001 - the call of the plugin will report it
                return True
        return False

    def mutate(self, review: PodReview, *, now_ms: int) -> Verdict:
        """Run `mutate` of each plugin; stop at the first rejection unless `run_all` is set."""
        profile = self.profiles.select_for(review)
        workload, old_workload = review.workload, review.old_workload
        if workload is not None and old_workload is not None:
            return self._restore(profile or _NO_PROFILE, review, workload, old_workload)
        excess = limits.find_excess(review.pod)
        reasons = [excess] if excess else _added_finalizers(review, profile)
        if reasons:
            return Verdict(Code.REJECT, (), reasons)
        if profile is None:
            return Verdict(Code.SKIP)
        with self.runner.measure_point("mutate", profile.name) as point:
            verdict = self._mutate(profile, Context(review, profile.name, now_ms))
            point.code = verdict.code
        return verdict

    def _restore(
        self, profile: Profile, review: PodReview, workload: Workload, old_workload: Workload
    ) -> Verdict:
        """Restore annotations that an update of a workload dropped."""
        edits: list[Edit] = []
        for plugin in profile.plugins:
            with self.runner.measure(plugin, "mutate", profile.name, review) as call:
                call.result = plugin.restore(workload, old_workload)
            edits += call.result.edits
        return Verdict(Code.SUCCESS, edits)

    def _mutate(self, profile: Profile, context: Context) -> Verdict:
        # A plugin may set what is removed here, because later edits win.
        edits = self._removals(profile, context.review.pod)
        warnings: list[str] = []
        reasons: list[str] = []
        for result in self._mutations(profile, context, reasons):
            edits.extend(result.edits)
            warnings.extend(result.warnings)
            if result.code is Code.REJECT:
                reasons.append(result.reason)
                if not profile.run_all:
                    break
        if reasons:
            return Verdict(Code.REJECT, (), list(dict.fromkeys(reasons)))
        if context.held:
            edits.append(SetLabel(HELD_LABEL, "true"))
        if not _REMOVALS.issuperset(map(type, edits)):
            edits.append(SetAnnotation(PROFILE_ANNOTATION, profile.name))
        return Verdict(Code.SUCCESS, edits, (), warnings)

    def _removals(self, profile: Profile, pod: Pod) -> list[Edit]:
        """Return edits that remove annotations and labels that are forged or copied.

        The recorded profile stays if an earlier call of `mutate` may have written it.
        """
        annotations, labels, profiles = pod.annotations, pod.labels, self.profiles
        edits: list[Edit] = [
            RemoveAnnotation(key) for key in profiles.reserved_annotations if key in annotations
        ]
        edits += [RemoveLabel(key) for key in profiles.reserved_labels if key in labels]
        recorded = annotations.get(PROFILE_ANNOTATION)
        may_be_ours = recorded == profile.name and scheduler_of(pod) in profile.written
        if recorded is not None and not may_be_ours:
            edits.append(RemoveAnnotation(PROFILE_ANNOTATION))
        return edits

    def _concerns(self, plugin: Plugin, point: str, context: Context) -> bool:
        """Return whether to call a plugin. A failure is reported like that of the call.

        Most plugins are not called for a pod, and measuring these calls would slow down reviews.
        """
        review = context.review
        try:
            if plugin.concerns(review.pod):
                return True
            if point == "validate" and _has_changed_key(plugin, review):
                return True
        except Exception:
            with self.runner.measure(plugin, point, context.profile, review):
                raise
        self.runner.skip(plugin, point)
        return False

    def _mutations(
        self, profile: Profile, context: Context, reasons: Sequence[str]
    ) -> Iterator[Result]:
        """Yield the results of the plugins that the pod concerns.

        Once there are reasons to reject the pod, the user should see these: failures are only
        logged.
        """
        for plugin in profile.plugins:
            try:
                if self._concerns(plugin, "mutate", context):
                    yield self._mutate_one(plugin, context)
            except PluginFailedError as exc:
                if not reasons:
                    raise
                _log.error("%s: %s", context.review.display_name, exc)

    def _mutate_one(self, plugin: Plugin, context: Context) -> Result:
        with self.runner.measure(plugin, "mutate", context.profile, context.review) as call:
            call.result = plugin.mutate(context.review.pod, context)
        result = call.result
        for edit in result.edits:
            if isinstance(edit, AddGate):
                context.mark_held()
        return result

    def validate(self, review: PodReview, *, now_ms: int) -> Verdict:
        """Run `validate` of each plugin, and collect all rejections if `run_all` is set.

        An update of a stored pod is not checked against the limits: it could not be corrected.
        """
        excess = _find_excess(review)
        if excess:
            return Verdict(Code.REJECT, (), [excess])
        verdicts = [
            self._validate_one(template_review, now_ms) for template_review in _each(review)
        ]
        return _joined(verdicts) if len(verdicts) > 1 else verdicts[0]

    def _validate_one(self, review: PodReview, now_ms: int) -> Verdict:
        profile = self.profiles.select_for(review) or _NO_PROFILE
        with self.runner.measure_point("validate", profile.name) as point:
            verdict = self._validate(profile, Context(review, profile.name, now_ms))
            point.code = verdict.code
        return verdict

    def _validate(self, profile: Profile, context: Context) -> Verdict:
        review = context.review
        workload = review.workload
        pod_prefix = f"{workload.path}.metadata: " if workload else ""
        reasons = [pod_prefix + reason for reason in _added_finalizers(review, profile)]
        if review.workload is None and review.old is None:
            reasons += self._forged(profile, review)
        warnings = self._stray_keys.warnings(review)
        for prefix, result in self._validations(profile, pod_prefix, context):
            warnings.extend(result.warnings)
            if result.code is Code.REJECT:
                reasons.append(prefix + result.reason)
                if not profile.run_all:
                    break
        # Several plugins that hold the pods of a template may give the same warning.
        warnings = [*dict.fromkeys(warnings)]
        return Verdict(Code.REJECT if reasons else Code.SUCCESS, (), reasons, warnings)

    def _forged(self, profile: Profile, review: PodReview) -> Iterator[str]:
        """Yield rejections of changes that others made after `mutate` and that would end a hold.

        Without a profile, or if it lacks the plugin that holds the pod, the pod would be released.
        """
        pod = review.pod
        gates = [gate for gate in pod.gates if gate in self._gates]
        if gates and ALLOWED_ANNOTATION in pod.annotations:
            yield f"annotation {ALLOWED_ANNOTATION}: a new pod cannot have it: call Holdfast last"
        recorded_profile = self.profiles.recorded(pod, review.request.namespace) or profile
        profile_gates = {plugin.gate for plugin in recorded_profile.holding}
        lost_gates = [gate for gate in gates if gate not in profile_gates]
        if lost_gates:
            yield (
                f"annotation {PROFILE_ANNOTATION}: {messages.quote(recorded_profile.name)} is not "
                f"a profile with gate {lost_gates[0]}: call Holdfast last"
            )

    def _validations(
        self, profile: Profile, pod_prefix: str, context: Context
    ) -> Iterator[tuple[str, Result]]:
        workload = context.review.workload
        for plugin in profile.plugins:
            if workload is not None and _has_workload_key(plugin, context.review):
                yield "metadata: ", self._call_validate(plugin, context, workload)
            if self._concerns(plugin, "validate", context):
                yield pod_prefix, self._call_validate(plugin, context)

    def _call_validate(
        self, plugin: Plugin, context: Context, workload: Workload | None = None
    ) -> Result:
        review = context.review
        with self.runner.measure(plugin, "validate", context.profile, review) as call:
            if workload is not None:
                call.result = plugin.validate_workload(workload, review.old_workload)
            else:
                call.result = plugin.validate(review.pod, context)
        return call.result


def _each(review: PodReview) -> list[PodReview]:
    """Return the reviews of all templates."""
    return [replace(review, others=()), *review.others] if review.others else [review]


def _joined(verdicts: Sequence[Verdict]) -> Verdict:
    rejected = any(verdict.code is Code.REJECT for verdict in verdicts)
    reasons = [reason for verdict in verdicts for reason in verdict.reasons]
    warnings = dict.fromkeys(warning for verdict in verdicts for warning in verdict.warnings)
    return Verdict(Code.REJECT if rejected else Code.SUCCESS, (), reasons, [*warnings])


def _find_excess(review: PodReview) -> str:
    """Return a message about an exceeded limit; empty if there is none, and for pod updates.

    A workload may have a hundred templates, which must be within the limits together.
    """
    workload = review.workload
    if workload is None:
        return limits.find_excess(review.pod) if review.request.operation == "CREATE" else ""
    own_excess = limits.find_excess(Pod(workload.own.metadata))
    if own_excess:
        return own_excess
    reviews = _each(review)
    place = f"{len(reviews)} templates together" if review.others else workload.path
    outer_pods = [
        Pod(template_review.workload.outer.metadata)
        for template_review in reviews
        if template_review.workload
    ]
    excess = limits.find_excess(
        *(template_review.pod for template_review in reviews)
    ) or limits.find_excess(*outer_pods)
    return excess and f"{place}: {excess}"


def _has_changed_key(plugin: Plugin, review: PodReview) -> bool:
    """Return whether an update changes one of a plugin's keys."""
    if review.old is None:
        return False
    annotations, old_annotations = review.pod.annotations, review.old.annotations
    return any(annotations.get(key) != old_annotations.get(key) for key in plugin.keys)


def _has_workload_key(plugin: Plugin, review: PodReview) -> bool:
    """Return whether a workload itself has, or had, one of the plugin's annotations."""
    workloads = filter(None, (review.workload, review.old_workload))
    return any(
        key in workload.own.annotations
        for workload in workloads
        for key in plugin.workload_keys.get(workload.kind, ())
    )


def _added_finalizers(review: PodReview, profile: Profile | None) -> list[str]:
    """Return the reasons to reject added finalizers with our prefix that no plugin allows.

    A pod may have hundreds of thousands of finalizers, including duplicates.
    """
    if not review.pod.finalizers:
        return []
    own_finalizers = dict.fromkeys(
        finalizer for finalizer in review.pod.finalizers if finalizer.startswith(OWN_PREFIX)
    )
    old_finalizers = frozenset(review.old.finalizers if review.old else ())
    new_finalizers = [finalizer for finalizer in own_finalizers if finalizer not in old_finalizers]
    allowed_finalizers = {
        plugin.finalizer
        for plugin in (profile.finalizing if profile and new_finalizers else ())
        if plugin.may_have_finalizer(review)
    }
    rejected_finalizers = [
        finalizer for finalizer in new_finalizers if finalizer not in allowed_finalizers
    ]
    reasons = [
        f"finalizer {messages.quote(finalizer)} is reserved for Holdfast: remove it "
        "(a restore should leave out the pods of VMs)"
        for finalizer in rejected_finalizers[:_MAX_NAMED]
    ]
    if len(rejected_finalizers) > _MAX_NAMED:
        reasons.append(
            f"{len(rejected_finalizers) - _MAX_NAMED:,} more finalizers are reserved as well"
        )
    return reasons
