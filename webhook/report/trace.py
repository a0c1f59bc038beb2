"""Run a profile's plugins on one pod, and record the result of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from holdfast.webhook.errors import PluginFailedError
from holdfast.webhook.framework.pipeline import AdmissionPipeline
from holdfast.webhook.framework.plugin import Code, Result
from holdfast.webhook.framework.profiles import Profiles, Verdict
from holdfast.webhook.framework.runner import Runner, unobserved
from holdfast.webhook.framework.stray_keys import StrayKeys
from holdfast.webhook.model import edits
from holdfast.webhook.model.annotations import HELD_ANNOTATION
from holdfast.webhook.model.review import PodReview


@dataclass(frozen=True, slots=True)
class PluginStep:
    """The result of one plugin."""

    plugin: str
    code: Code
    edits: Sequence[edits.Edit] = ()
    reason: str = ""
    warnings: Sequence[str] = ()

    @property
    def summary(self) -> str:
        """The result, on one line."""
        if self.code is Code.SKIP:
            return "not concerned"
        if self.code in {Code.REJECT, Code.ERROR}:
            return f"{'rejected' if self.code is Code.REJECT else 'failed'}: {self.reason}"
        hint = next((edit.value for edit in self.edits if _is_hint(edit)), "")
        changes = "; ".join(self.changes) or "no change"
        changes = f"{changes} ({hint})" if hint else changes
        return "; ".join(filter(None, [changes, self.reason, *self.warnings]))

    @property
    def changes(self) -> list[str]:
        """Descriptions of the changes."""
        return [text for text in map(describe_edit, self.edits) if text]


@dataclass(frozen=True, slots=True)
class Trace:
    """The results of all plugins; `verdict` is None if a plugin failed.

    `stray_keys` has warnings about annotations without effect.
    """

    profile: str
    steps: Sequence[PluginStep]
    verdict: Verdict | None
    stray_keys: Sequence[str] = ()


def mutate(profiles: Profiles, review: PodReview, *, now_ms: int) -> Trace:
    """Run the plugins on a pod that is being created, and return their results."""
    steps: list[PluginStep] = []

    def record(plugin: str, _point: str, result: Result, problem: Exception | None) -> None:
        reason = result.reason if problem is None else str(problem) or type(problem).__name__
        steps.append(PluginStep(plugin, result.code, result.edits, reason, result.warnings))

    profile = profiles.select_for(review)
    pipeline = AdmissionPipeline(profiles, Runner(lambda: 0.0, unobserved, record))
    try:
        verdict = pipeline.mutate(review, now_ms=now_ms)
    except PluginFailedError:
        verdict = None
    stray_keys = StrayKeys(profiles).warnings(review)
    return Trace(profile.name if profile else "", steps, verdict, stray_keys)


def describe_edit(edit: edits.Edit) -> str:
    """Return a description of an edit; empty if it matters only to Holdfast."""
    return _WORDS[type(edit)](edit)


def _is_hint(edit: edits.Edit) -> TypeGuard[edits.SetAnnotation]:
    return isinstance(edit, edits.SetAnnotation) and edit.key == HELD_ANNOTATION


def _all(requirements: Sequence[edits.Requirement]) -> str:
    return " and ".join(map(str, requirements))


_WORDS: Mapping[type[Any], Callable[[Any], str]] = {
    edits.AddGate: lambda edit: f"adds scheduling gate {edit.name}",
    edits.AddFinalizer: lambda edit: f"adds finalizer {edit.name}",
    edits.SetAnnotation: lambda edit: (
        "" if _is_hint(edit) else f"sets annotation {edit.key}: {edit.value}"
    ),
    edits.RemoveAnnotation: lambda _: "",
    edits.SetLabel: lambda edit: f"sets label {edit.key}: {edit.value}",
    edits.RemoveLabel: lambda edit: f"removes label {edit.key}",
    edits.SetSchedulerName: lambda edit: f"sets scheduler {edit.name}",
    edits.RequireNodes: lambda edit: f"requires nodes with {_all(edit.requirements)}",
    edits.PreferNodes: lambda edit: (
        f"prefers nodes with {_all(edit.requirements)} (weight {edit.weight})"
    ),
    edits.SelectNodes: lambda edit: f"selects nodes with {edit.key}={edit.value}",
    edits.Tolerate: lambda edit: (
        f"tolerates taint {edit.key}{'=' if edit.value else ''}{edit.value}"
    ),
}
