"""Plugins that answer as a test tells them, and pipelines made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tests.unit.builders import HOUR, Measured
from webhook import conditions, holds
from webhook.framework import Args, Context, Handle, Plugin, Result, success
from webhook.objects import Pod
from webhook.pipeline import Pipeline
from webhook.profiles import Profile
from webhook.runner import Observe

Answer = Callable[[Pod, Context], Result]


class Undeclared:
    """A plugin that does not say whether it may block."""

    name: ClassVar[str] = "undeclared"
    args_type: ClassVar[type[Args]] = Args
    keys: tuple[str, ...] = ("scripted",)

    def __init__(self, mutate: Answer | None = None, validate: Answer | None = None) -> None:
        self._mutate = mutate or (lambda _pod, _context: success())
        self._validate = validate or (lambda _pod, _context: success())

    def match(self, pod: str) -> str:
        return conditions.has_annotation(self.keys, pod)

    def concerns(self, pod: Pod) -> bool:
        return "scripted" in pod.annotations

    def mutate(self, pod: Pod, context: Context) -> Result:
        return self._mutate(pod, context)

    def validate(self, pod: Pod, context: Context) -> Result:
        return self._validate(pod, context)


class Scripted(Undeclared):
    name = "scripted"
    may_block: ClassVar[bool] = False


class Other(Scripted):
    name = "other"


class Blocking(Scripted):
    name = "blocking"
    may_block = True


class Holding(Scripted):
    """Holds each pod that carries its gate, for an hour unless it is told otherwise."""

    name = "holding"
    gate: ClassVar[str] = "holdfast.dev/holding"

    def __init__(self, due: Callable[[Pod], holds.Due] | None = None) -> None:
        super().__init__()
        self._due = due or (lambda pod: holds.Due(pod.created_ms + HOUR, "as it says"))

    def due(self, pod: Pod) -> holds.Due:
        return self._due(pod)


class HoldingToo(Holding):
    name = "holding-too"
    gate = "holdfast.dev/holding-too"


class Tightening(Scripted):
    """Has a say about every pod that is released."""

    name = "tightening"

    def __init__(self, answer: Callable[[Pod], Result]) -> None:
        super().__init__()
        self._answer = answer

    def concerns(self, _pod: Pod) -> bool:
        return True

    def at_release(self, pod: Pod) -> Result:
        return self._answer(pod)


class Extra(Scripted):
    """A plugin that another package brings."""

    name = "extra"

    class ExtraArgs(Args, frozen=True):
        must: int
        may: str = ""

    args_type: ClassVar[type[Args]] = ExtraArgs

    def __init__(self, args: Extra.ExtraArgs, handle: Handle) -> None:
        super().__init__()
        self.args, self.handle = args, handle


class Twin(Extra):
    """A plugin that is named like one of ours."""

    name = "delay"


def never(_pod: Pod) -> holds.Due:
    return holds.Due(holds.NEVER_MS)


def answering(result: Result) -> Answer:
    return lambda _pod, _context: result


def raising(error: BaseException) -> Answer:
    def answer(_pod: Pod, _context: Context) -> Result:
        raise error

    return answer


def pipeline_of(
    *found: Plugin,
    name: str = "*",
    run_all: bool = True,
    observe: Observe | None = None,
    timer: Callable[[], float] | None = None,
) -> Pipeline:
    profile = Profile(name, found, run_all)
    return Pipeline([profile], timer=timer or (lambda: 0.0), observe=observe or Measured())
