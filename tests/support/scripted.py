"""Plugins whose results a test chooses, and profiles of such plugins."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.framework.pipeline import AdmissionPipeline
from holdfast.webhook.framework.plugin import (
    Allow,
    Args,
    Context,
    Permit,
    Plugin,
    Result,
    Wait,
    success,
)
from holdfast.webhook.framework.profiles import Profile, Profiles
from holdfast.webhook.framework.runner import Observe, Runner
from holdfast.webhook.model.objects import Pod
from tests.support.builders import HOUR, Measured

Answer = Callable[[Pod, Context], Result]


class Scripted(Plugin):
    name = "scripted"
    may_block = False
    keys = ("scripted",)

    def __init__(self, mutate: Answer | None = None, validate: Answer | None = None) -> None:
        super().__init__(Args())
        self._mutate = mutate or (lambda _pod, _context: success())
        self._validate = validate or (lambda _pod, _context: success())

    def concerns(self, pod: Pod) -> bool:  # noqa: ARG002
        return True

    def mutate(self, pod: Pod, context: Context) -> Result:
        return self._mutate(pod, context)

    def validate(self, pod: Pod, context: Context) -> Result:
        return self._validate(pod, context)


class Other(Scripted):
    name = "other"


class Blocking(Scripted):
    name = "blocking"
    may_block = True

    def concerns(self, pod: Pod) -> bool:
        return Plugin.concerns(self, pod)


class Holding(Scripted):
    """Holds each pod with its gate; by default until an hour after its creation."""

    name = "holding"
    gate = "holdfast.dev/holding"

    def __init__(self, permit: Callable[[Pod, int], Permit] | None = None) -> None:
        super().__init__()
        self._permit = permit or _an_hour

    def permit(self, pod: Pod, now_ms: int) -> Permit:
        return self._permit(pod, now_ms)


class HoldingToo(Holding):
    name = "holding-too"
    gate = "holdfast.dev/holding-too"


class Slots(Holding):
    """Has one slot."""

    def __init__(self) -> None:
        super().__init__(lambda _pod, _now_ms: Allow())
        self.free = 1

    def reserve(self, _pod: Pod, _now_ms: int) -> Permit:
        self.free = 0
        return Allow()

    def unreserve(self, _pod: Pod) -> None:
        self.free = 1


class Tightening(Scripted):
    """Is called for every pod that is released."""

    name = "tightening"

    def __init__(self, answer: Callable[[Pod], Result]) -> None:
        super().__init__()
        self._answer = answer

    def at_release(self, pod: Pod) -> Result:
        return self._answer(pod)


class Extra(Scripted):
    name = "extra"

    class ExtraArgs(Args, frozen=True):
        must: int
        may: str = ""

    args_type = ExtraArgs

    def __init__(self, args: Extra.ExtraArgs, handle: Handle) -> None:
        super().__init__()
        self.args, self.handle = args, handle


class Twin(Extra):
    name = "delay"


def never(_pod: Pod, _now_ms: int) -> Permit:
    return Wait()


def _an_hour(pod: Pod, now_ms: int) -> Permit:
    if now_ms >= pod.created_ms + HOUR:
        return Allow()
    return Wait(pod.created_ms + HOUR, problem="as it says")


def answering(result: Result) -> Answer:
    return lambda _pod, _context: result


def raising(error: BaseException) -> Answer:
    def answer(_pod: Pod, _context: Context) -> Result:
        raise error

    return answer


def profiles_of(*plugins: Plugin, name: str = "*", run_all: bool = True) -> Profiles:
    return Profiles([Profile(name, plugins, run_all)])


def pipeline_of(
    *plugins: Plugin,
    name: str = "*",
    run_all: bool = True,
    observe: Observe | None = None,
    timer: Callable[[], float] | None = None,
) -> AdmissionPipeline:
    runner = Runner(timer or (lambda: 0.0), observe or Measured())
    return AdmissionPipeline(profiles_of(*plugins, name=name, run_all=run_all), runner)


def decider_of(*plugins: Plugin, name: str = "*", observe: Observe | None = None) -> ReleaseDecider:
    runner = Runner(lambda: 0.0, observe or Measured())
    return ReleaseDecider(profiles_of(*plugins, name=name), runner)
