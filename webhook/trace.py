"""Asking the plugins of a profile about one pod, and writing down what each of them says. Pure.

It is the pipeline that runs, in a kind that writes down what its plugins answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webhook import holds
from webhook.errors import PluginFailedError
from webhook.framework import Code, Context, Plugin, Result
from webhook.objects import Pod
from webhook.pipeline import Call, Pipeline
from webhook.profiles import Profile, Verdict
from webhook.review import (
    AddFinalizer,
    AddGate,
    Edit,
    PodReview,
    PreferNodes,
    RemoveAnnotation,
    Requirement,
    RequireNodes,
    SelectNodes,
    SetAnnotation,
    SetSchedulerName,
    Tolerate,
)


@dataclass(frozen=True, slots=True)
class Step:
    """What one plugin said."""

    plugin: str
    code: Code
    edits: Sequence[Edit] = ()
    reason: str = ""
    warnings: Sequence[str] = ()

    @property
    def told(self) -> str:
        """Say it in words, on one line."""
        if self.code is Code.SKIP:
            return "does not concern it"
        if self.code in {Code.REFUSE, Code.ERROR}:
            return f"{'refuses it' if self.code is Code.REFUSE else 'failed'}: {self.reason}"
        done = [text for text in map(edit_in_words, self.edits) if text]
        return "; ".join([*(done or ["changes nothing"]), *self.warnings])


@dataclass(frozen=True, slots=True)
class Trace:
    """What all plugins said, and what it came to; `verdict` is None where a plugin failed."""

    profile: str
    steps: Sequence[Step]
    verdict: Verdict | None


def mutate(pipeline: Pipeline, review: PodReview, *, now_ms: int) -> Trace:
    """Ask about a pod that is being created."""
    steps: list[Step] = []
    profile = pipeline.profile_for(review.pod)
    verdict: Verdict | None
    try:
        writing = _Writing(pipeline.profiles.values(), steps.append)
        verdict = writing.mutate(review, now_ms=now_ms)
    except PluginFailedError:
        verdict = None
    return Trace(profile.name if profile else "", steps, verdict)


def edit_in_words(edit: Edit) -> str:
    """Say what an edit does; empty for what matters to nobody but Holdfast."""
    return _WORDS[type(edit)](edit)


def _annotation(edit: SetAnnotation) -> str:
    hint = edit.key == holds.HELD
    return f"notes {edit.value}" if hint else f"sets the annotation {edit.key}: {edit.value}"


def _required(edit: RequireNodes) -> str:
    return f"requires nodes with {_all(edit.requirements)}"


def _preferred(edit: PreferNodes) -> str:
    return f"prefers nodes with {_all(edit.requirements)} (weight {edit.weight})"


def _all(requirements: Sequence[Requirement]) -> str:
    return " and ".join(map(str, requirements))


def _tolerated(edit: Tolerate) -> str:
    return f"has it bear with the taint {edit.key}{'=' if edit.value else ''}{edit.value}"


_WORDS: Mapping[type[Any], Callable[[Any], str]] = {
    AddGate: lambda edit: f"holds it by the gate {edit.name}",
    AddFinalizer: lambda edit: f"adds the finalizer {edit.name}",
    SetAnnotation: _annotation,
    RemoveAnnotation: lambda _: "",
    SetSchedulerName: lambda edit: f"gives it to the scheduler {edit.name}",
    RequireNodes: _required,
    PreferNodes: _preferred,
    SelectNodes: lambda edit: f"selects nodes with {edit.key}={edit.value}",
    Tolerate: _tolerated,
}


class _Writing(Pipeline):
    """A pipeline that writes down what its plugins answer at creation.

    Also of one that is spared the pod it is written down that it is none of its business.
    """

    def __init__(self, profiles: Iterable[Profile], write: Callable[[Step], None]) -> None:
        super().__init__(profiles, timer=lambda: 0.0, observe=_unobserved)
        self._write = write

    def _mutating(self, plugin: Plugin) -> Call:
        ask = super()._mutating(plugin)

        def mutate(pod: Pod, context: Context) -> Result:
            try:
                result = ask(pod, context)
            except Exception as exc:
                reason = str(exc) or type(exc).__name__
                self._write(Step(plugin.name, Code.ERROR, reason=reason))
                raise
            self._write(
                Step(plugin.name, result.code, result.edits, result.reason, result.warnings)
            )
            return result

        return mutate


def _unobserved(
    *, plugin: str, extension_point: str, status: str, profile: str, seconds: float
) -> None:
    """Take a measurement that nobody reads."""
